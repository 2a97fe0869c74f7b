"""The machine of an engine or a cluster: starts programs on it over the connection that it has anyway."""

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
        """Start a program by a line for the login shell. Raises ConnectError; Unsupported if too many run already."""
        ...


class MachineWay:
    """A backends.command.way.Way to a machine, which is opened when first needed and shared with its other users."""

    def __init__(self, name: str, open_machine: Callable[[], Awaitable[Sandbox]]) -> None:
        self._name = name
        self._open_machine = open_machine

    @property
    def what(self) -> str:
        return f"the connection to {self._name}"

    def explain(self, complaints: bytes) -> ConnectError | None:
        """None: the machine's connection has errors of its own."""
        return None

    async def open(self, shell_line: str) -> CommandLine:
        machine = await self._open_machine()
        if not isinstance(machine, Host):
            raise Unsupported(f"{self._name} is reached in a way over which no program can be started beside it")
        return await machine.start(shell_line)
