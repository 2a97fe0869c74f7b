"""One sync: scan both ends, plan, carry out. Push and pull are the same with the ends exchanged."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from ..backends.outpost.far.target import ATTRIBUTES
from ..core.errors import FileProblem, SandboxError
from ..core.files import Problem
from ..core.lane import Lane
from ..core.plan import LARGE, Attributes, Item, Plan, check_deletion, make_plan
from ..core.transfer import Headway, Listener, Order, Outcome, unheard
from ..core.tree import Tree, read_meta
from .ends import End, Ends
from .large import Chunks, LargeFile
from .streams import NEXT_DOOR, Stream, Streams
from .tempo import Flow, Meter, Squeeze
from .together import Together

BATCH_FILES, BATCH_BYTES = 256, 512 << 10
MANY_LANES = 8
# Each has a few questions to wait for, which takes longer than its bytes where the line is long.
LARGE_AT_ONCE = 16
PORTION_BYTES = 8 << 20
SLASH = ord("/")
MOST_PROBLEMS = 100
# What ends a transfer instead of being told of a single file.
FATAL = ("No space left on device", "Disk quota exceeded", "Read-only file system")
# What comes of an answer that is not one to what was asked, its machine being broken or hostile.
NONSENSE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, struct.error)

# Makes a lane of the target's that begins at a lane of the source's. Raises Unsupported.
Bridging = Callable[[Lane], Awaitable[Lane]]


class Synchronization:
    """One order, from the first look to the last word. It may be planned and not carried out."""

    def __init__(self, order: Order, source: End, target: End, chunks: Chunks, bridge: Bridging | None = None) -> None:
        self.order = order
        self._bridge = bridge
        self._bridged: list[Lane] = []
        self.ends = Ends(order, source, target)
        self.chunks = chunks
        self.plan = Plan()
        # A plan is good for one carrying out.
        self.is_prepared = False
        self.source_tree: Tree | None = None
        self.target_tree: Tree | None = None
        self._noted: list[Problem] = []
        self._problem_count = 0
        self._spent_s = 0.0
        self._direct = False
        self._wire_bytes = self._sent = self._bytes = self._deleted_files = self._deleted_dirs = 0

    # Plan

    async def prepare(self, listener: Listener = unheard) -> Plan:
        """Look at both ends and decide. Raises FileProblem, BadArgument, ConnectError."""
        listener(Headway("scanning"))
        begun = time.monotonic()
        try:
            await self.ends.open()
            self.source_tree, self.target_tree = await self.ends.scan()
            check_deletion(self.order, self.source_tree, self.target_tree)
            self.plan = make_plan(self.source_tree, self.target_tree, self.order)
            await self._settle_doubts(self.plan)
        except NONSENSE as nonsense:
            await self.ends.drop()
            raise self._nonsense(nonsense) from nonsense
        except BaseException:
            await self.ends.drop()
            raise
        for problem in (*self.source_tree.problems, *self.plan.problems):
            self._note(problem)
        self._problem_count += self.source_tree.problem_count - len(self.source_tree.problems)
        self.is_prepared = True
        self._spent_s += time.monotonic() - begun
        return self.plan

    async def _settle_doubts(self, plan: Plan) -> None:
        """Compare the content of what has the same size on both sides."""
        for batch in _batches([item for item, _ in plan.doubtful], BATCH_FILES, 1 << 62):
            raw = _names(batch)
            ours, theirs = await asyncio.gather(
                self.ends.source.ask("digests", raw, root=self.ends.source.root),
                self.ends.target.ask("digests", self._target_names(batch), root=self.ends.target.root),
            )
            for at, item in enumerate(batch):
                digest = ours.out[16 * at : 16 * at + 16]
                if digest != theirs.out[16 * at : 16 * at + 16] or digest == bytes(16):
                    plan.send.append(item)
        self._finish_again(plan)
        changed = {(item.folder, item.name) for item in plan.send}
        for item, differs in plan.doubtful:
            if (item.folder, item.name) not in changed:
                plan.skipped += 1
                if differs:
                    plan.touch.append(Attributes(item.path, item.meta.mode, item.meta.mtime))
        plan.doubtful = []

    def _finish_again(self, plan: Plan) -> None:
        """What is put into a folder changes its time, also where that was decided late; it gets it back in the end."""
        assert self.source_tree is not None
        finished = {item.path for item in plan.finish}
        sent = {item.folder for item, _ in plan.doubtful} & {item.folder for item in plan.send}
        for folder in sent - finished - {b""}:
            above, _, name = folder.rpartition(b"/")
            if found := self.source_tree.entries(above).get(name):
                meta = read_meta(found)
                plan.finish.append(Attributes(folder, meta.mode, meta.mtime))
        plan.finish.sort(key=lambda item: (-item.path.count(b"/"), item.path))

    @property
    def problems(self) -> tuple[Problem, ...]:
        return tuple(self._noted)

    @property
    def problem_count(self) -> int:
        return self._problem_count

    def release(self) -> None:
        """It is not going to be carried out."""
        self.ends.give_back()

    # Carry out

    async def carry_out(self, listener: Listener = unheard) -> Outcome:
        """Do what was planned. Raises FileProblem, Unreachable; what has arrived by then stays."""
        assert self.source_tree is not None
        plan, self.is_prepared = self.plan, False
        meter, begun = Meter(listener, len(plan.send), plan.bytes), time.monotonic()
        meter.tell(begun, always=True)
        try:
            await self._carry(meter)
        except NONSENSE as nonsense:
            await self._give_up(begun)
            raise self._nonsense(nonsense) from nonsense
        except BaseException:
            await self._give_up(begun)
            raise
        self._settle(begun)
        await self._leave_bridges()
        meter.phase = "done"
        meter.tell(time.monotonic(), always=True)
        self.ends.give_back()
        return self.outcome()

    async def _give_up(self, begun: float) -> None:
        self._settle(begun)
        await asyncio.gather(self._leave_bridges(), self.ends.drop())

    def _nonsense(self, problem: Exception) -> FileProblem:
        told = f"{self.order.source} to {self.order.target}: a machine's answer cannot be understood ({problem!r})"
        return FileProblem(told, "hostile")

    def _settle(self, begun: float) -> None:
        self._spent_s += time.monotonic() - begun
        self._direct = bool(self._bridged)
        self._wire_bytes = sum(end.moved for end in (self.ends.source, self.ends.target) if end.place.sandbox)

    async def _carry(self, meter: Meter) -> None:
        plan = self.plan
        assert self.target_tree is not None
        leftovers = [path.encode("utf-8", "surrogateescape") for path in self.target_tree.leftovers]
        if plan.clear:
            await self._tell("tidy", _below(plan.clear, leftovers), b"\0")
            await self._tell("clear", plan.clear, b"\0")
        if plan.send:
            await self._send_all(meter)
        meter.phase = "deleting" if plan.delete_files or plan.delete_folders else meter.phase
        meter.tell(time.monotonic(), always=True)
        await self._tell("touch", self._packed(plan.touch))
        # Before what they lie in is removed or gets its time, after what could be resumed.
        await self._tell("tidy", leftovers, b"\0")
        await self._tell("delete", plan.delete_files, b"\0", end=b"\0\0")
        await self._tell("delete", plan.delete_folders, b"\0", begin=b"\0\0")
        await self._tell("finish", self._packed(plan.finish))
        if self.target_tree.kind == "missing" and not self.ends.target.name and not plan.finish:
            self._hear(await self.ends.target.ask("finish", root=self.ends.target.root))

    async def _tell(
        self, verb: str, parts: list[bytes], between: bytes = b"", *, begin: bytes = b"", end: bytes = b""
    ) -> None:
        """Ask the target for all of these, in as many requests as they take."""
        for portion in _portions(parts):
            raw = begin + between.join(portion) + end
            reply = self._hear(await self.ends.target.ask(verb, raw, root=self.ends.target.root))
            self._deleted_files += int(reply.get("files", 0))
            self._deleted_dirs += int(reply.get("dirs", 0))

    async def _send_all(self, meter: Meter) -> None:
        streams = await self._open_streams()
        small = [item for item in self.plan.send if item.size <= LARGE]
        large = [item for item in self.plan.send if item.size > LARGE]
        async with Together() as tasks:
            tasks.start(self._send_large(streams, large, meter))
            for batch in _batches(small, BATCH_FILES, BATCH_BYTES):
                stream = await streams.take(sum(item.size for item in batch))
                tasks.check()
                tasks.start(self._send_batch(streams, stream, batch, meter))

    async def _open_streams(self) -> Streams:
        """As many lanes as the line is long, and no more than there is to send."""
        source, target = self.ends.source, self.ends.target
        pieces = max(1, self.plan.bytes // BATCH_BYTES, len(self.plan.send) // BATCH_FILES)
        counts = [min(pieces, MANY_LANES if end.is_far else NEXT_DOOR) for end in (source, target)]
        await asyncio.gather(source.widen(counts[0]), target.widen(counts[1]))
        await self._cross_directly(source.taken)
        targets = self._bridged or target.taken
        common = [way for way in source.lane.squeezers if way in targets[0].squeezers]
        squeeze, roots = Squeeze(common[0] if common else ""), (source.root, target.root)
        flow = Flow(max(source.lanes.round_trip_s, target.lanes.round_trip_s))
        return Streams(source.taken, targets, roots, squeeze, flow, bool(self._bridged))

    async def _cross_directly(self, sources: list[Lane]) -> None:
        """Where the operator lets the source reach the target by itself and it can, files do not pass through us."""
        if self._bridge is None:
            return
        found = await asyncio.gather(*map(self._bridge, sources), return_exceptions=True)
        self._bridged = [lane for lane in found if not isinstance(lane, BaseException)]
        for problem in found:
            if isinstance(problem, BaseException) and not isinstance(problem, SandboxError):
                raise problem
        if len(self._bridged) < len(sources):
            await self._leave_bridges()

    async def _leave_bridges(self) -> None:
        bridged, self._bridged = self._bridged, []
        await asyncio.gather(*(lane.close() for lane in bridged))

    async def _send_batch(self, streams: Streams, stream: Stream, batch: list[Item], meter: Meter) -> None:
        try:
            said, arrived = await streams.carry(stream, "send", _names(batch), self._target_names(batch))
        except FileProblem as problem:
            self._fail_if_fatal(str(problem))
            for item in batch:
                self._note(Problem(_text(item.path), str(problem)))
            return
        finally:
            streams.give_back(stream, sum(item.size for item in batch))
        self._hear(said)
        self._hear(arrived)
        self._sent += arrived.number("files")
        self._bytes += arrived.number("bytes")
        meter.add(time.monotonic(), len(batch), sum(item.size for item in batch), batch[-1].path)

    async def _send_large(self, streams: Streams, items: list[Item], meter: Meter) -> None:
        room = asyncio.Semaphore(LARGE_AT_ONCE)
        async with Together() as tasks:
            for item in items:
                await room.acquire()
                tasks.check()
                tasks.start(self._send_one_large(streams, item, meter, room))

    async def _send_one_large(self, streams: Streams, item: Item, meter: Meter, room: asyncio.Semaphore) -> None:
        where = f"{self.order.target.sandbox}:{self.ends.target.root}"
        name = self.ends.target.name or item.name
        try:
            told = await LargeFile(item, name, streams, meter, self.chunks, where).carry()
            if told:
                self._note(Problem(_text(item.path), told))
            self._sent += 1
            self._bytes += item.size
            meter.add(time.monotonic(), 1, 0, item.path)
        except FileProblem as problem:
            self._fail_if_fatal(str(problem))
            self._note(Problem(_text(item.path), str(problem)))
        finally:
            room.release()

    # Tell

    def _hear(self, reply: Any) -> dict[str, Any]:
        """Take in what an answer says of single entries."""
        end: dict[str, Any] = reply.end
        for path, reason in end.get("problems", ()):
            self._fail_if_fatal(str(reason))
            self._note(Problem(str(path), str(reason)))
        self._problem_count += int(end.get("problem_count", 0)) - len(end.get("problems", ()))
        return end

    def _fail_if_fatal(self, reason: str) -> None:
        if any(words in reason for words in FATAL):
            raise FileProblem(f"{self.order.target}: {reason}; what had arrived by then is in place", "fatal")

    def _note(self, problem: Problem) -> None:
        self._problem_count += 1
        if len(self._noted) < MOST_PROBLEMS:
            self._noted.append(problem)

    def outcome(self) -> Outcome:
        """What was done, all of it or up to a failure."""
        assert self.source_tree is not None
        return Outcome(
            synced_type="file" if self.ends.source.name else "directory",
            made_dirs=self.plan.new_folders,
            sent_files=self._sent,
            skipped_files=self.plan.skipped,
            deleted_files=self._deleted_files,
            deleted_dirs=self._deleted_dirs,
            bytes=self._bytes,
            wire_bytes=self._wire_bytes,
            seconds=self._spent_s,
            problems=tuple(self._noted),
            problem_count=self._problem_count,
            excluded=self.source_tree.hits,
            direct=self._direct,
        )

    def _target_names(self, batch: list[Item]) -> bytes:
        return b"\0" + self.ends.target.name + b"\0" if self.ends.target.name else _names(batch)

    def _packed(self, attributes: list[Attributes]) -> list[bytes]:
        paths = [self.ends.target.name or item.path for item in attributes]
        return [
            ATTRIBUTES.pack(item.mode, item.mtime, len(path)) + path
            for item, path in zip(attributes, paths, strict=True)
        ]


def _names(batch: list[Item]) -> bytes:
    """A folder, its names, an empty field, and so on, as far/source.py reads it."""
    fields: list[bytes] = []
    folder: bytes | None = None
    for item in batch:
        if item.folder != folder:
            fields += [b"", item.folder] if folder is not None else [item.folder]
            folder = item.folder
        fields.append(item.name)
    return b"\0".join([*fields, b""])


def _portions(parts: list[bytes]) -> Iterator[list[bytes]]:
    """As many at once as are sure to fit into a frame."""
    portion: list[bytes] = []
    size = 0
    for part in parts:
        portion.append(part)
        size += len(part)
        if size >= PORTION_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def _below(folders: list[bytes], paths: list[bytes]) -> list[bytes]:
    """Those of the paths that lie in one of the folders."""
    found = set(folders)
    return [path for path in paths if any(path[:at] in found for at, byte in enumerate(path) if byte == SLASH)]


def _batches(items: list[Item], most: int, size: int) -> Iterator[list[Item]]:
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


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")
