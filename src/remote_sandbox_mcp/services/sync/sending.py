"""Sends what a plan says: small files in batches, large ones in parts, over more lanes the longer the round trip."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

from ...core.errors import FileProblem, SandboxError
from ...core.orders import ReceiveOrder, SendOrder
from ...core.sandboxes.files import Problem
from ...core.sync.plan import LARGE, Item, Items, Plan
from ...core.sync.transfer import Lane
from ...core.sync.tree import text_of
from .ends import Ends
from .large import IndexMemory, LargeFile
from .meter import Flow, Meter, Squeeze, Tally
from .streams import NEXT_DOOR, Streams, SyncStream, Together, batches, names_of, wanted_of

BATCH_FILES, BATCH_BYTES = 256, 512 << 10
# By how much the files of one batch may have grown since they were listed.
MOST_GROWN = 8 << 20
MANY_LANES = 8
# A lane that has to be opened takes about as long as so many batches on one that is open; on this computer, where a
# process is started for it, as long as many more.
WORTH_A_LANE, WORTH_HERE = 16, 64
# Each takes a few round trips, which over a long distance cost more than its bytes.
LARGE_AT_ONCE = 16

# Opens a lane to the target from the source's machine. Raises Unsupported.
Bridging = Callable[[Lane], Awaitable[Lane]]


class Sending:
    """The sending part of a sync, from opening lanes to the last answer."""

    def __init__(
        self, ends: Ends, plan: Plan, chunks: IndexMemory, tally: Tally, meter: Meter, bridge: Bridging | None
    ) -> None:
        self.ends = ends
        self.plan = plan
        self.chunks = chunks
        self.tally = tally
        self.meter = meter
        self._bridge = bridge
        self.bridged: list[Lane] = []

    async def send(self) -> None:
        """Send the planned items. Raises FileProblem where nothing more can be written, Unreachable."""
        items = self.plan.send
        streams = await self._open_streams(items)
        small = (item for item in items if item.size <= LARGE)
        large = [item for item in items if item.size > LARGE]
        async with Together() as tasks:
            tasks.start(self._send_large(streams, large))
            for batch in batches(small, BATCH_FILES, BATCH_BYTES):
                size = sum(item.size for item in batch)
                stream = await streams.take(size)
                tasks.check()
                tasks.start(self._send_batch(streams, stream, batch), partial(streams.give_back, stream, size))

    async def _open_streams(self, items: Items) -> Streams:
        """More streams the longer the round trip, but no more than there is to send."""
        source, target = self.ends.source, self.ends.target
        pieces = max(1, items.bytes // BATCH_BYTES, len(items) // BATCH_FILES)
        counts = [min(pieces, MANY_LANES if end.is_far else NEXT_DOOR) for end in (source, target)]
        worth = [pieces // (WORTH_A_LANE if end.place.sandbox else WORTH_HERE) for end in (source, target)]
        await asyncio.gather(source.widen(counts[0], worth[0]), target.widen(counts[1], worth[1]))
        await self._cross_directly(source.taken)
        targets = self.bridged or target.taken
        common = [way for way in source.lane.squeezers if way in targets[0].squeezers]
        # Over a long distance compression starts switched on: a small tree is sent before a measurement is ready.
        squeeze = Squeeze(common[0] if common else "", squeezing=bool(common) and (source.is_far or target.is_far))
        roots = source.root_name, target.root_name
        flow = Flow(max(source.lanes.round_trip_s, target.lanes.round_trip_s))
        return Streams(source.taken, targets, roots, squeeze, flow, bool(self.bridged))

    async def _cross_directly(self, sources: list[Lane]) -> None:
        """Let files pass by us if the operator allows the source to reach the target itself, and it can."""
        if self._bridge is None:
            return
        found = await asyncio.gather(*map(self._bridge, sources), return_exceptions=True)
        self.bridged = [lane for lane in found if not isinstance(lane, BaseException)]
        for problem in found:
            if isinstance(problem, BaseException) and not isinstance(problem, SandboxError):
                raise problem
        if len(self.bridged) < len(sources):
            await self.leave_bridges()

    async def leave_bridges(self) -> None:
        bridged, self.bridged = self.bridged, []
        await asyncio.gather(*(lane.close() for lane in bridged))

    async def _send_batch(self, streams: Streams, stream: SyncStream, batch: list[Item]) -> None:
        order: SendOrder = {"verb": "send", "root": streams.source_root, "squeeze": streams.squeeze.way}
        names, size = names_of(batch), sum(item.size for item in batch)
        expected: ReceiveOrder = {
            "verb": "receive",
            "root": streams.target_root,
            "wanted": wanted_of(batch),
            "found": list(map(text_of, self.plan.found_of(batch))),
            "most": size + MOST_GROWN,
        }
        try:
            target_names = self.ends.target_names(batch)
            said, arrived = await streams.carry(stream, order, names, expected, target_names, size)
        except FileProblem as problem:
            for item in batch:
                self.tally.note(Problem(text_of(item.path), str(problem)))
            return
        self.tally.hear(said)
        self.tally.hear(arrived)
        self.tally.sent += arrived.number("files")
        self.tally.bytes += arrived.number("bytes")
        self.meter.add(time.monotonic(), len(batch), size, batch[-1].path)

    async def _send_large(self, streams: Streams, items: list[Item]) -> None:
        room = asyncio.Semaphore(LARGE_AT_ONCE)
        async with Together() as tasks:
            for item in items:
                await room.acquire()
                tasks.check()
                tasks.start(self._send_one_large(streams, item), room.release)

    async def _send_one_large(self, streams: Streams, item: Item) -> None:
        where = f"{self.ends.target.place.sandbox}:{self.ends.target.root}"
        name, found = self.ends.target.name or item.name, self.plan.found_at(item.path)
        try:
            file = LargeFile(item, name, found, streams, self.meter, self.chunks, where)
            if reply := await file.carry():
                self.tally.otherwise[item.path] = file.put
                self.tally.note(Problem(text_of(item.path), reply))
            self.tally.sent += 1
            self.tally.bytes += item.size
            self.meter.add(time.monotonic(), 1, 0, item.path)
        except FileProblem as problem:
            self.tally.note(Problem(text_of(item.path), str(problem)))
