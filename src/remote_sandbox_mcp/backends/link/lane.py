"""The near side of a lane: numbers requests, matches answers, and forwards frames between two machines' lanes."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ...core.errors import CUT, BrokenRules, FileProblem, SandboxError, Unreachable, Unsupported
from ...core.sandboxes.foreign import NONSENSE, Fields, not_understood, read_json, to_text, too_much, understood
from ...core.sync.transfer import MOST_PASSED, SMALL_ANSWER, Lane, Reply, numbers
from ...far import program
from ...far.outpost import wire
from ...local.waiting import unlogged, within
from .client import Line, NoOutpost, greet

if TYPE_CHECKING:
    from ...core.orders import BridgeOrder, LaneOrder

# The END of a scan holds the text of all .gitignore files, which may have 8 MiB.
LARGEST_END = 16 << 20
# A lane is silent while it reads a large file, but never for as long as SILENT_S.
SILENT_S, CHECK_S = 900.0, 5.0
PASSED_ON = frozenset({wire.FILES, wire.PART, wire.COPY, wire.SQUEEZED, wire.DONE})
OPEN_S = 15.0
MOST_UNREAD = 32 << 20
# BatchMode: ssh asks no question and accepts no unknown host; the machine's own keys and known_hosts decide.
SSH = (
    *("ssh", "-T", "-e", "none", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ClearAllForwardings=yes"),
    "--",
)


class WideLine(Line, Protocol):
    """A line whose writer can wait until there is room for more."""

    async def drain(self) -> None: ...


@dataclass
class _Request:
    done: asyncio.Future[Reply]
    out: bytearray
    to: Lane | None
    heard: Callable[[bytes], None] | None
    # How many bytes may still come as its answer, and how many to be passed on to another lane.
    room: int = SMALL_ANSWER
    passes: int = MOST_PASSED

    def left(self, kind: int) -> int:
        if kind in PASSED_ON:
            return self.passes
        return min(self.room, LARGEST_END) if kind in (wire.END, wire.FAIL) else self.room

    def count(self, kind: int, length: int) -> bool:
        """Count a frame; False if it is more than may come."""
        if kind in PASSED_ON:
            self.passes -= length or wire.EMPTY
        else:
            self.room -= length or wire.EMPTY
        return self.passes >= 0 and self.room >= 0


class OutpostLane:
    """A lane to the program in far/lane.py."""

    knows_pieces = True
    follows = True

    def __init__(self, line: WideLine, name: str) -> None:
        self.name = name
        self.moved = 0
        self.is_alive = False
        self.squeezers: tuple[str, ...] = ()
        # The machine's host name, as it says itself.
        self.node = ""
        self._line = line
        self._open: dict[int, _Request] = {}
        self._tasks: list[asyncio.Task[None]] = []
        # Takes bytes from the bridge; b"" means its end.
        self.bridge: Callable[[bytes], None] | None = None
        self._heard = time.monotonic()
        self._trouble: SandboxError | None = None

    async def greet(self, token: str) -> None:
        """Raises NoOutpost, Unreachable."""
        hello, rest = await greet(self._line, token, self.name)
        with understood(self.name):
            self.squeezers = tuple(map(to_text, hello.list("squeezers")))
            self.node = hello.text("node") if hello.has("node") else ""
        self.is_alive = True
        self._tasks = [asyncio.create_task(self._listen(rest)), asyncio.create_task(self._watch())]

    def begin(
        self,
        order: LaneOrder,
        raw: bytes = b"",
        *,
        number: int = 0,
        to: Lane | None = None,
        heard: Callable[[bytes], None] | None = None,
        room: int = SMALL_ANSWER,
        passes: int = MOST_PASSED,
    ) -> asyncio.Future[Reply]:
        done: asyncio.Future[Reply] = unlogged(asyncio.get_running_loop().create_future())
        if not self.is_alive:
            done.set_exception(self._lost())
            return done
        number = number or next(numbers)
        if not self._open:
            self._heard = time.monotonic()
        self._open[number] = _Request(done, bytearray(), to, heard, room, passes if to else SMALL_ANSWER)
        body = json.dumps(order).encode() + b"\0" + raw
        self._write(wire.frame(wire.REQUEST, number, body))
        return done

    def pass_on(self, kind: int, number: int, body: bytes) -> None:
        self._write(wire.frame(kind, number, body))

    def _write(self, data: bytes) -> None:
        self.moved += len(data)
        self._line.write(data)

    def forward(self, data: bytes) -> None:
        """Send bytes to the lane at the other end of this lane's bridge."""
        self._write(wire.frame(wire.FORWARD, 0, data))

    async def room(self) -> None:
        await self._line.drain()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._lose()

    async def _listen(self, buffer: bytearray) -> None:
        try:
            while data := await self._line.read():
                self._heard = time.monotonic()
                self.moved += len(data)
                buffer += data
                for kind, number, body in wire.split_frames(buffer, self._admit):
                    await self._dispatch(kind, number, body)
        except SandboxError as problem:
            self._trouble = problem
        except NONSENSE as problem:
            # What it sends is no longer the protocol.
            self._trouble = not_understood(self.name, problem)
        finally:
            self._lose()

    async def _watch(self) -> None:
        """Give up a lane that is silent for SILENT_S while answers are awaited."""
        while self.is_alive:
            await asyncio.sleep(CHECK_S)
            if self._open and time.monotonic() - self._heard > SILENT_S:
                self._trouble = Unreachable(f"{self.name} was silent for {SILENT_S:.0f} s while files were moving")
                self._lose()

    def _admit(self, kind: int, number: int, length: int) -> None:
        """Refuse a frame that is larger than what was asked for, before its body comes. Raises BrokenRules."""
        request = self._open.get(number)
        if length > LARGEST_END or (request and length > request.left(kind)):
            raise too_much(self.name)

    async def _dispatch(self, kind: int, number: int, body: bytes) -> None:
        if kind == wire.FORWARDED and self.bridge:
            self.bridge(body)
            return
        request = self._open.get(number)
        if request is None:
            return
        if not request.count(kind, len(body)):
            raise too_much(self.name)
        if kind in PASSED_ON and request.to is not None:
            request.to.pass_on(kind, number, body)
            await request.to.room()
            # The time spent waiting for the other lane is no silence of this one.
            self._heard = time.monotonic()
        elif kind == wire.OUT:
            self._take(request, body)
        elif kind in (wire.END, wire.FAIL):
            self._conclude(request, kind, read_json(body))
            del self._open[number]

    def _take(self, request: _Request, body: bytes) -> None:
        """Take a part of an answer. If its listener refuses it, the request fails and BrokenRules ends the line."""
        if not request.heard:
            request.out += body
            return
        try:
            request.heard(body)
        except FileProblem as problem:
            if not request.done.done():
                request.done.set_exception(problem)
            raise BrokenRules(f"{self.name}: {problem}") from None

    def _conclude(self, request: _Request, kind: int, end: Any) -> None:
        """Settle a request by its END or FAIL. Raises ValueError for a malformed one."""
        said, done = Fields(end), request.done
        problem = None
        if kind == wire.FAIL:
            problem = FileProblem(f"{self.name}: {said.sentence('message')}", said.text("reason"))
        if done.done():
            return
        if problem:
            done.set_exception(problem)
        else:
            done.set_result(Reply(bytes(request.out), end))

    def _lost(self) -> SandboxError:
        return self._trouble or Unreachable(f"{self.name}: the connection was cut while files were moving", CUT)

    def _lose(self) -> None:
        if self.is_alive:
            self.is_alive = False
            self._line.close()
        if self.bridge:
            self.bridge(b"")
        for request in self._open.values():
            if not request.done.done():
                request.done.set_exception(self._lost())
        self._open.clear()


