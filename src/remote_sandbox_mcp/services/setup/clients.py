"""The MCP clients of this computer: which are there, what their files say of us, and the change that adds us."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from ...core.errors import ConfigError
from ...core.texts.text import harmless, last_line
from ...local.processes.programs import find_chosen
from . import files, json_text, toml_text
from .journal import CLAUDE, JSON, TOML, SetupChange
from .json_text import NotEditable

NAME = "remote-sandbox"
PROGRAM = "remote-sandbox-mcp"
# How long Claude Code's own command may take.
COMMAND_S = 60.0


@dataclass(frozen=True)
class McpClient:
    """A client: the file that names its servers, and under which keys.

    `sees_path`: it is started from a terminal and finds programs as that does. `command` is its own program, if found.
    """

    key: str
    title: str
    file: Path
    table: tuple[str, ...]
    is_toml: bool = False
    sees_path: bool = False
    command: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    # The file that says which plugins it has, and under which key.
    plugins: tuple[Path, str] | None = None
    is_there: bool = False

    @property
    def is_by_command(self) -> bool:
        """Claude Code writes its file all the time while it runs: its own command knows how to change it."""
        return self.key == "claude-code" and bool(self.command)


class State(str, Enum):
    """State of our entry in a client's file."""

    NEW = "new"
    REGISTERED = "registered"
    # Another command has our name.
    TAKEN = "taken"
    # It starts the original (0.x), whose variables mean the same here.
    ORIGINAL = "original"
    # The file cannot be changed without destroying something of it.
    REFUSED = "refused"


@dataclass(frozen=True)
class ClientPlan:
    """The change of one client's file. `said` is the end of a sentence: what is there, or why it is refused."""

    client: McpClient
    state: State
    entry: Mapping[str, Any]
    said: str = ""
    path: Path = Path()
    before: str | None = None
    after: str = ""
    name: str = NAME

    @property
    def place(self) -> tuple[str, ...]:
        """Return where the entry is in the client's document."""
        return (*self.client.table, self.name)

    @property
    def variables(self) -> Mapping[str, str]:
        """The variables that the entry sets; they may be secret."""
        found = self.entry.get("env")
        return {key: it for key, it in found.items() if isinstance(it, str)} if isinstance(found, Mapping) else {}

    @property
    def lines(self) -> str:
        """Return the added lines, as a person would paste them, without what variables say."""
        shown = {**self.entry, **({"env": dict.fromkeys(self.variables, "(as it is)")} if self.variables else {})}
        if self.client.is_toml:
            env = shown.pop("env", None)
            tables = [(self.place, shown), *([((*self.place, "env"), env)] if env else [])]
            return "\n".join(toml_text.table(*one) for one in tables).rstrip("\n")
        if self.is_by_command:
            return shlex.join(add_words(self.client, self.entry))
        inner: Any = {self.name: shown}
        for key in reversed(self.client.table):
            inner = {key: inner}
        return json.dumps(inner, indent=2, ensure_ascii=False)

    @property
    def is_by_command(self) -> bool:
        """Variables would be words of the command, which everyone sees; so an entry that has some is written."""
        return self.client.is_by_command and not self.is_original

    @property
    def is_original(self) -> bool:
        return self.state is State.ORIGINAL


def find(environ: Mapping[str, str] = os.environ) -> list[McpClient]:
    """All clients that are known, each with whether it is there."""
    home = Path(os.path.expanduser("~"))
    settings = _settings_folder(home, environ)
    claude = _folder(environ.get("CLAUDE_CONFIG_DIR"), home) or home
    codex = _folder(environ.get("CODEX_HOME"), home) or home / ".codex"
    claude_plugins = (_folder(environ.get("CLAUDE_CONFIG_DIR"), home) or home / ".claude") / "settings.json"
    mcp, servers, path = ("mcpServers",), ("servers",), environ.get("PATH", os.defpath)
    stdio = {"type": "stdio"}
    entry = (
        McpClient(
            "claude-code", "Claude Code", claude / ".claude.json", mcp,
            sees_path=True, command="claude", extra=stdio, plugins=(claude_plugins, "enabledPlugins"),
        ),
        McpClient(
            "codex", "Codex", codex / "config.toml", ("mcp_servers",),
            is_toml=True, sees_path=True, command="codex", plugins=(codex / "config.toml", "plugins"),
        ),
        McpClient("cursor", "Cursor", home / ".cursor/mcp.json", mcp, command="cursor"),
        McpClient("vscode", "VS Code", settings / "Code/User/mcp.json", servers, command="code", extra=stdio),
        McpClient("claude-desktop", "Claude Desktop", settings / "Claude/claude_desktop_config.json", mcp),
    )  # fmt: skip
    return [_located(client, path, home) for client in entry]


