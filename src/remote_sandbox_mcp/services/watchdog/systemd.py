"""The watchdog as a service of the user's systemd."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from pathlib import Path

from .manager import Facts, ManagerOutput, Program, call, fixed, must_be_text, put, take_away

LINGERING = Path("/var/lib/systemd/linger")
# No further restrictions: filters on system calls or hidden folders would also apply to hooks, agents and proxies, and
# a user's systemd can only set them up by forbidding sudo.
UNIT = """\
[Unit]
Description=Looks after background jobs on remote machines (remote-sandbox-mcp)
StartLimitIntervalSec=0

[Service]
ExecStart={command}
{environment}WorkingDirectory=/
Restart=always
RestartSec=5
KillMode=mixed
TimeoutStopSec=5
OOMPolicy=continue
UMask=0077
LimitCORE=0

[Install]
WantedBy=default.target
"""


def render(program: Program) -> str:
    """The unit's text."""
    environment = "".join(f"Environment={quoted(f'{name}={value}')}\n" for name, value in fixed(program).items())
    return UNIT.format(command=command_line(program.words), environment=environment)


def command_line(words: tuple[str, ...]) -> str:
    """Words in the syntax of ExecStart=."""
    # systemd refuses some characters in a program's own path, however they are escaped; a shell does not.
    is_odd = not words[0].isprintable() or any(character in words[0] for character in "\\\"'$")
    through = ("/bin/sh", "-c", 'exec "$@"', "sh") if is_odd else ()
    return " ".join(quoted(word).replace("$", "$$") for word in (*through, *words))


def quoted(word: str) -> str:
    """A word in double quotes, with specifiers doubled and unprintable characters escaped."""
    return '"' + "".join(_spelled(character) for character in word) + '"'


def _spelled(character: str) -> str:
    if character in '\\"':
        return f"\\{character}"
    if character == "%":
        return "%%"
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode())


class Systemd:
    """The watchdog's systemd unit, installed or not."""

    kind = "systemd"

    def __init__(self, program: Program) -> None:
        environ = program.environ
        self._program = program
        self._env = with_runtime_folder(environ)
        self.name = f"remote-sandbox-mcp-watchdog{program.suffix}.service"
        config = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME") or str(Path.home()), ".config")
        self.file = Path(config) / "systemd/user" / self.name

    def is_installed(self) -> bool:
        return self.file.exists()

    async def install(self, start_now: bool) -> None:
        """Write and enable the unit and, if wanted, start or restart it. Raises SandboxError."""
        must_be_text((*self._program.words, str(self._program.state)))
        put(self.file, render(self._program).encode("utf-8"))
        (await self._systemctl("daemon-reload")).needed()
        (await self._systemctl("enable", self.name)).needed()
        if start_now:
            (await self._systemctl("restart", self.name)).needed()

    async def start(self) -> None:
        """Raises SandboxError."""
        (await self._systemctl("start", self.name)).needed()

    async def remove(self) -> None:
        """Stop it and remove the unit. Raises SandboxError."""
        if self.is_installed():
            (await self._systemctl("disable", "--now", self.name)).needed()
            take_away(self.file)
            (await self._systemctl("daemon-reload")).needed()
            await self._systemctl("reset-failed", self.name)

    async def facts(self) -> Facts:
        answer = await self._systemctl("show", "--property=ActiveState,MainPID,UnitFileState", self.name)
        shown = dict(line.partition("=")[::2] for line in answer.stdout.splitlines())
        pid = shown.get("MainPID", "")
        return Facts(
            enabled=shown.get("UnitFileState") == "enabled",
            active=shown.get("ActiveState") in ("active", "reloading"),
            pid=int(pid) if pid.isdigit() else 0,
            # Whether the user's systemd runs without a login.
            lingering=(LINGERING / pwd.getpwuid(os.getuid()).pw_name).exists(),
        )

    async def _systemctl(self, *words: str) -> ManagerOutput:
        return await call("systemctl", "--user", "--no-pager", *words, env=self._env)


def is_running(environ: Mapping[str, str]) -> bool:
    """Whether this user's systemd runs and can be reached."""
    folder = with_runtime_folder(environ).get("XDG_RUNTIME_DIR", "")
    try:
        return os.path.isdir("/run/systemd/system") and os.stat(f"{folder}/systemd/private").st_uid == os.getuid()
    except OSError:
        return False


def with_runtime_folder(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables, with the folder of the user's systemd added if missing: some clients drop it."""
    usual = f"/run/user/{os.getuid()}"
    return {**environ, "XDG_RUNTIME_DIR": environ.get("XDG_RUNTIME_DIR") or usual}