class BridgeLine:
    """A bridge as a Line to the lane at its far end: the bytes travel in frames of the lane at its near end."""

    def __init__(self, lane: OutpostLane) -> None:
        self._lane = lane
        self._arrived: asyncio.Queue[bytes] = asyncio.Queue()
        self._unread = 0

    def feed(self, data: bytes) -> None:
        """Take bytes from the bridge. Raises BrokenRules for far more than a lane's answers to requests can be."""
        self._unread += len(data)
        if self._unread > MOST_UNREAD:
            raise too_much(self._lane.name)
        self._arrived.put_nowait(data)

    def write(self, data: bytes) -> None:
        self._lane.forward(data)

    async def read(self) -> bytes:
        data = await self._arrived.get()
        self._unread -= len(data)
        return data

    async def drain(self) -> None:
        await self._lane.room()

    def close(self) -> None:
        self.feed(b"")


async def open_bridge(lane: Lane, name: str, destination: str, python: str) -> OutpostLane:
    """Open a lane from the machine of `lane` to `destination`, a name in its ssh. Raises Unsupported if it cannot."""
    if not isinstance(lane, OutpostLane):
        raise Unsupported(f"{lane.name} has no python3, so files go through this machine")
    token = secrets.token_hex(16)
    argv = [*SSH, destination, program.start_line(python, token, program.LANE)]
    order: BridgeOrder = {"verb": "bridge", "argv": argv}
    line = BridgeLine(lane)
    lane.bridge = line.feed
    target = OutpostLane(line, name)
    try:
        await lane.begin(order, program.packed(program.LANE))
        await within(target.greet(token), OPEN_S)
    except (NoOutpost, FileProblem, Unreachable, asyncio.TimeoutError) as problem:
        raise Unsupported(f"{lane.name} does not reach {name} as {destination}: {problem}") from None
    return target
