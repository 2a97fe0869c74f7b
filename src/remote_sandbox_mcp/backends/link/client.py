"""The near side of a line to an outpost: sends requests, gathers their answers, and notices when the line is dead."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterable, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from ...core.errors import BrokenRules, Unreachable
from ...core.sandboxes.foreign import NONSENSE, Fields, not_understood, read_json, too_much, understood
from ...far.outpost import wire
from ...far.outpost.files import WORKER_S
from ...local.waiting import unlogged

if TYPE_CHECKING:
    from ...core.orders import OutpostOrder

# After this silence a PING is sent; without a PONG in time, the line is given up.
SILENCE_S = 2.0
PONG_S = 3.0
# How much a login shell's start-up files may print before the outpost speaks.
LONGEST_GREETING = 1 << 20
# The most data that a request may carry; the rest of its frame is for paths and other fields.
LARGEST = wire.MAX_BODY - (1 << 20)
# The most bytes of an answer without data: a few paths and a sentence.
SMALL = 64 << 10
# The most bytes of a BEAT, which has the end of a run's output in JSON; one comes every second or two.
LONGEST_BEAT = 16 << 10
LAST_HEARD = 4096
# Bytes of a run's input in one frame.
INPUT_PART = 1 << 16
SPARE_BEATS, BEATS_A_SECOND = 100, 10
# The far side gives a request up after WORKER_S, and the slowest line carries SLOWEST bytes a second: so long we wait.
ANSWER_S, SLOWEST = WORKER_S + 30.0, 8 << 10
STREAMS = (wire.OUT, wire.ERR, wire.OUT_TAIL, wire.ERR_TAIL)
LAST_WORDS = (wire.END, wire.FAIL, wire.PONG)


class Line(Protocol):
    """A pair of byte streams to an outpost."""

    def write(self, data: bytes) -> None:
        """Send. A failure to send does not raise: it shows when the line is read."""

    async def read(self) -> bytes:
        """The next bytes; b"" when the line has ended or was cut."""

    def close(self) -> None:
        """End it at once."""


class LineLost(Exception):
    """The line ended, or froze, while an answer was awaited."""


class NoOutpost(Exception):
    """The far side ended before it greeted us: no usable Python, most likely."""


class Refusal(Exception):
    """The far side refused a request; programs check `reason`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def too_long(script: str) -> str:
    """Explain why a command is too long to be sent, and what to do; "" if it is not."""
    # In JSON a character takes up to twelve bytes. The first test is cheap and settles almost all commands.
    if 12 * len(script) <= LARGEST or len(json.dumps(script)) <= LARGEST:
        return ""
    return f"a command of {len(script)} characters is more than can be sent; put it into a file there, and run that"


async def greet(line: Line, token: str, name: str) -> tuple[Fields, bytearray]:
    """The greeting of a program on the far side, and the bytes after it. Raises NoOutpost, Unreachable."""
    # What start-up files of the login shell printed before it is dropped.
    buffer, mark, searched = bytearray(), b"\n" + token.encode() + b"\n", 0
    while (found := buffer.find(mark, searched)) < 0:
        searched = max(0, len(buffer) - len(mark))
        data = await line.read()
        buffer += data
        if not data or len(buffer) > LONGEST_GREETING:
            raise NoOutpost(bytes(buffer[-400:]).decode("utf-8", "replace").strip())
    rest = buffer[found + len(mark) :]
    with understood(name):
        while not (frames := wire.split_frames(rest, _is_greeting)):
            data = await line.read()
            if not data:
                raise NoOutpost("it ended in its greeting")
            rest += data
        kind, _, body = frames[0]
        said = Fields.read(body)
        if kind == wire.FAIL:
            raise Unreachable.of_parts(f"unable to open {name}", said.sentence("message"))
        return said, rest


def _is_greeting(kind: int, number: int, length: int) -> None:
    if kind not in (wire.HELLO, wire.FAIL) or length > SMALL:
        raise ValueError(f"a frame of kind {kind} with {length} bytes instead of a greeting")


