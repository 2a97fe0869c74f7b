"""Several streams between two ends: batches of items go where there is room; a failure ends all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...core.errors import FileProblem
from ...core.sync.plan import Item
from ...core.sync.transfer import Lane, Reply, RootName, numbers
from ...core.sync.tree import text_of
from ...far.outpost import wire
from .meter import Flow, Squeeze

if TYPE_CHECKING:
    from ...core.orders import PartOrder, ReceiveOrder, SendOrder

PORTION_BYTES = 8 << 20
# JSON needs at most this many bytes for one byte of a name.
MOST_ESCAPED = 6
# Fills a connection of 100 ms with one channel's window, and is little enough to hold in memory.
DEPTH = 4
# Margin for files that grew since the scan, and for holes, which are sent as many small frames.
GROWTH = 32 << 20
# Number of lanes to a nearby machine.
NEXT_DOOR = 2


def names_of(batch: list[Item]) -> bytes:
    """A folder, its names, an empty field, and so on; the format that far/source.py reads."""
    fields: list[bytes] = []
    folder: bytes | None = None
    for item in batch:
        if item.folder != folder:
            fields += [b"", item.folder] if folder is not None else [item.folder]
            folder = item.folder
        fields.append(item.name)
    return b"\0".join([*fields, b""])


def wanted_of(batch: list[Item]) -> list[str]:
    """Describe each item as the scan did, so that the target tells of those alone that came otherwise."""
    return [text_of(item.text) for item in batch]


def portions(parts: list[bytes], found: Sequence[bytes] = ()) -> Iterator[tuple[list[bytes], list[str]]]:
    """Split parts into portions that are sure to fit into a frame, each with what was found, if given."""
    begin = size = 0
    for at, part in enumerate(parts):
        size += len(part) + (MOST_ESCAPED * len(found[at]) + len('"", ') if found else 0)
        if size >= PORTION_BYTES or at == len(parts) - 1:
            yield parts[begin : at + 1], list(map(text_of, found[begin : at + 1]))
            begin, size = at + 1, 0


def batches(items: Iterable[Item], most: int, size: int) -> Iterator[list[Item]]:
    batch: list[Item] = []
    total = 0
    for item in items:
        batch.append(item)
        total += item.size
        if len(batch) >= most or total >= size:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


class Together:
    """Tasks that belong together. Leaving waits for all; the first failure cancels the others and is raised."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failure: BaseException | None = None

    def start(self, work: Coroutine[Any, Any, Any], then: Callable[[], None] = lambda: None) -> None:
        """Start a task. `then` is called at its end, even if it was cancelled before its first step."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(lambda _: then())
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None and self._failure is None:
            self._failure = task.exception()
            self._cancel()

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    def check(self) -> None:
        """Raise the first failure, if any."""
        if self._failure is not None:
            raise self._failure

    async def __aenter__(self) -> Together:
        return self

    async def __aexit__(self, kind: Any, problem: BaseException | None, trace: Any) -> None:
        if problem is not None:
            self._cancel()
        stop: asyncio.CancelledError | None = None
        while self._tasks:
            try:
                await asyncio.wait(self._tasks)
            except asyncio.CancelledError as cancelled:
                # Only after the other tasks have ended, which would otherwise go on alone.
                stop = cancelled
                self._cancel()
        if stop is not None:
            raise stop
        if problem is None:
            self.check()


class SyncStream:
    """A source's lane, a target's lane, and how much is in flight between them."""

    def __init__(self, source: Lane, target: Lane, bridged: bool) -> None:
        self.source = source
        self.target = target
        # The source's frames go to the target directly, not through us.
        self.bridged = bridged
        self.load = 0
        # Large files that the target's lane has open.
        self.joined: set[bytes] = set()


class Streams:
    """All streams of a transfer."""

    def __init__(
        self, sources: list[Lane], targets: list[Lane], roots: tuple[RootName, RootName], squeeze: Squeeze, flow: Flow,
        bridged: bool = False,
    ) -> None:  # fmt: skip
        count = max(len(sources), len(targets))
        self.all = [SyncStream(sources[at % len(sources)], targets[at % len(targets)], bridged) for at in range(count)]
        self.source_root, self.target_root = roots
        self.squeeze = squeeze
        self.flow = flow
        self._changed = asyncio.Event()

    async def take(self, size: int, allowed: Callable[[SyncStream], bool] = lambda stream: True) -> SyncStream:
        """The least busy stream, once it has room for `size` bytes; give it back afterwards."""
        while True:
            stream = min(filter(allowed, self.all), key=lambda stream: stream.load)
            if stream.load < DEPTH and self.flow.has_room(size):
                stream.load += 1
                self.flow.sent(time.monotonic(), size)
                return stream
            self._changed.clear()
            await self._changed.wait()

    def carries_bulk(self, stream: SyncStream) -> bool:
        """Whether it takes large data: one stream fills a short connection, a second would only compete."""
        return len(self.all) > NEXT_DOOR or stream is self.all[0]

    def least_busy(self) -> SyncStream:
        """For small requests, which need no room."""
        return min(self.all, key=lambda stream: stream.load)

    def give_back(self, stream: SyncStream, size: int) -> None:
        stream.load -= 1
        self.flow.arrived(time.monotonic(), size)
        self._changed.set()

    async def carry(
        self, stream: SyncStream, order: SendOrder | PartOrder, raw: bytes, expected: ReceiveOrder, target_raw: bytes,
        size: int,
    ) -> tuple[Reply, Reply]:  # fmt: skip
        """Carry one item of `size` bytes; returns the source's and the target's reply.

        `expected` tells the target what comes, so that it need not take the source's word for it. Raises FileProblem,
        Unreachable.
        """
        number, way = next(numbers), order["squeeze"]
        received = stream.target.begin(expected, target_raw, number=number)
        if stream.bridged:
            order["bridged"] = True
        to = None if stream.bridged else stream.target
        sent = stream.source.begin(order, raw, number=number, to=to, passes=2 * size + GROWTH)
        try:
            said = await sent
        except FileProblem:
            # The target still waits for the end of data that will not come.
            stream.target.pass_on(wire.DONE, number, b"")
            await received
            raise
        # End of the source's stream implies end of data, even without DONE.
        stream.target.pass_on(wire.DONE, number, b"")
        arrived = await received
        self.squeeze.add(time.monotonic(), arrived.number("bytes"), way)
        return said, arrived

    async def send_to_target(self, stream: SyncStream, kind: int, body: bytes, target_raw: bytes) -> Reply:
        """Send one frame of our own to the target."""
        number = next(numbers)
        order: ReceiveOrder = {"verb": "receive", "root": self.target_root, "large": True}
        received = stream.target.begin(order, target_raw, number=number)
        stream.target.pass_on(kind, number, body)
        stream.target.pass_on(wire.DONE, number, b"")
        return await received