def _located(client: McpClient, path: str, home: Path) -> McpClient:
    command = find_chosen(client.command, path) if client.command else ""
    folder = client.file.parent
    # The home folder itself is always there.
    is_there = bool(command) or os.path.lexists(client.file) or (folder != home and folder.is_dir())
    return replace(client, command=command, is_there=is_there)


def _settings_folder(home: Path, environ: Mapping[str, str]) -> Path:
    """Return where desktop programs have their settings."""
    if sys.platform == "darwin":
        return home / "Library/Application Support"
    return _folder(environ.get("XDG_CONFIG_HOME"), home) or home / ".config"


def _folder(given: str | None, home: Path) -> Path | None:
    """A folder that a variable names; a relative one counts for nothing."""
    return Path(given) if given and os.path.isabs(given) else None


@dataclass(frozen=True)
class StartCommand:
    """Command by which clients start us: `name` where they see our PATH, else `path`; with `arguments`, if any."""

    name: str
    path: str
    arguments: tuple[str, ...] = ()

    def entry(self, client: McpClient) -> dict[str, Any]:
        """Build our entry in the client's file."""
        arguments = {"args": [*self.arguments]} if self.arguments else {}
        return {**client.extra, "command": self.name if client.sees_path else self.path, **arguments}

    def is_meant_by(self, command: object) -> bool:
        """Whether a command of a client starts this very program."""
        if not isinstance(command, str) or not command:
            return False
        found = find_chosen(os.path.expanduser(command))
        is_same = bool(found) and os.path.realpath(found) == os.path.realpath(self.path)
        return command in (self.name, self.path) or is_same


def plan(client: McpClient, program: StartCommand) -> ClientPlan:
    """The change that adds us to a client, made on paper. Raises nothing: what stands in the way is told in it."""
    entry = program.entry(client)
    try:
        path = files.locate(client.file)
        before = files.read(path)
        text = before or ""
        document = toml_text.read(text) if client.is_toml else json_text.read(text)
    except (ConfigError, NotEditable) as problem:
        return ClientPlan(client, State.REFUSED, entry, str(problem).rstrip("."))
    servers = json_text.value_at(document, client.table)
    if registered := _registered(servers, program) or _plugin(client):
        return ClientPlan(client, State.REGISTERED, entry, registered, path, before, text)
    if name := next((name for name in json_text.keys_of(servers) if _is_original(servers[name])), ""):
        entry = {**servers[name], "command": entry["command"], "args": [*program.arguments]}
        return with_entry(ClientPlan(client, State.ORIGINAL, entry, "", path, before, text, name))
    if there := json_text.value_at(document, (*client.table, NAME)):
        return ClientPlan(client, State.TAKEN, entry, f"{NAME!r} stands for {_shown(there)} there", path, before, text)
    return with_entry(ClientPlan(client, State.NEW, entry, "", path, before, text))


def plans(client: McpClient, program: StartCommand) -> Iterator[ClientPlan]:
    """The client's own plan, and one for each entry of 0.x that Claude Code has for a single project.

    Each is made when its turn comes: the one before may have changed the file.
    """
    yield plan(client, program)
    projects: Any = None
    with suppress(ConfigError, NotEditable):
        projects = {} if client.is_toml else json_text.read(files.read(client.file) or "").get("projects")
    for folder in json_text.keys_of(projects):
        title, table = f"{client.title} in {folder}", ("projects", folder, *client.table)
        # Few have servers of their own, and the file may be large.
        if json_text.value_at(projects[folder], client.table):
            planned = plan(replace(client, title=title, table=table, plugins=None), program)
            yield from [planned] if planned.is_original else []


def overriding(there: ClientPlan) -> ClientPlan:
    """The plan that puts us in the place of another command; a table of TOML that is there stays its owner's."""
    return with_entry(replace(there, state=State.NEW))


def _is_original(server: Any) -> bool:
    """Whether an entry starts the published program, which may be 0.x: by its name or path, uvx, pipx, python -m."""
    words = [server.get("command"), *(server.get("args") or ())] if isinstance(server, dict) else []
    named = [re.split("[@=<>~]", str(word))[0] for word in words[1:]]
    first = os.path.basename(str(words[0])) if words else ""
    is_run = first in ("uvx", "uv", "pipx") and PROGRAM in named and "--from" not in named
    # 0.x takes no arguments.
    return is_run or "remote_sandbox_mcp.server" in named or (first == PROGRAM and not named)


def with_entry(fresh: ClientPlan) -> ClientPlan:
    """The plan with the text after its change; refused where the file cannot be changed."""
    client, text = fresh.client, fresh.before or ""
    try:
        if client.is_toml and fresh.is_original:
            after = toml_text.set_values(text, fresh.place, fresh.entry)
        elif client.is_toml:
            after = toml_text.add_table(text, fresh.place, fresh.entry)
        else:
            after = json_text.put(text, fresh.place, dict(fresh.entry))
    except NotEditable as problem:
        return replace(fresh, state=State.REFUSED, said=str(problem))
    return replace(fresh, after=after)


