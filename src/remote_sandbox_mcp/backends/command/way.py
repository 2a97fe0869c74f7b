"""Ways to start a command that gives a shell: as a process of this computer, or over the connection of a machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ...core.errors import ConnectError, SandboxError, Unreachable, Unsupported
from ...core.sandboxes.sandbox import Sandbox
from ...core.texts.text import harmless
from ...local.processes.programs import NotUsed, by_path
from ...local.processes.variables import home_folder
from ...local.waiting import undone_by, within
from ..link import pipe
from ..link.lane import WideLine

# How many of the last bytes of a command's standard error are kept.
KEPT = 256 << 10
# A command whose output has ended is checked for its own end this often and so many times; after that its standard
# error may take LAST_WORDS_S to end.
CHECK_S, LOOKS, LAST_WORDS_S = 0.01, 100, 0.2


@dataclass(frozen=True)
class CommandEnding:
    """End of a command: its exit status (None if unknown) and the last part of its standard error."""

    status: int | None = None
    complaints: bytes = b""


class CommandLine(WideLine, Protocol):
    """Input and output of one started command."""

    @property
    def complaints(self) -> bytes:
        """The last part of its standard error so far."""

    async def ending(self) -> CommandEnding:
        """Return how it ended; waits a moment for that. Must be called before close."""


class Way(Protocol):
    """Starts a command that gives a shell, any number of times. Each start has its own line."""

    @property
    def what(self) -> str:
        """Name of the command in sentences, such as "its command docker"."""

    async def open(self, shell_line: str) -> CommandLine:
        """Start it with the line that its shell is to run. Raises ConnectError."""

    def explain(self, complaints: bytes) -> SandboxError | None:
        """The error for a message on standard error that this way knows; None for others, as by default for all."""
        return None


@dataclass(frozen=True)
class LocalCommand(Way):
    """A command from the operator's configuration, on this computer. It is started without a shell of ours."""

    argv: Sequence[str]
    environ: Mapping[str, str] = field(repr=False)

    @property
    def what(self) -> str:
        """The name of the program only: its arguments may hold secrets."""
        return f"its command {os.path.basename(self.argv[0])}"

    async def open(self, shell_line: str) -> ProcessLine:
        try:
            words = by_path([*self.argv, shell_line], self.environ)
            # Not in the current folder, which belongs to a project: many programs read settings from it.
            return await ProcessLine.start(words, self.environ, home_folder())
        except NotUsed as problem:
            remedy = "name it by its whole path in config.toml if it is the right one"
            raise ConnectError.of_parts("", f"{self.what} was found, but {problem.strerror}", remedy) from None
        except FileNotFoundError:
            remedy = "install it, or name it by its whole path in config.toml"
            raise ConnectError.of_parts("", f"{self.what} cannot be found", remedy) from None
        except OSError as problem:
            raise Unreachable.of_parts("", f"{self.what} cannot be started: {problem.strerror}") from None


class ProcessLine:
    """A process as a CommandLine. Its standard error is read apart, so that it is not taken for an answer."""

    def __init__(self, line: pipe.PipeLine, complaints: Complaints) -> None:
        self._line = line
        self._complaints = complaints
        self.write, self.read, self.drain = line.write, line.read, line.drain

    @classmethod
    async def start(cls, argv: Sequence[str], environ: Mapping[str, str], folder: str) -> ProcessLine:
        """Start the process in a session of its own, without a terminal. Raises OSError."""
        near, far = socket.socketpair()
        near.setblocking(False)
        with far:
            loop = asyncio.get_running_loop()
            _, complaints = await loop.create_connection(Complaints, sock=near)
            with undone_by(complaints.close):
                line = await pipe.start(argv, environ, folder=folder, complaints=far.fileno())
        return cls(line, complaints)

    async def ending(self) -> CommandEnding:
        for _ in range(LOOKS):
            if self._line.status() is not None:
                break
            await asyncio.sleep(CHECK_S)
        # A process that it left behind may keep its standard error open for long.
        with contextlib.suppress(asyncio.TimeoutError):
            await within(self._complaints.over.wait(), LAST_WORDS_S)
        return CommandEnding(self._line.status(), self.complaints)

    @property
    def complaints(self) -> bytes:
        return bytes(self._complaints.heard)

    def close(self) -> None:
        """End the process with all that it has started."""
        self._line.close()
        self._complaints.close()


class Complaints(asyncio.Protocol):
    """Reads a command's standard error, so that the command never blocks on it, and keeps the last part."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.over = asyncio.Event()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard += data
        del self.heard[:-KEPT]

    def connection_lost(self, exc: Exception | None) -> None:
        self.over.set()

    def close(self) -> None:
        if self._transport:
            self._transport.abort()


def last_words(said: bytes, limit: int = 300) -> str:
    """The last lines of a command's output as one line that is safe to show; cut at the front if it is long.

    >>> last_words(b"first\\r\\nError: \\x1b[31mno such container: web\\n\\n")
    'first / Error: no such container: web'
    """
    lines = [line.strip() for line in harmless(said[-4096:]).split("\n") if line.strip()]
    text = " / ".join(lines[-3:])
    return text if len(text) <= limit else f"...{text[-limit:]}"


@runtime_checkable
class Host(Protocol):
    """A sandbox on which any program can be started, with a line to it."""

    async def start(self, line: str, *, walled: bool = True) -> CommandLine:
        """Start a program by a line for the login shell, within the machine's walls if it has some.

        Raises ConnectError; Unsupported if too many run already.
        """


class MachineWay(Way):
    """A Way to a machine, which is opened when first needed and shared; its connection has errors of its own.

    Only for lines of which no caller chooses a word is it not `walled`.
    """

    def __init__(self, name: str, open_machine: Callable[[], Awaitable[Sandbox]], *, walled: bool = True) -> None:
        self._name = name
        self._open_machine = open_machine
        self._walled = walled

    @property
    def what(self) -> str:
        return f"the connection to {self._name}"

    async def open(self, shell_line: str) -> CommandLine:
        machine = await self._open_machine()
        if not isinstance(machine, Host):
            raise Unsupported(f"{self._name} is reached in a way over which no program can be started beside it")
        return await (machine.start(shell_line) if self._walled else machine.start(shell_line, walled=False))
