"""MCP servers of others for SSH machines, from npm: installed once, given the same machines, and called as ours is."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .client import Message, Server
from .peer import CACHE, run
from .problems import BenchError, NoPeer
from .stage import Entry

FOLDER = CACHE / "npm"
GROUP = "bench"


@dataclass(frozen=True)
class Rival:
    """A program, how it is told of machines, and the calls that run a command on one of them, or on all."""

    package: str
    version: str
    script: str
    configure: Callable[[Path, Sequence[Entry]], Mapping[str, str]]
    call: Callable[[str, str], Message]
    call_all: Callable[[str], Message] | None = None

    @property
    def name(self) -> str:
        return f"{self.package} {self.version}"

    @property
    def command(self) -> list[str]:
        return ["node", str(FOLDER / "node_modules" / self.package / self.script)]

    def environment(self, home: Path, entries: Sequence[Entry], kept: Mapping[str, str]) -> dict[str, str]:
        return {**kept, "HOME": str(home), "XDG_CONFIG_HOME": str(home / "config"), **self.configure(home, entries)}


def check(result: Message) -> None:
    """Raises BenchError unless a command has ended well."""
    text = " ".join(str(part.get("text", "")) for part in result.get("content", ()))
    if result.get("isError") or "❌" in text or '"success":false' in text.replace(" ", ""):
        raise BenchError(f"a command did not succeed: {text[:500]}")


@dataclass(frozen=True)
class Tool:
    """A rival's server, as a client calls it."""

    rival: Rival
    server: Server

    def run(self, machine: str, command: str) -> None:
        self.at_once([machine], command)

    def at_once(self, machines: Sequence[str], command: str) -> None:
        self._ask([self.rival.call(machine, command) for machine in machines])

    def on_all(self, machines: Sequence[str], command: str) -> None:
        """By the one call that it has for all machines, or else by one for each."""
        calls = [self.rival.call(machine, command) for machine in machines]
        self._ask([self.rival.call_all(command)] if self.rival.call_all else calls)

    def _ask(self, calls: Sequence[Message]) -> None:
        for result in self.server.requests("tools/call", calls):
            check(result)


def _configure_ssh_mcp(home: Path, entries: Sequence[Entry]) -> Mapping[str, str]:
    folder = home / "config/ssh-mcp"
    folder.mkdir(parents=True, mode=0o700)
    lines = ["[defaults]", f'defaultProfile = "{entries[0]["name"]}"']
    for it in entries:
        lines += ["[[profiles]]", f'name = "{it["name"]}"', f'host = "{it["host"]}"', f"port = {it['port']}"]
        lines += [f'user = "{it["user"]}"', 'auth = "key"', f'keyRef = "{it["key_file"]}"']
        lines += ['role = "admin"', 'approvalPolicy = "auto"']
    file = folder / "config.toml"
    file.write_text("\n".join(lines) + "\n")
    file.chmod(0o600)
    return {}


def _configure_ssh_manager(home: Path, entries: Sequence[Entry]) -> Mapping[str, str]:
    keys = {"HOST": "host", "USER": "user", "PORT": "port", "KEYPATH": "key_file"}
    given = {f"SSH_SERVER_{it['name'].upper()}_{key}": str(it[name]) for it in entries for key, name in keys.items()}
    return given | {f"SSH_SERVER_{it['name'].upper()}_GROUP": GROUP for it in entries}


RIVALS = (
    Rival(
        "ssh-mcp",
        "2.11.0",
        "build/index.js",
        _configure_ssh_mcp,
        lambda machine, command: {"name": "run-command", "arguments": {"command": command, "profile": machine}},
    ),
    Rival(
        "mcp-ssh-manager",
        "3.8.5",
        "src/index.js",
        _configure_ssh_manager,
        lambda machine, command: {"name": "ssh_execute", "arguments": {"server": machine, "command": command}},
        lambda command: {
            "name": "ssh_execute_group",
            "arguments": {"group": GROUP, "command": command, "strategy": "parallel"},
        },
    ),
)


def install() -> Sequence[Rival]:
    """Install them all once. Raises NoPeer."""
    wanted = [f"{rival.package}@{rival.version}" for rival in RIVALS]
    ready = FOLDER / ".ready"
    if not ready.exists() or ready.read_text().split() != wanted:
        if shutil.which("npm") is None:
            raise NoPeer("there is no npm here")
        print(f"installing {', '.join(wanted)} into {FOLDER}", file=sys.stderr)
        FOLDER.mkdir(parents=True, exist_ok=True)
        run(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(FOLDER), *wanted])
        ready.write_text(" ".join(wanted))
    return RIVALS
