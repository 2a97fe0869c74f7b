"""Handles of sessions that keep their state between calls (shell:main): where every kind is listed and closed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..errors import BadArgument
from ..jobs.job import LONGEST_SESSION

# Kinds of sessions: a shell of exec_bash, an interpreter of run_python.
SHELL, PYTHON = "shell", "python"
_HANDLE = re.compile(rf"(?P<kind>{SHELL}|{PYTHON}):(?P<name>.*)\Z", re.DOTALL)
_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_@%+=,.-]{{0,{LONGEST_SESSION - 1}}}\Z")


def check_session(name: str) -> str:
    """Refuse what cannot be the name of a session; it becomes the name of a file. Raises BadArgument."""
    if not _NAME.match(name):
        what = f"begin with a letter or digit, have at most {LONGEST_SESSION} characters, and none besides A-Za-z0-9"
        raise BadArgument(f"session {name[:60]!r} cannot be a session's name: it has to {what} and _@%+=,.-")
    return name


@dataclass(frozen=True)
class SessionHandle:
    """Value of tmux_session for a session, as stop_background_task takes it: its kind and its name."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


def read_handle(text: str) -> SessionHandle | None:
    """Parse a session's handle; None for another tmux_session. Raises BadArgument for a name that is not possible."""
    found = _HANDLE.match(text)
    return SessionHandle(found["kind"], check_session(found["name"])) if found else None


@dataclass(frozen=True, kw_only=True)
class SessionSeen:
    """A session in a list, or one that was closed. `status` is "idle", "running", or "unknown" with its `trouble`."""

    handle: SessionHandle
    sandbox: str
    status: str = "idle"
    # When it was used last, in seconds since the epoch.
    used: float = 0.0
    folder: str = ""
    as_root: bool = False
    trouble: str = ""
    # What else its kind tells, such as memory in use.
    more: Mapping[str, object] = field(default_factory=dict)


class SessionKind(Protocol):
    """The sessions of one kind, on all sandboxes."""

    async def list(self, sandbox: str) -> Sequence[SessionSeen]:
        """List the sessions on one sandbox; empty: on all. A silent one is reported in `trouble`, and delays none."""

    async def close(self, name: str, sandbox: str) -> SessionSeen:
        """End it and drop its state. Raises BadArgument where there is none of that name."""


class Sessions:
    """Sessions of every kind. What a kind needs is loaded with its first use."""

    def __init__(self, kinds: Mapping[str, Callable[[], SessionKind]]) -> None:
        self._kinds = kinds

    async def list(self, sandbox: str = "", status: str = "") -> Sequence[SessionSeen]:
        """All of them, those that were used last first."""
        seen = [session for kind in self._kinds.values() for session in await kind().list(sandbox)]
        fitting = [session for session in seen if not status or session.status == status]
        return sorted(fitting, key=lambda session: session.used, reverse=True)

    async def close(self, handle: SessionHandle, sandbox: str) -> SessionSeen:
        if handle.kind not in self._kinds:
            raise BadArgument(f"{handle} cannot be closed: there are no sessions of the kind {handle.kind} here")
        return await self._kinds[handle.kind]().close(handle.name, sandbox)

    async def whereabouts(self, handle: SessionHandle) -> str:
        """The sandbox that has it; empty where none has, or several have."""
        places = {seen.sandbox for seen in await self.list() if seen.handle == handle}
        return places.pop() if len(places) == 1 else ""
