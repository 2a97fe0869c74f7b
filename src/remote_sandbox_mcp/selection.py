"""The sandbox that a client has selected, meant by its calls that name none; it survives a restart of the server."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING

from .config import paths
from .core.errors import ConfigError, UnknownSandbox
from .tasks import process

if TYPE_CHECKING:
    from .store.disposables import Owner
    from .store.selections import Choice, SelectionRows

# Stand between a client and the server that it starts. Each start has a new one, so they do not identify the client.
LAUNCHERS = frozenset({"uv", "uvx", "npx", "npm", "pipx", "env"})
# These run a launcher as a script, or a command line as -c.
INTERPRETERS = frozenset({"node", "python", "python3"})
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ash", "ksh", "fish"})
MOST_LAUNCHERS = 8
# Takes over processes whose parent has gone, so it is nobody's client.
REAPERS = frozenset({"init", "systemd", "launchd", "tini", "dumb-init", "docker-init", "catatonit"})


class Selection:
    """One client's choice, for as long as this process lives."""

    def __init__(self) -> None:
        self._name = ""

    async def name(self) -> str:
        """The selected sandbox; nothing where none was selected, and so the configured default is meant."""
        return self._name

    async def choose(self, name: str) -> None:
        self._name = name


class KeptSelection(Selection):
    """The choice of the process that has started this server: it gets it back when it starts the server again.

    A server takes over what servers of the same client and configuration had selected that have ended. Where these
    do not agree, nobody can tell which of them this one replaces, so none is meant until the client selects again.
    """

    def __init__(self, configuration: str, server: int = 0) -> None:
        """`server` is the process that the client has started, by default this one."""
        super().__init__()
        self._configuration = configuration
        self._server = server or os.getpid()
        # Before these end: then another process would be the parent.
        self._birth = process.started(self._server)
        self._parent = look_at(server)[1] if server else os.getppid()
        self._turn = asyncio.Lock()
        self._doubt = ""
        self._is_recalled = False

    async def name(self) -> str:
        """Raises UnknownSandbox where it is in doubt, ConfigError where it cannot be read."""
        async with self._turn:
            if not self._is_recalled:
                await asyncio.to_thread(self._recall)
                self._is_recalled = True
        if self._doubt:
            raise UnknownSandbox(self._doubt)
        return self._name

    async def choose(self, name: str) -> None:
        async with self._turn:
            # Agents select again and again what is selected: that is written down already.
            if self._is_recalled and name and name == self._name:
                return
            if choice := self._choice(name):
                await asyncio.to_thread(self._rows.put, choice)
            self._name, self._doubt, self._is_recalled = name, "", True

    def release(self) -> None:
        """This server ends: the next one of the same client need not wait until its process is gone."""
        if self._is_recalled and self._rows.exists() and (mine := self._choice("")):
            with contextlib.suppress(ConfigError):
                self._rows.release(mine)

    def _recall(self) -> None:
        if not self._rows.exists() or not (mine := self._choice("")):
            return
        found = self._rows.inherit(mine, lambda it: process.is_alive(it.pid, it.birth))
        self._name = next(iter(found)) if len(found) == 1 else ""
        if len(found) > 1:
            told = " and ".join(sorted(name or "none" for name in found))
            self._doubt = (
                f"several servers of this client have ended, and they had selected different sandboxes ({told}); "
                "select one with select_sandbox, or name sandbox_name in each call"
            )

    def _choice(self, name: str) -> Choice | None:
        from .store.disposables import Owner
        from .store.selections import Choice

        server = Owner(self._server, self._birth)
        return Choice(self._client, self._configuration, server, name) if self._client else None

    @functools.cached_property
    def _rows(self) -> SelectionRows:
        from .store.database import STATE_FILE, Database
        from .store.selections import SelectionRows

        return SelectionRows(Database(paths.state_folder() / STATE_FILE))

    @functools.cached_property
    def _client(self) -> Owner | None:
        return client_of(self._parent)


def client_of(parent: int) -> Owner | None:
    """The process for which a server works whose parent is that one; None where it cannot be told."""
    from .store.disposables import Owner

    pid = parent
    for _ in range(MOST_LAUNCHERS):
        words, above = look_at(pid)
        if not is_launcher(words):
            break
        pid = above
    birth = process.started(pid)
    is_client = pid > 0 and bool(birth) and _program(words) not in REAPERS
    return Owner(pid, birth) if is_client else None


def is_launcher(words: list[str]) -> bool:
    """Whether a command line only starts another program, and ends with it."""
    program, first = _program(words), words[1] if len(words) > 1 else ""
    if program in SHELLS:
        # Not one at which somebody sits, nor one with a script: that may be the client itself.
        return first.startswith("-") and first.endswith("c")
    if program.rstrip("0123456789.") in INTERPRETERS:
        return os.path.basename(first).partition("-cli")[0].removesuffix(".js") in LAUNCHERS
    return program in LAUNCHERS


def look_at(pid: int) -> tuple[list[str], int]:
    """The command line of a process, and its parent."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return words, int(fields[1])
    except (OSError, IndexError, ValueError):
        return ([], 0) if os.path.exists("/proc/self/stat") else _asked(pid)


def _asked(pid: int) -> tuple[list[str], int]:
    """The same where there is no /proc."""
    import subprocess

    asked = subprocess.run(["ps", "-o", "ppid=,args=", "-p", str(pid)], capture_output=True, text=True, check=False)
    above, *words = asked.stdout.split() or ["0"]
    return words, int(above)


def _program(words: list[str]) -> str:
    # npm writes its whole command line into the first word.
    return os.path.basename((words[0] if words else "").partition(" ")[0]).lstrip("-")
