"""One large file: resumed, sent as changes, or sent whole; always in parts over all streams."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Protocol

from ...core import orders
from ...core.errors import FileProblem
from ...core.sandboxes.foreign import to_text, to_whole
from ...core.sync.plan import FilePart, Item, Matcher, joined
from ...core.sync.transfer import SMALL_ANSWER, Reply
from ...core.sync.tree import child, text_of
from ...far.lane.chunks import CHUNK, LEAST_CHUNK
from ...far.lane.large import SAME
from ...far.outpost import wire
from .meter import Meter
from .streams import NEXT_DOOR, Streams, SyncStream, Together

BLOCK = 1 << 20
BLOCKS_AT_ONCE = 64
# Smaller files are sent whole: comparing them would take as long.
COMPARED_FROM = 4 << 20
SPAN = 32 << 20
# An old file this many times as large is not compared: reading it would take longer than sending the new one.
GROWN = 8
MOST_INDEX = 128 << 20


class IndexMemory(Protocol):
    """Remembers the index of files that were sent, so that the far side need not read them again."""

    def get(self, key: bytes) -> bytes | None: ...

    def put(self, key: bytes, blob: bytes) -> None: ...


def place_stem(place: bytes) -> bytes:
    """Common prefix of the names of all partial files for one place."""
    return hashlib.sha256(place).hexdigest()[:8].encode()


class LargeFile:
    """One large file on its way to the target."""

    def __init__(
        self, item: Item, target_name: bytes, found: bytes, streams: Streams, meter: Meter, chunks: IndexMemory,
        where: str,
    ) -> None:  # fmt: skip
        self.item = item
        # What the scan found in its place at the target.
        self.found = found
        self.streams = streams
        self.meter = meter
        self.chunks = chunks
        # Identifies the target among all remembered indexes.
        self.where = where
        self.raw = item.folder + b"\0" + item.name
        self.size = item.meta.size
        place = item.folder + b"\0" + target_name
        facts = f"{self.size}:{item.meta.mtime}:".encode() + place
        self.key = place_stem(place) + hashlib.sha256(facts).hexdigest()[:16].encode()
        self.target_raw = item.folder + b"\0" + target_name + b"\0" + self.key
        self.counted = 0
        self.partial = b""
        self.fresh = True
        self.old_state = ""
        self.mark = self.index = b""
        # What it is at the target, once it is in place.
        self.put = item.text

    async def carry(self) -> str:
        """Put it in place; returns a note for the user, or nothing. Raises FileProblem, Unreachable."""
        try:
            return await self._try()
        except FileProblem as problem:
            if problem.reason != "stale":
                raise
        # Another transfer worked on it: check the partial file as after a cut.
        spare, self.index = self.partial, b""
        reply = await self._try()
        if spare != self.partial:
            target, root = self.streams.least_busy().target, self.streams.target_root
            await target.begin({"verb": "tidy", "root": root}, child(self.item.folder, spare))
        return reply

    async def _try(self) -> str:
        first = self.streams.least_busy()
        try:
            await self._begin(first)
            if not self.fresh and self._knows_pieces(first):
                await self._send(await self._missing(first))
            elif self.old_state and self.size >= COMPARED_FROM and self._knows_pieces(first):
                await self._send_changes(first)
            else:
                await self._send([FilePart(0, self.size)])
            return await self._commit(first)
        except FileProblem:
            # The sync goes on, and a lane that is slow to leave would keep the next one from the partial file.
            await asyncio.gather(*self._leave(), return_exceptions=True)
            raise
        finally:
            self._leave()

    def _leave(self) -> list[Awaitable[Reply]]:
        """Let every lane that has the partial file open, and locked, close it."""
        root, joined = self.streams.target_root, [each for each in self.streams.all if self.key in each.joined]
        for stream in joined:
            stream.joined.discard(self.key)
        return [stream.target.begin({"verb": "leave", "root": root}, self.key) for stream in joined]

    def _knows_pieces(self, stream: SyncStream) -> bool:
        return stream.source.knows_pieces and stream.target.knows_pieces

    async def _begin(self, stream: SyncStream) -> None:
        root = self.streams.target_root
        order: orders.BeginOrder = {"verb": "begin", "root": root, "size": self.size, "first": True}
        reply = await stream.target.begin(order, self.target_raw)
        stream.joined.add(self.key)
        self.partial = reply.text("partial").encode("utf-8", "surrogateescape")
        self.fresh, old = bool(reply.end.get("fresh")), reply.end.get("old")
        if isinstance(old, dict) and to_whole(old.get("size")) <= GROWN * self.size:
            self.old_state = to_text(old.get("state"))

    async def _commit(self, stream: SyncStream) -> str:
        """Finish it. If it changed while it was read, it gets the older time, so that the next sync notices."""
        meta = self.item.meta
        now = await stream.source.begin({"verb": "check", "root": self.streams.source_root}, self.raw)
        changed = now.number("size") != self.size or now.number("mtime") != meta.mtime
        order: orders.CommitOrder = {
            "verb": "commit",
            "root": self.streams.target_root,
            "mode": meta.mode,
            "mtime": meta.mtime,
            "size": min(self.size, now.number("size")),
            "uses_old": bool(self.index),
            "found": text_of(self.found),
        }
        try:
            reply = await stream.target.begin(order, self.key)
        except FileProblem as problem:
            # Another transfer of the same file has put it in place, with what both wrote.
            raise FileProblem(str(problem), "stale" if problem.reason == "ENOENT" else problem.reason) from None
        stream.joined.discard(self.key)
        self.put = b"f%o %d %d" % (meta.mode, order["size"], meta.mtime)
        if self.index and not changed:
            self.chunks.put(self._chunks_key(reply.text("state")), bytes([len(self.mark)]) + self.mark + self.index)
        return "changed while it was read; sync again to be sure" if changed else ""

    # Parts

    async def _send(self, spans: Iterable[FilePart]) -> None:
        async with Together() as tasks:
            for span in spans:
                await self._send_span(tasks, span, self.streams.carries_bulk)

    async def _send_span(self, tasks: Together, span: FilePart, allowed: Callable[[SyncStream], bool]) -> None:
        most = 4 * BLOCK if len(self.streams.all) <= NEXT_DOOR else BLOCK
        offset, end = span.offset, span.offset + span.length
        while offset < end:
            length = min(most, self.streams.flow.step, end - offset)
            stream = await self._next(tasks, length, allowed)
            tasks.start(self._send_part(stream, offset, length), partial(self.streams.give_back, stream, length))
            offset += length

    async def _next(self, tasks: Together, size: int, allowed: Callable[[SyncStream], bool]) -> SyncStream:
        """A stream with free capacity whose lane has the file open."""
        stream = await self.streams.take(size, allowed)
        try:
            tasks.check()
        except BaseException:
            self.streams.give_back(stream, size)
            raise
        if not any(self.key in other.joined and other.target is stream.target for other in self.streams.all):
            # What a lane is asked it does in order, so this needs no waiting.
            root = self.streams.target_root
            order: orders.JoinOrder = {"verb": "join", "root": root, "size": self.size, "fresh": self.fresh}
            stream.target.begin(order, self.target_raw + b"\0" + self.partial)
            stream.joined.add(self.key)
        return stream

    async def _send_part(self, stream: SyncStream, offset: int, length: int) -> None:
        streams = self.streams
        order: orders.PartOrder = {
            "verb": "part",
            "root": streams.source_root,
            "squeeze": streams.squeeze.way,
            "offset": offset,
            "length": length,
        }
        expected: orders.ReceiveOrder = {"verb": "receive", "root": streams.target_root, "large": True}
        await streams.carry(stream, order, self.raw, expected, self.key, length)
        self._arrived(length)

    def _arrived(self, length: int) -> None:
        length = min(length, self.size - self.counted)
        self.counted += length
        self.meter.add(time.monotonic(), 0, length, self.item.path)

    # Resume

    async def _missing(self, stream: SyncStream) -> Iterable[FilePart]:
        """The blocks that a partial file of an earlier transfer lacks."""
        count, spans = -(-self.size // BLOCK), []
        for start in range(0, count, BLOCKS_AT_ONCE):
            at_once = min(BLOCKS_AT_ONCE, count - start)
            ours, theirs = await self._blocks(stream, start, at_once)
            for at in range(at_once):
                offset, digest = (start + at) * BLOCK, slice(16 * at, 16 * at + 16)
                length = min(BLOCK, self.size - offset)
                if ours.out[digest] == theirs.out[digest]:
                    self._arrived(length)
                else:
                    spans.append(FilePart(offset, length))
        return joined(spans)

    async def _blocks(self, stream: SyncStream, start: int, count: int) -> tuple[Reply, Reply]:
        """The digests of so many blocks, here and in the partial file."""
        roots = self.streams.source_root, self.streams.target_root
        ours: orders.BlocksOrder = {"verb": "blocks", "root": roots[0], "start": start, "count": count, "block": BLOCK}
        theirs: orders.PartialBlocksOrder = {**ours, "verb": "partial_blocks", "root": roots[1]}
        return await asyncio.gather(stream.source.begin(ours, self.raw), stream.target.begin(theirs, self.key))

    # Changes

    async def _send_changes(self, stream: SyncStream) -> None:
        """Cut both versions by content; copy what the old file has, while the new one is still being read."""
        marks = self.chunks.get(self._chunks_key(self.old_state)) or b"\0"
        self.mark, theirs = marks[1 : 1 + marks[0]], marks[1 + marks[0] :]
        self.mark = self.mark or await self._choose_mark(stream)
        reply: asyncio.Queue[bytes] = asyncio.Queue()
        order: orders.RootOrder = {"verb": "index", "root": self.streams.source_root}
        raw, room = self.raw + b"\0" + self.mark, self._room_of_index
        asked = stream.source.begin(order, raw, heard=reply.put_nowait, room=room)
        reading = asyncio.ensure_future(asked)
        reading.add_done_callback(lambda _: reply.put_nowait(b""))
        async with Together() as tasks:
            theirs = theirs or await self._index_old(stream)
            matcher, index = Matcher(theirs, SPAN), []
            while data := await reply.get():
                index.append(data)
                for span in matcher.feed(data):
                    await self._carry_span(tasks, span, stream)
            await reading
            for span in matcher.rest():
                await self._carry_span(tasks, span, stream)
            self.index = b"".join(index)

    async def _choose_mark(self, stream: SyncStream) -> bytes:
        return (await stream.source.begin({"verb": "mark", "root": self.streams.source_root}, self.raw)).out

    async def _index_old(self, stream: SyncStream) -> bytes:
        order: orders.IndexOldOrder = {"verb": "index_old", "root": self.streams.target_root}
        raw, room = self.key + b"\0" + self.mark, self._room_of_index
        return (await stream.target.begin(order, raw, room=room)).out

    @property
    def _room_of_index(self) -> int:
        """Bound for an index: the old file, or this one by now, may be larger than planned."""
        return min(MOST_INDEX, SMALL_ANSWER + CHUNK.size * (GROWN * self.size // LEAST_CHUNK))

    def _chunks_key(self, state: str) -> bytes:
        facts = (self.where.encode("utf-8", "surrogateescape"), self.item.path, state.encode())
        return hashlib.sha256(b"\0".join(facts)).digest()

    async def _carry_span(self, tasks: Together, span: FilePart, reader: SyncStream) -> None:
        others = any(stream.source is not reader.source for stream in self.streams.all)
        # A file that grows is sent up to its planned size.
        span = replace(span, length=min(span.length, self.size - span.offset))
        if span.length <= 0:
            return
        if span.place < 0:
            # Not on the reader's lane, which is busy.
            await self._send_span(tasks, span, lambda stream: stream.source is not reader.source or not others)
        else:
            stream = await self._next(tasks, 0, anywhere)
            tasks.start(self._copy(stream, span), partial(self.streams.give_back, stream, 0))

    async def _copy(self, stream: SyncStream, span: FilePart) -> None:
        body = SAME.pack(span.offset, span.place, span.length)
        await self.streams.send_to_target(stream, wire.COPY, body, self.key)
        self._arrived(span.length)


def anywhere(stream: SyncStream) -> bool:
    return True
