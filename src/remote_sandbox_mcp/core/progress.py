"""How long work tells that it lives; a terminal, a JSON line or an MCP notification listens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Beat:
    """A sign of life: how long it has run, how much it has printed, and its last line."""

    seconds: float
    bytes: int = 0
    line: str = ""


class Progress(Protocol):
    """Takes beats; never fails and never blocks."""

    def __call__(self, beat: Beat, /) -> None: ...


def silent(beat: Beat, /) -> None:
    """A Progress that nobody listens to."""
