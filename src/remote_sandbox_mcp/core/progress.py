"""Progress of long work: a terminal, a JSON line or an MCP notification listens to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, cast

StreamName = Literal["stdout", "stderr"]


@dataclass(frozen=True)
class Beat:
    """A sign of life: how long it has run, how much it has printed, and its last line."""

    seconds: float
    bytes: int = 0
    line: str = ""


class Progress(Protocol):
    """Takes signs of life; never raises and never blocks."""

    def __call__(self, beat: Beat, /) -> None: ...


class OutputListener(Progress, Protocol):
    """A Progress that also takes output as it comes.

    It gets the beginning of each stream (as many bytes as the command keeps), each byte once. A backend that learns of
    output only at the end passes nothing, so only the final result is complete.
    """

    def heard(self, stream: StreamName, data: bytes) -> None: ...


def listener_in(progress: Progress) -> OutputListener | None:
    """The listener, if this Progress takes output. (isinstance on a Protocol would cost as much as sending a beat.)"""
    return cast(OutputListener, progress) if hasattr(progress, "heard") else None


def silent(beat: Beat, /) -> None:
    """A Progress that drops all beats."""
