"""The machine of an engine or a cluster: programs are started on it beside whatever else its connection carries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable

from ...core.errors import ConnectError, Unsupported
from ...core.sandbox import Sandbox
from .way import CommandLine


@runtime_checkable
class Host(Protocol):
    """A sandbox on which any program can be started, with a line to it."""

    async def start(self, line: str) -> CommandLine:
        """Start it by a line for the login shell. Raises ConnectError; Unsupported where no more can be started."""
        ...


class MachineWay:
    """See backends.command.way.Way: the machine is opened with its first use, and shared with all who use it."""

    def __init__(self, name: str, open_machine: Callable[[], Awaitable[Sandbox]]) -> None:
        self._name = name
        self._open_machine = open_machine

    @property
    def what(self) -> str:
        return f"the connection to {self._name}"

    def explain(self, complaints: bytes) -> ConnectError | None:
        """Nothing: the machine's own connection explains itself."""
        return None

    async def open(self, shell_line: str) -> CommandLine:
        machine = await self._open_machine()
        if not isinstance(machine, Host):
            raise Unsupported(f"{self._name} is reached in a way over which no program can be started beside it")
        return await machine.start(shell_line)
