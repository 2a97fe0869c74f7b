"""A Sandbox that its provider made, behind a command: it may be paused, ended or expire under its users."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ...core.commands.command import Command, Completed, Environment, Running
from ...core.errors import ConnectError, LostContact, Unreachable
from ...core.progress import Progress, silent
from ...core.sandboxes.sandbox import Description, Sandbox
from ..link.client import OutpostClient
from ..link.relay import RelayPorts
from ..link.sandbox import OutpostSandbox
from ..mending import opened
from ..shell.sandbox import ShellAlone, lost_with
from ..shell.transport import ShellPlace
from .sandbox import OPEN_S, CommandShell, Entrance, NoPython
from .way import Way


class ProvidedWay(Way, Protocol):
    """The way into a sandbox whose provider knows what became of it."""

    async def why_not(self) -> ConnectError | None:
        """Explain why nothing can be done in it, where its provider knows."""


async def open_provided(
    way: ProvidedWay,
    description: Description,
    environment: Environment,
    open_plain: Callable[[], ProvidedShellAlone],
    timeout_s: float = OPEN_S,
) -> Sandbox:
    """Open it the best way that it offers; `open_plain` makes what serves without python3. Raises ConnectError."""
    try:
        return await opened(ProvidedSandbox(way, description, environment, timeout_s))
    except NoPython:
        return await opened(open_plain())


class FatedSandbox(OutpostSandbox):
    """An outpost in a sandbox that may be gone at any moment; `fate` says why, once that is known."""

    fate: ConnectError | None = None

    async def run(
        self, command: Command, *, patience_s: float | None = None, progress: Progress = silent
    ) -> Completed | Running:
        try:
            return await super().run(command, patience_s=patience_s, progress=progress)
        except LostContact as lost:
            raise lost_with(self.description.name, self.fate, lost.so_far) or lost from None


class ProvidedSandbox(FatedSandbox):
    """An outpost in it. Its provider is asked where it does not answer."""

    def __init__(
        self, way: ProvidedWay, description: Description, environment: Environment, timeout_s: float = OPEN_S
    ) -> None:
        name = description.name
        self._way = way
        self._entrance = Entrance(way, name, "python3", timeout_s)
        ports = RelayPorts(name, lambda _: self._entrance.relay())
        super().__init__(description, environment, self._enter, lambda _: self._entrance.lane(), ports)

    async def _enter(self) -> OutpostClient:
        self.fate = None
        try:
            return await self._entrance.outpost()
        except (NoPython, Unreachable) as problem:
            # Its provider knows best why it does not answer.
            self.fate = await self._way.why_not()
            if self.fate is not None:
                raise self.fate from None
            if isinstance(problem, NoPython) and self.hello:
                raise Unreachable(f"unable to open {self.description.name}: its Python starts no more") from None
            raise


class ProvidedShellAlone(ShellAlone):
    """Provided sandbox without python3: a POSIX shell in it, started for each request."""

    def __init__(self, way: ProvidedWay, description: Description, environment: Environment, place: ShellPlace) -> None:
        super().__init__(description, environment, CommandShell(way, description.name, way.why_not), place)
