"""The near side of a line: sends requests, gathers their answers, and notices when the line is dead."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...core.errors import Unreachable
from .far import wire

SILENCE_S = 2.0
PONG_S = 3.0
LONGEST_GREETING = 1 << 20
# What a request's frame may carry beside its path and its other words.
LARGEST = wire.MAX_BODY - (1 << 20)


class Line(Protocol):
    """A pair of byte streams to an outpost."""

    def write(self, data: bytes) -> None:
        """Send; what cannot be sent is found out by reading."""
        ...

    async def read(self) -> bytes:
        """The next bytes, or b"" when the line has ended, in whatever way."""
        ...

    def close(self) -> None:
        """End it at once."""
        ...


class LineLost(Exception):
    """The line ended, or froze, while an answer was awaited."""


class NoOutpost(Exception):
    """The far side ended before it greeted us: no usable Python, most likely."""


class Refusal(Exception):
    """The far side's answer is no; `reason` is a word for the program."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def too_long(script: str) -> str:
    """Why a command cannot be sent, and what to do; empty where it can."""
    # A character takes up to twelve bytes on its way.
    if 12 * len(script) <= LARGEST or len(json.dumps(script)) <= LARGEST:
        return ""
    return f"a command of {len(script)} characters is more than can be sent; put it into a file there, and run that"


async def greet(line: Line, token: str) -> tuple[dict[str, Any], bytearray]:
    """A program's first words, and what came after them; what a start-up file printed before them is dropped."""
    buffer, mark = bytearray(), b"\n" + token.encode() + b"\n"
    while mark not in buffer:
        data = await line.read()
        buffer += data
        if not data or len(buffer) > LONGEST_GREETING:
            raise NoOutpost(bytes(buffer[-400:]).decode("utf-8", "replace").strip())
    rest = buffer[buffer.index(mark) + len(mark) :]
    while not (frames := wire.split_frames(rest)):
        data = await line.read()
        if not data:
            raise NoOutpost("it ended in its greeting")
        rest += data
    kind, _, body = frames[0]
    if kind != wire.HELLO:
        raise Unreachable(json.loads(body)["message"])
    hello: dict[str, Any] = json.loads(body)
    return hello, rest


@dataclass
class Exchange:
    """One request and what has come back for it so far."""

    number: int
    done: asyncio.Future[dict[str, Any]]
    parts: dict[int, bytearray] = field(default_factory=dict)
    last_bytes: int = 0
    last_text: str = ""
    # Told of output each time that some has come.
    on_output: Callable[[], None] | None = None

    def part(self, kind: int) -> bytes:
        return bytes(self.parts.get(kind, b""))

    def take(self, kind: int, body: bytes) -> None:
        if kind in (wire.OUT, wire.ERR, wire.OUT_TAIL, wire.ERR_TAIL):
            self.parts.setdefault(kind, bytearray()).extend(body)
            if self.on_output:
                self.on_output()
        elif kind == wire.BEAT:
            beat = json.loads(body)
            self.last_bytes, self.last_text = int(beat["bytes"]), str(beat["line"])
        elif self.done.done():
            return
        elif kind in (wire.END, wire.PONG):
            self.done.set_result(json.loads(body or b"{}"))
        elif kind == wire.FAIL:
            answer = json.loads(body)
            self.done.set_exception(Refusal(str(answer["reason"]), str(answer["message"])))


class OutpostClient:
    """Talks to one outpost; any number of requests at once."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self._numbers = itertools.count(1)
        self._open: dict[int, Exchange] = {}
        self._heard = time.monotonic()
        self._pinged = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self.hello: dict[str, Any] = {}
        self.is_alive = False

    async def greet(self, token: str) -> None:
        """Wait for the outpost's own first words. Raises NoOutpost, Unreachable."""
        self.hello, rest = await greet(self.line, token)
        self.is_alive = True
        self._tasks = [asyncio.create_task(self._listen(rest)), asyncio.create_task(self._watch())]

    def begin(self, verb: str, raw: bytes = b"", **order: Any) -> Exchange:
        """Send a request; the exchange fills as answers come."""
        body = json.dumps({"verb": verb, **order}).encode() + (b"\0" + raw if raw else b"")
        return self._begin(wire.REQUEST, body)

    async def ping(self) -> None:
        """One round trip. Raises LineLost."""
        await self._begin(wire.PING).done

    def _begin(self, kind: int, body: bytes = b"") -> Exchange:
        exchange = Exchange(next(self._numbers), asyncio.get_running_loop().create_future())
        # A failure that nobody waits for any more is not an error in the log.
        exchange.done.add_done_callback(lambda done: done.cancelled() or done.exception())
        if not self.is_alive:
            exchange.done.set_exception(LineLost())
            return exchange
        if not self._open:
            self._heard = time.monotonic()
        self._open[exchange.number] = exchange
        self.line.write(wire.frame(kind, exchange.number, body))
        return exchange

    async def ask(self, verb: str, raw: bytes = b"", **order: Any) -> tuple[Exchange, dict[str, Any]]:
        """A request and its whole answer. Raises Refusal or LineLost; cancelling it cancels the request."""
        exchange = self.begin(verb, raw, **order)
        try:
            return exchange, await exchange.done
        except asyncio.CancelledError:
            self.cancel(exchange)
            raise

    def cancel(self, exchange: Exchange) -> bool:
        """End the request's process at the far side, for a run its whole tree; False where it cannot be told."""
        if not self._open.pop(exchange.number, None) or not self.is_alive:
            return False
        self.line.write(wire.frame(wire.CANCEL, exchange.number))
        return True

    def release(self, exchange: Exchange) -> None:
        """Stop listening; the far side goes on."""
        self._open.pop(exchange.number, None)

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
                for kind, number, body in wire.split_frames(buffer):
                    self._dispatch(kind, number, body)
        except ValueError:
            # Bytes that are no frames: the far side is not what it was, so the line is as good as cut.
            pass
        finally:
            self._lose()

    def _dispatch(self, kind: int, number: int, body: bytes) -> None:
        exchange = self._open.get(number)
        if exchange is None:
            return
        if kind in (wire.END, wire.FAIL, wire.PONG):
            del self._open[number]
        exchange.take(kind, body)

    async def _watch(self) -> None:
        """While answers are awaited and nothing comes, ask for a sign of life; without one the line is frozen."""
        while self.is_alive:
            await asyncio.sleep(0.5)
            now = time.monotonic()
            if not self._open or now - self._heard < SILENCE_S:
                self._pinged = 0.0
            elif not self._pinged:
                self._pinged = now
                self.line.write(wire.frame(wire.PING, 0))
            elif now - self._pinged > PONG_S:
                self._lose()

    def _lose(self) -> None:
        if self.is_alive:
            self.is_alive = False
            self.line.close()
        for exchange in self._open.values():
            if not exchange.done.done():
                exchange.done.set_exception(LineLost())
        self._open.clear()
