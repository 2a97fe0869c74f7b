"""A lane over SFTP, for machines without Python; requests run at once unless one must wait for another."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...core.errors import CUT, FileProblem, Unreachable, Unsupported
from ...core.sync.transfer import Lane, Reply, numbers
from ...far.lane.tree import FAILURES, Refusal, explained
from ...far.outpost.place import to_bytes
from ...far.outpost.wire import DONE
from ...local.waiting import unlogged
from ..link.client import LineLost
from .channels import Channels, NoSubsystem
from .library import asyncssh
from .sftp_remote import Load, Remote, Root
from .sftp_source import Source, Speaker, inspect_path, scan
from .sftp_target import SftpReceiving, Target

if TYPE_CHECKING:
    from ...core.orders import LaneOrder

# How many bytes may be queued to be written.
QUEUED = 8 << 20
CLOSING_S = 1.0
FROM_SOURCE = frozenset({"send", "part", "check", "digests", "texts"})
TO_TARGET = frozenset({"clear", "delete", "finish", "touch", "tidy"})
PIECES = frozenset({"mark", "index", "index_old", "blocks", "partial_blocks"})
LARGE = frozenset({"begin", "join", "commit", "leave"})
ALONE: Place = (None, True)
ANYWHERE: Place = (None, False)


@dataclass(eq=False)
class _SftpRequest:
    done: asyncio.Future[Reply]
    number: int
    to: Lane | None
    heard: Callable[[bytes], None] | None
    order: LaneOrder
    raw: bytes
    out: bytearray = field(default_factory=bytearray)

    @property
    def root(self) -> str:
        return str(self.order.get("root", ""))

    def say(self, data: bytes) -> None:
        if self.heard:
            self.heard(data)
        else:
            self.out += data


class SftpLane:
    """A lane whose far side is any SFTP server."""

    knows_pieces = False
    follows = False
    squeezers: tuple[str, ...] = ()

    def __init__(self, client: asyncssh.SFTPClient, name: str, home: str, let_go: Callable[[], None]) -> None:
        self.name = name
        self.is_alive = True
        self._remote = Remote(client, home)
        self._release = let_go
        self._turns = Turns()
        self._queued = Load(QUEUED)
        self._open: set[_SftpRequest] = set()
        self._receiving: dict[int, tuple[_SftpRequest, SftpReceiving]] = {}
        self._sources: dict[str, Source] = {}
        self._targets: dict[str, Target] = {}
        self._watcher = asyncio.ensure_future(self._watch())

    @property
    def moved(self) -> int:
        return self._remote.moved

    def begin(
        self,
        order: LaneOrder,
        raw: bytes = b"",
        *,
        number: int = 0,
        to: Lane | None = None,
        heard: Callable[[bytes], None] | None = None,
        room: int = 0,
        passes: int = 0,
    ) -> asyncio.Future[Reply]:
        # `room` and `passes` are not needed: answers over SFTP are never larger than what was asked for.
        done: asyncio.Future[Reply] = unlogged(asyncio.get_running_loop().create_future())
        if not self.is_alive:
            done.set_exception(self._lost())
            return done
        request = _SftpRequest(done, number or next(numbers), to, heard, order, raw)
        self._open.add(request)
        if order["verb"] == "receive":
            try:
                self._receiving[request.number] = request, SftpReceiving(lambda: self._target(request.root), order, raw)
            except FAILURES as problem:
                self._fail(request, *explained(problem, f"a request that cannot be understood ({problem!r})"))
        else:
            place = place_of(order["verb"], request.root, raw)
            self._turns.start(lambda: self._answer(request, lambda: self._do(request)), place)
        return done

    def pass_on(self, kind: int, number: int, body: bytes) -> None:
        if number not in self._receiving:
            return
        request, receiving = self._receiving[number]
        # Frames of small files belong to no large one.
        place: Place = (("target", request.root, receiving.key), False) if receiving.key else ANYWHERE
        if kind == DONE:
            del self._receiving[number]
            self._turns.start(lambda: self._answer(request, receiving.answer), place)
            return
        self._queued.add(len(body))
        task = self._turns.start(lambda: self._take(receiving, kind, body), place)
        receiving.pending.add(task)
        task.add_done_callback(receiving.pending.discard)
        task.add_done_callback(lambda _: self._queued.add(-len(body)))

    async def room(self) -> None:
        await self._queued.room()

    async def close(self) -> None:
        self._watcher.cancel()
        running = list(self._turns.running)
        self._lose()
        if running:
            await asyncio.wait(running, timeout=CLOSING_S)

    # Requests

    async def _do(self, request: _SftpRequest) -> Mapping[str, object]:
        order = request.order
        verb = order["verb"]
        if order["verb"] == "look":
            return await inspect_path(self._remote, order)
        if order["verb"] == "scan":
            return await scan(self._remote, order, request.say)
        if verb == "rest":
            return await self._rest()
        if verb in FROM_SOURCE:
            return await self._ask_source(request)
        if verb in TO_TARGET or verb in LARGE:
            return await self._ask_target(verb, request)
        if verb in PIECES or verb == "follow":
            raise Refusal("unsupported", f"SFTP cannot do what {verb!r} asks for")
        raise Refusal("broken", f"the verb {verb!r} is not known here")

    async def _rest(self) -> Mapping[str, object]:
        """Close all trees, so that the next transfer opens them anew and sees what is there then."""
        for source in self._sources.values():
            source.close()
        for target in self._targets.values():
            target.close()
        self._sources.clear()
        self._targets.clear()
        # One round trip, so that the answer proves that the connection is alive, as with other lanes.
        await self._remote.attributes(to_bytes(self._remote.home))
        return {}

    async def _ask_source(self, request: _SftpRequest) -> Mapping[str, object]:
        source, speaker = self._source(request.root), Speaker(request.to, request.number)
        order = request.order
        if order["verb"] == "send":
            return await source.send(request.raw, speaker)
        if order["verb"] == "part":
            return await source.part(order, request.raw, speaker)
        if order["verb"] == "check":
            return await source.check(request.raw)
        request.say(await (source.digests if order["verb"] == "digests" else source.texts)(request.raw))
        return {}

    async def _ask_target(self, verb: str, request: _SftpRequest) -> Mapping[str, object]:
        """Make the top folder if it is missing, then do what is asked."""
        target = self._target(request.root)
        await target.root.folder(b"", make=True)
        does = getattr(target.large if verb in LARGE else target, verb)
        end: Mapping[str, object] = await does(request.order, request.raw)
        return end

    def _source(self, root: str) -> Source:
        if root not in self._sources:
            self._sources[root] = Source(self._remote, Root(self._remote, root))
        return self._sources[root]

    def _target(self, root: str) -> Target:
        if root not in self._targets:
            self._targets[root] = Target(self._remote, Root(self._remote, root))
        return self._targets[root]

    # Answers

    async def _take(self, receiving: SftpReceiving, kind: int, body: bytes) -> None:
        try:
            await receiving.take_frame(kind, body)
        except LineLost:
            self._lose()

    async def _answer(self, request: _SftpRequest, work: Callable[[], Awaitable[Mapping[str, object]]]) -> None:
        try:
            end = await work()
        except LineLost:
            self._lose()
        except FileProblem as problem:
            # The listener of this answer has refused it.
            self._fail(request, problem.reason, str(problem))
        except FAILURES as problem:
            self._fail(request, *explained(problem, f"a request that cannot be understood ({problem!r})"))
        except BaseException as problem:
            # Settle the request first: its caller must not wait for ever.
            self._fail(request, "broken", f"an answer that cannot be given ({problem!r})")
            raise
        else:
            self._open.discard(request)
            if not request.done.done():
                request.done.set_result(Reply(bytes(request.out), dict(end)))

    def _fail(self, request: _SftpRequest, reason: str, message: str) -> None:
        self._open.discard(request)
        if not request.done.done():
            request.done.set_exception(FileProblem(f"{self.name}: {message}", reason))

    # The end of the line

    async def _watch(self) -> None:
        await self._remote.client.wait_closed()
        self._lose()

    def _lost(self) -> Unreachable:
        return Unreachable(f"{self.name}: the connection was cut while files were moving", CUT)

    def _lose(self) -> None:
        if not self.is_alive:
            return
        self.is_alive = False
        self._queued.lift()
        self._receiving.clear()
        for request in self._open:
            if not request.done.done():
                request.done.set_exception(self._lost())
        self._open.clear()
        for task in self._turns.running:
            task.cancel()
        self._release()


async def open_lane(channels: Channels, name: str, home: str) -> SftpLane:
    """Open a lane on a channel of its own. Raises Unsupported, ConnectError, LineLost."""
    try:
        client, let_go = await channels.own_sftp()
    except NoSubsystem:
        raise Unsupported(
            f"{name} has neither python3 nor SFTP, so files can only be moved with commands: install one of them"
        ) from None
    return SftpLane(client, name, home, let_go)


# What a request is about, and whether no other request about that may run beside it; (None, True) is about everything.
Place = tuple[object, bool]


class Turns:
    """Runs requests at once; each begins when the earlier ones that it must not overtake have ended."""

    def __init__(self) -> None:
        self.running: dict[asyncio.Task[None], Place] = {}
        self._alone: asyncio.Task[None] | None = None
        self._subjects: dict[object, dict[asyncio.Task[None], bool]] = {}

    def start(self, work: Callable[[], Awaitable[None]], place: Place) -> asyncio.Task[None]:
        task = asyncio.ensure_future(self._run(work, self._earlier(place)))
        self.running[task] = place
        if place == ALONE:
            self._alone = task
        elif place != ANYWHERE:
            self._subjects.setdefault(place[0], {})[task] = place[1]
        task.add_done_callback(self._ended)
        return task

    def _earlier(self, place: Place) -> list[asyncio.Task[None]]:
        if place == ALONE:
            return list(self.running)
        same = self._subjects.get(place[0], {}) if place != ANYWHERE else {}
        earlier = [task for task, alone in same.items() if alone or place[1]]
        return [*earlier, self._alone] if self._alone else earlier

    async def _run(self, work: Callable[[], Awaitable[None]], earlier: list[asyncio.Task[None]]) -> None:
        if earlier:
            await asyncio.wait(earlier)
        await work()

    def _ended(self, task: asyncio.Task[None]) -> None:
        subject, _ = self.running.pop(task)
        if self._alone is task:
            self._alone = None
        if subject in self._subjects:
            self._subjects[subject].pop(task, None)
            if not self._subjects[subject]:
                del self._subjects[subject]


def place_of(verb: str, root: str, raw: bytes) -> Place:
    """Return where a request belongs: parts of a file may overtake each other, but not its begin or commit."""
    if verb in ("send", "digests", "texts"):
        return ANYWHERE
    if verb in ("part", "check"):
        return ("source", root, raw), verb == "check"
    if verb in LARGE:
        key = raw.split(b"\0")[2:3] if verb in ("begin", "join") else [raw]
        return ("target", root, *key), True
    return ALONE