class RunInput:
    """The near side of a run's streamed input: sends parts, and never more than the far side has room for."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._sent = self._taken = 0
        self._is_closed = self._is_whole = False
        self._room = asyncio.Event()
        self._room.set()

    @property
    def is_over(self) -> bool:
        """Whether the command has all of it, or wants no more."""
        return self._is_closed or (self._is_whole and self._taken == self._sent)

    def note(self, taken: int, is_closed: bool) -> None:
        """Take the far side's word on how much it has passed on. Raises ValueError where that cannot be true."""
        if not (is_closed or self._taken < taken) or not self._taken <= taken <= self._sent or self._is_closed:
            raise ValueError(f"{taken} bytes of input taken, of {self._sent}")
        self._taken, self._is_closed = taken, is_closed
        if is_closed or self._sent - taken + INPUT_PART <= wire.INPUT_WINDOW:
            self._room.set()

    async def pump(self, source: AsyncIterable[bytes]) -> None:
        """Send all of it, as the far side takes it."""
        async for data in source:
            for at in range(0, len(data), INPUT_PART):
                await self._room.wait()
                if self._is_closed:
                    return
                part = data[at : at + INPUT_PART]
                self._send(part)
                self._sent += len(part)
                if self._sent - self._taken + INPUT_PART > wire.INPUT_WINDOW:
                    self._room.clear()
        self._is_whole = True
        self._send(b"")


@dataclass
class Exchange:
    """One request and what has come back for it so far; at most `room` more bytes may come."""

    number: int
    done: asyncio.Future[dict[str, Any]]
    room: int
    parts: dict[int, bytearray] = field(default_factory=dict)
    last_bytes: int = 0
    last_text: str = ""
    begun: float = field(default_factory=time.monotonic)
    beats: int = 0
    # The stream that got bytes last.
    latest: int = wire.OUT
    # No caller waits for it any more, so further bytes are dropped.
    released: bool = False
    # Called each time output has come.
    on_output: Callable[[], None] | None = None
    # The input of a run whose input is streamed.
    input: RunInput | None = None

    def part(self, kind: int) -> bytes:
        return bytes(self.parts.get(kind, b""))

    @property
    def heard(self) -> int:
        """Return how many bytes have come in all streams."""
        return sum(map(len, self.parts.values()))

    @property
    def last_heard(self) -> bytes:
        """The last bytes of the stream that got some last."""
        return bytes(self.parts.get(self.latest, b"")[-LAST_HEARD:])

    def has_room(self, kind: int, length: int) -> bool:
        return length <= (LONGEST_BEAT if kind in (wire.BEAT, wire.TAKEN) else self.room)

    def take(self, kind: int, body: bytes) -> None:
        """Take a frame, and its bytes off `room`: below 0, there were too many. Raises ValueError for nonsense."""
        if kind == wire.BEAT:
            self._beat(Fields.read(body))
            return
        if kind == wire.TAKEN and self.input:
            said = Fields.read(body)
            self.input.note(said.whole("bytes"), said.flag("closed"))
            return
        self.room -= len(body) or wire.EMPTY
        if self.room < 0:
            return
        if kind in STREAMS:
            if not self.released:
                self.parts.setdefault(kind, bytearray()).extend(body)
                self.latest = kind
                if self.on_output:
                    self.on_output()
        elif kind in LAST_WORDS:
            self._conclude(kind, read_json(body or b"{}"))

    def _beat(self, beat: Fields) -> None:
        self.beats += 1
        if self.beats > SPARE_BEATS + BEATS_A_SECOND * (time.monotonic() - self.begun):
            self.room = -1
        self.last_bytes, self.last_text = beat.whole("bytes"), beat.text("line")

    def _conclude(self, kind: int, end: Any) -> None:
        said = Fields(end)
        refusal = Refusal(said.text("reason"), said.sentence("message")) if kind == wire.FAIL else None
        if self.done.done():
            return
        if refusal:
            self.done.set_exception(refusal)
        else:
            self.done.set_result(end)