def _registered(servers: Any, program: StartCommand) -> str:
    """The name under which this program is registered already; empty for none."""
    for name in json_text.keys_of(servers):
        server = servers[name]
        if isinstance(server, dict) and program.is_meant_by(server.get("command")):
            return str(name)
    return ""


def _plugin(client: McpClient) -> str:
    """Our plugin, where the client has it; empty for none."""
    if client.plugins is None:
        return ""
    file, key = client.plugins
    try:
        text = files.read(file) or ""
        document = toml_text.read(text) if client.is_toml else json_text.read(text)
    except (ConfigError, NotEditable):
        return ""
    listed: Any = document.get(key)
    names = (name for name in json_text.keys_of(listed) if name.startswith(f"{NAME}@"))
    return next((f"the plugin {name}" for name in names if listed[name] not in (False, {"enabled": False})), "")


def _shown(server: Any) -> str:
    """A registration without its variables and arguments, which may be secret."""
    where = server.get("command") or server.get("url") if isinstance(server, dict) else None
    # Of an address, only what comes before a question mark or user.
    text = str(where or "something else").partition("?")[0].rpartition("@")[2]
    return harmless(text.encode("utf-8", "replace"))[:200].replace("\n", " ")


def carry_out(planned: ClientPlan) -> SetupChange:
    """Make the change, with a backup beside the file. Raises ConfigError; then the file is as it was."""
    if planned.is_by_command:
        return _by_command(planned)
    backup = str(files.keep_backup(planned.path, planned.before)) if planned.before is not None else ""
    try:
        files.write(planned.path, planned.after, planned.before)
    except BaseException:
        if backup:
            os.unlink(backup)
        raise
    changed = tuple(toml_text.hunks(planned.before or "", planned.after)) if planned.client.is_toml else ()
    return replace(_change(planned, backup, planned.after), hunks=changed)


def _change(planned: ClientPlan, backup: str, after: str) -> SetupChange:
    client = planned.client
    kind = CLAUDE if planned.is_by_command else TOML if client.is_toml else JSON
    what, value = f"the entry {planned.name!r} of {client.title}", json.dumps({**planned.entry, "env": {}})
    return SetupChange(kind, what, str(planned.path), backup, files.digest(after), planned.place, value)


def add_words(client: McpClient, entry: Mapping[str, Any]) -> list[str]:
    return [client.command, "mcp", "add", "--scope", "user", NAME, "--", entry["command"], *entry.get("args", ())]


def _by_command(planned: ClientPlan) -> SetupChange:
    client = planned.client
    backup = str(files.keep_backup(planned.path, planned.before)) if planned.before is not None else ""
    replaced = json_text.value_at(json_text.read(planned.before or ""), planned.place)
    try:
        if replaced:
            run(["mcp", "remove", "--scope", "user", NAME], client)
        run(add_words(client, planned.entry)[1:], client)
    except BaseException as problem:
        _put_back(planned.path, planned.place, replaced, backup, problem)
        raise
    return _change(planned, backup, files.read(planned.path) or "")


def _put_back(path: Path, place: tuple[str, ...], replaced: Any, backup: str, failure: BaseException) -> None:
    """Our entry as it was before, and no backup. Raises ConfigError, which names the backup."""
    try:
        now = files.read(path)
        fresh = json_text.restore(now or "", place, replaced)
        if fresh != (now or ""):
            files.write(path, fresh, now)
    except (ConfigError, NotEditable) as problem:
        kept = f" The file as it was before is {backup}." if backup else ""
        why = f"{path} could not be put back as it was: {problem}".rstrip(".")
        raise ConfigError(f"{str(failure).rstrip('.')}. {why}.{kept}") from None
    if backup:
        os.unlink(backup)


def run(words: list[str], client: McpClient) -> None:
    """Run a client's own command, in the home folder: what a project brings is not read. Raises ConfigError."""
    call_program([client.command, *words], client.title)


def call_program(words: list[str], title: str) -> None:
    shown = shlex.join([os.path.basename(words[0]), *words[1:]])
    try:
        done = subprocess.run(
            words, cwd=os.path.expanduser("~"), stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_S,
            check=False, start_new_session=True,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as problem:
        why = getattr(problem, "strerror", None) or f"it did not end within {COMMAND_S:g} s"
        raise ConfigError(f"unable to change {title}: {shown} could not be run ({why}).") from None
    if done.returncode:
        said = last_line(done.stderr or done.stdout) or "nothing"
        raise ConfigError(f"unable to change {title}: {shown} ended with {done.returncode}, and said: {said}")
