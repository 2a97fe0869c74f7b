"""A few streams from one end to the other; each item goes where there is room, and is done when it has arrived."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from ..backends.outpost.far import wire
from ..core.errors import FileProblem
from ..core.lane import Lane, Reply, RootName, numbers
from .tempo import Flow, Squeeze

# Enough to fill a line of 100 ms with one channel's window, and little enough to be held in memory.
DEPTH = 4
# Files may have grown since they were listed, and holes are told in many small frames; but an item is small.
GROWTH = 32 << 20
# A machine next door has no more than these.
NEXT_DOOR = 2


class Stream:
    """A source's lane, a target's lane, and how much is on its way between them."""

    def __init__(self, source: Lane, target: Lane, bridged: bool) -> None:
        self.source = source
        self.target = target
        # What the source says does not pass through us.
        self.bridged = bridged
        self.load = 0
        # The large files that the target's lane has open.
        self.joined: set[bytes] = set()


class Streams:
    """All streams of a transfer."""

    def __init__(
        self,
        sources: list[Lane],
        targets: list[Lane],
        roots: tuple[RootName, RootName],
        squeeze: Squeeze,
        flow: Flow,
        bridged: bool = False,
    ) -> None:
        count = max(len(sources), len(targets))
        self.all = [Stream(sources[at % len(sources)], targets[at % len(targets)], bridged) for at in range(count)]
        self.source_root, self.target_root = roots
        self.squeeze = squeeze
        self.flow = flow
        self._changed = asyncio.Event()

    async def take(self, size: int, allowed: Callable[[Stream], bool] = lambda stream: True) -> Stream:
        """The stream with the least to do, as soon as there is room for so many bytes; it is to be given back."""
        while True:
            stream = min(filter(allowed, self.all), key=lambda stream: stream.load)
            if stream.load < DEPTH and self.flow.has_room(size):
                stream.load += 1
                self.flow.sent(time.monotonic(), size)
                return stream
            self._changed.clear()
            await self._changed.wait()

    def carries_bulk(self, stream: Stream) -> bool:
        """One stream fills a short line; a second would only take turns with it."""
        return len(self.all) > NEXT_DOOR or stream is self.all[0]

    def least_busy(self) -> Stream:
        """For questions that are not bulk: they need no room of their own."""
        return min(self.all, key=lambda stream: stream.load)

    def give_back(self, stream: Stream, size: int) -> None:
        stream.load -= 1
        self.flow.arrived(time.monotonic(), size)
        self._changed.set()

    async def carry(
        self,
        stream: Stream,
        verb: str,
        raw: bytes,
        target_raw: bytes,
        expected: dict[str, Any],
        size: int,
        **order: Any,
    ) -> tuple[Reply, Reply]:
        """One item of so many bytes: what the source said of it, and what the target made of it.

        `expected` tells the target what comes, so that it need not take the source's word for it. Raises FileProblem,
        Unreachable.
        """
        number, way = next(numbers), self.squeeze.way
        received = stream.target.begin("receive", target_raw, number=number, root=self.target_root, **expected)
        if stream.bridged:
            order["bridged"] = True
        to = None if stream.bridged else stream.target
        order |= {"root": self.source_root, "squeeze": way}
        sent = stream.source.begin(verb, raw, number=number, to=to, passes=2 * size + GROWTH, **order)
        try:
            said = await sent
        except FileProblem:
            # The target waits for the end of what will not come.
            stream.target.pass_on(wire.DONE, number, b"")
            await received
            raise
        # Whoever has nothing more to say has said all, even if it did not say so.
        stream.target.pass_on(wire.DONE, number, b"")
        arrived = await received
        self.squeeze.add(time.monotonic(), arrived.number("bytes"), way)
        return said, arrived

    async def tell_target(self, stream: Stream, kind: int, body: bytes, target_raw: bytes) -> Reply:
        """One frame of our own making."""
        number = next(numbers)
        received = stream.target.begin("receive", target_raw, number=number, root=self.target_root, large=True)
        stream.target.pass_on(kind, number, body)
        stream.target.pass_on(wire.DONE, number, b"")
        return await received