class OutpostClient:
    """Talks to one outpost; any number of requests at once."""

    def __init__(self, line: Line, name: str = "the machine") -> None:
        self.line = line
        self.name = name
        self._numbers = itertools.count(1)
        self._open: dict[int, Exchange] = {}
        self._heard = time.monotonic()
        self._pinged = 0.0
        self._signs = 0
        self._opened = time.monotonic()
        self._trouble: BrokenRules | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.hello: dict[str, Any] = {}
        self.is_alive = False
        # When the line ended, by the monotonic clock.
        self.ended = 0.0

    async def greet(self, token: str) -> None:
        """Wait for the outpost's greeting. Raises NoOutpost, Unreachable."""
        hello, rest = await greet(self.line, token, self.name)
        with understood(self.name):
            # `place` is sent along when a start is repeated after a cut (only_in).
            self.hello = {"place": hello.text("place"), **hello.plain()}
        self.is_alive = True
        self._tasks = [asyncio.create_task(self._listen(rest)), asyncio.create_task(self._watch())]

    def begin(self, order: OutpostOrder, raw: bytes = b"", *, room: int = SMALL) -> Exchange:
        """Send a request; the exchange fills as answers come, with up to `room` bytes."""
        body = json.dumps(order).encode() + (b"\0" + raw if raw else b"")
        return self._begin(wire.REQUEST, body, room)

    def open_input(self, exchange: Exchange) -> RunInput:
        """The input of a run whose order says that it is streamed."""

        def send(part: bytes) -> None:
            if self.is_alive and self._open.get(exchange.number) is exchange:
                self.line.write(wire.frame(wire.INPUT, exchange.number, part))

        exchange.input = RunInput(send)
        return exchange.input

    async def ping(self) -> None:
        """Make one round trip. Raises LineLost, Unreachable."""
        await self._begin(wire.PING).done

    def _begin(self, kind: int, body: bytes = b"", room: int = SMALL) -> Exchange:
        exchange = Exchange(next(self._numbers), unlogged(asyncio.get_running_loop().create_future()), room)
        if not self.is_alive:
            exchange.done.set_exception(LineLost())
            return exchange
        if not self._awaited:
            self._heard = time.monotonic()
        self._open[exchange.number] = exchange
        self.line.write(wire.frame(kind, exchange.number, body))
        return exchange

    async def ask(
        self, order: OutpostOrder, raw: bytes = b"", *, room: int = SMALL, takes_s: float = 0.0
    ) -> tuple[Exchange, dict[str, Any]]:
        """Send a request and wait for its whole answer; its work may take `takes_s`. Cancelling cancels the request.

        Raises Refusal, LineLost, or Unreachable if the far side lives but does not answer.
        """
        exchange = self.begin(order, raw, room=room)
        patience_s = ANSWER_S + takes_s + (len(raw) + room) / SLOWEST
        try:
            done, _ = await asyncio.wait((exchange.done,), timeout=patience_s)
        except asyncio.CancelledError:
            self.cancel(exchange)
            raise
        if not done:
            self.cancel(exchange)
            raise Unreachable(f"{self.name} did not answer in {patience_s:.0f} s; try again later")
        return exchange, exchange.done.result()

    def cancel(self, exchange: Exchange) -> bool:
        """End the request's process on the far side, for a run its whole tree; False if it cannot be reached."""
        if self._open.get(exchange.number) is not exchange or not self.is_alive:
            return False
        self.release(exchange)
        self.line.write(wire.frame(wire.CANCEL, exchange.number))
        return True

    def release(self, exchange: Exchange) -> None:
        """Stop listening to a request; the far side goes on, and what it sends is counted and dropped."""
        if self._open.get(exchange.number) is exchange:
            self._open[exchange.number] = replace(exchange, parts={}, released=True)

    async def close(self) -> None:
        self._lose()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _listen(self, buffer: bytearray) -> None:
        try:
            while data := await self.line.read():
                self._heard = time.monotonic()
                buffer += data
                for kind, number, body in wire.split_frames(buffer, self._admit):
                    self._dispatch(kind, number, body)
        except BrokenRules as problem:
            self._trouble = problem
        except NONSENSE as problem:
            # What it sends is no longer the protocol.
            self._trouble = not_understood(self.name, problem)
        finally:
            self._lose()

    def _admit(self, kind: int, number: int, length: int) -> None:
        """Refuse a frame that is larger than what was asked for, before its body comes. Raises BrokenRules."""
        exchange = self._open.get(number)
        if exchange.has_room(kind, length) if exchange else length <= SMALL:
            return
        raise too_much(self.name)

    def _dispatch(self, kind: int, number: int, body: bytes) -> None:
        exchange = self._open.get(number)
        if exchange is None:
            # A hostile far side could keep us busy with frames that belong to no request, such as PONG.
            self._signs += 1
            if self._signs > SPARE_BEATS + BEATS_A_SECOND * (time.monotonic() - self._opened):
                raise too_much(self.name)
            return
        exchange.take(kind, body)
        if exchange.room < 0:
            raise too_much(self.name)
        if kind in LAST_WORDS:
            del self._open[number]

    async def _watch(self) -> None:
        """While answers are awaited and nothing comes, send a PING; without a PONG in time the line is given up."""
        while self.is_alive:
            await asyncio.sleep(0.5)
            now = time.monotonic()
            if not self._awaited or now - self._heard < SILENCE_S:
                self._pinged = 0.0
            elif not self._pinged:
                self._pinged = now
                self.line.write(wire.frame(wire.PING, 0))
            elif now - self._pinged > PONG_S:
                self._lose()

    @property
    def _awaited(self) -> bool:
        return any(not exchange.released for exchange in self._open.values())

    def _lose(self) -> None:
        if self.is_alive:
            self.is_alive, self.ended = False, time.monotonic()
            self.line.close()
        for exchange in self._open.values():
            if not exchange.done.done():
                exchange.done.set_exception(self._trouble or LineLost())
        self._open.clear()
