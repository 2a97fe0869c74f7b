"""A lane: a further line to a sandbox on which files move, and nothing else can be done."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from .errors import FileProblem
from .files import Problem

# What an answer without data may take: the problems of two hundred files, each with a long path.
SMALL_ANSWER = 4 << 20
# What a source may say for one request where nobody knows better: as much as a frame may hold.
MOST_PASSED = 64 << 20
# Requests are numbered across all lanes, because a source's frames are handed to a target as they are.
numbers = itertools.count(1)
# How a lane is told which folder a request is about: its path; or its path without links, and the device and inode of
# all that was found along it, which it must still be.
RootName = str | list[Any]


@dataclass(frozen=True)
class Reply:
    """The answer to a request: its bytes, if it has any, and its last words."""

    out: bytes = b""
    end: dict[str, Any] = field(default_factory=dict)

    def number(self, name: str) -> int:
        """Raises FileProblem: what another machine answers may be anything."""
        value = self.end.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise FileProblem(f"a machine's answer cannot be understood: {name} is not a number", "hostile")
        return value

    def text(self, name: str) -> str:
        """Raises FileProblem."""
        value = self.end.get(name)
        if not isinstance(value, str):
            raise FileProblem(f"a machine's answer cannot be understood: {name} is not a text", "hostile")
        return value

    def problems(self) -> list[Problem]:
        """What it says of single entries. Raises FileProblem."""
        try:
            return [Problem(str(path), str(reason)) for path, reason in self.end.get("problems", ())]
        except (TypeError, ValueError):
            raise FileProblem("a machine's answer cannot be understood: its problems are no list", "hostile") from None


class Lane(Protocol):
    """Takes requests, any number at once, and does them in the order of asking.

    What is asked for and answered is described in docs/architecture.md; the sides that speak it are
    backends/outpost/far/lane.py and, for machines without Python, backends/ssh/sftp_lane.py.
    """

    @property
    def name(self) -> str:
        """Whose lane it is, for sentences."""
        ...

    @property
    def is_alive(self) -> bool: ...

    @property
    def squeezers(self) -> tuple[str, ...]:
        """How it can compress and expand, best first."""
        ...

    @property
    def moved(self) -> int:
        """Bytes that went over the line so far, both ways."""
        ...

    @property
    def knows_pieces(self) -> bool:
        """Whether it can compare files without moving them (mark, index, index_old, blocks, partial_blocks)."""
        ...

    def begin(
        self,
        verb: str,
        raw: bytes = b"",
        *,
        number: int = 0,
        to: Lane | None = None,
        heard: Callable[[bytes], None] | None = None,
        room: int = SMALL_ANSWER,
        passes: int = MOST_PASSED,
        **order: Any,
    ) -> Awaitable[Reply]:
        """Send a request; the answer may be awaited, or not. It takes no more than `room` bytes.

        Raises FileProblem (with the far side's reason) or Unreachable when it is awaited, never before.
        Frames for `number` that a source says are handed to the lane `to`, no more than `passes` bytes of them; bytes
        it answers, to `heard` if given, which raises FileProblem where it wants no more.
        """
        ...

    def pass_on(self, kind: int, number: int, body: bytes) -> None:
        """A frame for a request that receives."""
        ...

    async def room(self) -> None:
        """Wait until most of what was handed over has left."""
        ...

    async def close(self) -> None:
        """End it at once, with whatever it is doing."""
        ...
