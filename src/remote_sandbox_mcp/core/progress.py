"""How long work tells that it lives; a terminal, a JSON line or an MCP notification listens."""

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
    """Takes beats; never fails and never blocks."""

    def __call__(self, beat: Beat, /) -> None: ...


class OutputListener(Progress, Protocol):
    """A Progress that also takes output as it comes.

    It is given the beginning of each stream (as many bytes as the command keeps), each byte once. A backend that
    learns of output only at the end gives nothing, so the result counts, not what was heard.
    """

    def heard(self, stream: StreamName, data: bytes) -> None: ...


def listener_in(progress: Progress) -> OutputListener | None:
    """The same where it takes output, too. Python's own check of a protocol costs as much as sending one."""
    return cast(OutputListener, progress) if hasattr(progress, "heard") else None


def silent(beat: Beat, /) -> None:
    """A Progress that nobody listens to."""
