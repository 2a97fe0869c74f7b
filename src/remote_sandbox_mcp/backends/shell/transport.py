"""What the shell program needs of a backend: a way to run it, and what may go wrong on that way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ...core.errors import ConnectError, SandboxError

FULL = "No space left on device"


class Paused(ConnectError):
    """Nothing runs in it until it is resumed."""


class Gone(ConnectError):
    """It does not come back, nor does what ran in it."""


class NoRoom(SandboxError):
    """There is no room left on a disk."""


def unheard(line: str) -> None:
    """For requests whose answer matters only as a whole."""


@dataclass
class Request:
    """One evaluation of the program by a shell, with the variables that it reads."""

    variables: Mapping[str, str]
    # Called with each line of the answer as it comes, where the transport can tell.
    heard: Callable[[str], None] = unheard
    # How many bytes the answer may have.
    most: int = 1 << 20
    # Does not wait behind requests that are not.
    urgent: bool = True
    # Whether it may have reached the far side.
    sent: bool = False


@dataclass(frozen=True)
class Printed:
    """The lines of a whole answer, and what programs complained about on standard error."""

    lines: list[str]
    complaints: tuple[str, ...] = ()


class Transport(Protocol):
    """Runs the program in one place."""

    @property
    def is_open(self) -> bool: ...

    async def run(self, request: Request) -> Printed:
        """Raises ConnectError; Unreachable where the same may be asked again; NoRoom; Unsupported."""
        ...

    async def upload(self, base: str, name: str, content: bytes) -> str:
        """The path, in `base`, of what is more than fits into a variable. Raises SandboxError, NoRoom."""
        ...

    async def why_not(self) -> ConnectError | None:
        """Why nothing can be done there now, where somebody else knows."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True)
class Place:
    """What places without Python differ in: what they are called, and whether their jobs must outlive a restart."""

    name: str
    # "container" or "machine".
    noun: str
    jobs_at_home: bool

    @property
    def at(self) -> str:
        return f"{'on' if self.noun == 'machine' else 'in'} the {self.noun}"

    @property
    def unknown(self) -> str:
        """What is said of a run or job that is not there."""
        return f"it is not known {self.at.replace('the', 'this')}"
