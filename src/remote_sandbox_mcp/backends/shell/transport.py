"""Requirements of the shell program on a backend: a transport that runs it, and the errors that one may raise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ...core.errors import ConnectError, SandboxError

FULL = "No space left on device"


class Paused(ConnectError):
    """The container is paused: nothing runs in it until it is resumed."""


class Gone(ConnectError):
    """The container is gone for good, with all that ran in it."""


class NoRoom(SandboxError):
    """There is no room left on a disk."""


def unheard(line: str) -> None:
    """Ignore a line: for requests that need only the complete answer."""


@dataclass
class ShellRequest:
    """One evaluation of the program by a shell, with its variables."""

    variables: Mapping[str, str]
    # Called with each line of the answer as it comes, if the transport can do that.
    heard: Callable[[str], None] = unheard
    # How many bytes the answer may have.
    most: int = 1 << 20
    # Whether it may pass requests that run commands and so take long.
    urgent: bool = True
    # Whether it may have reached the far side.
    sent: bool = False


@dataclass(frozen=True)
class Printed:
    """The lines of a complete answer, and those that programs printed on standard error."""

    lines: list[str]
    complaints: tuple[str, ...] = ()


class Transport(Protocol):
    """Runs the program in one place."""

    @property
    def is_open(self) -> bool: ...

    async def run(self, request: ShellRequest) -> Printed:
        """Run a request. Raises ConnectError; Unreachable if the same may be asked again; NoRoom; Unsupported."""

    async def upload(self, base: str, name: str, content: bytes) -> str:
        """Write content that does not fit into a variable to `base`; returns its path. Raises SandboxError, NoRoom."""

    async def why_not(self) -> ConnectError | None:
        """Explain why the place cannot answer now, if the platform knows; None otherwise."""

    async def close(self) -> None: ...


@dataclass(frozen=True)
class ShellPlace:
    """Differences between places without Python: their name, and whether their jobs must outlive a restart."""

    name: str
    # "container" or "machine".
    noun: str
    jobs_at_home: bool

    @property
    def at(self) -> str:
        return f"{'on' if self.noun == 'machine' else 'in'} the {self.noun}"

    @property
    def unknown(self) -> str:
        """The sentence about a run or job that is not found."""
        return f"it is not known {self.at.replace('the', 'this')}"
