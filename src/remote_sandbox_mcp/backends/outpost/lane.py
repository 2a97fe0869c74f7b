"""The near side of a lane: numbers its requests, gathers answers, hands what a source says to the target's lane."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ...core.errors import FileProblem, Unreachable
from ...core.lane import Lane, Reply, numbers
from .client import Line, greet
from .far import wire

PASSED_ON = frozenset({wire.FILES, wire.PART, wire.COPY, wire.SQUEEZED, wire.DONE})


class WideLine(Line, Protocol):
    """A line that says when it has room for more."""

    async def drain(self) -> None: ...


@dataclass
class _Request:
    done: asyncio.Future[Reply]
    out: bytearray
    to: Lane | None
    heard: Callable[[bytes], None] | None


class OutpostLane:
    """A lane to the program in far/lane.py."""

    knows_pieces = True

    def __init__(self, line: WideLine, name: str) -> None:
        self.name = name
        self.moved = 0
        self.is_alive = False
        self.squeezers: tuple[str, ...] = ()
        self._line = line
        self._open: dict[int, _Request] = {}
        self._listener: asyncio.Task[None] | None = None
        self._bridge: Callable[[bytes], None] | None = None

    async def greet(self, token: str) -> None:
        """Raises NoOutpost."""
        hello, rest = await greet(self._line, token)
        self.squeezers = tuple(hello["squeezers"])
        self.is_alive = True
        self._listener = asyncio.create_task(self._listen(rest))

    def begin(
        self,
        verb: str,
        raw: bytes = b"",
        *,
        number: int = 0,
        to: Lane | None = None,
        heard: Callable[[bytes], None] | None = None,
        **order: Any,
    ) -> asyncio.Future[Reply]:
        done: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        # A failure that nobody waits for is not an error in the log.
        done.add_done_callback(lambda done: done.cancelled() or done.exception())
        if not self.is_alive:
            done.set_exception(self._lost())
            return done
        number = number or next(numbers)
        self._open[number] = _Request(done, bytearray(), to, heard)
        body = json.dumps({"verb": verb, **order}).encode() + b"\0" + raw
        self._write(wire.frame(wire.REQUEST, number, body))
        return done

    def pass_on(self, kind: int, number: int, body: bytes) -> None:
        self._write(wire.frame(kind, number, body))

    def _write(self, data: bytes) -> None:
        self.moved += len(data)
        self._line.write(data)

    def forward(self, data: bytes) -> None:
        """To the lane at the other end of this one's bridge."""
        self._write(wire.frame(wire.FORWARD, 0, data))

    def listen_for(self, bridge: Callable[[bytes], None]) -> None:
        """Who takes what comes over the bridge; nothing means its end."""
        self._bridge = bridge

    async def room(self) -> None:
        await self._line.drain()

    async def close(self) -> None:
        if self._listener:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
        self._lose()

    async def _listen(self, buffer: bytearray) -> None:
        try:
            while data := await self._line.read():
                self.moved += len(data)
                buffer += data
                for kind, number, body in wire.split_frames(buffer):
                    await self._dispatch(kind, number, body)
        except (ValueError, RecursionError):
            # Bytes that are no frames: the far side is not what it was, so the line is as good as cut.
            pass
        finally:
            self._lose()

    async def _dispatch(self, kind: int, number: int, body: bytes) -> None:
        if kind == wire.FORWARDED and self._bridge:
            self._bridge(body)
        request = self._open.get(number)
        if request is None:
            return
        if kind in PASSED_ON and request.to is not None:
            request.to.pass_on(kind, number, body)
            await request.to.room()
        elif kind == wire.OUT:
            if request.heard:
                request.heard(body)
            else:
                request.out += body
        elif kind in (wire.END, wire.FAIL):
            end = json.loads(body)
            if not isinstance(end, dict):
                raise ValueError("an answer that is no object")
            del self._open[number]
            self._conclude(request, kind, end)

    def _conclude(self, request: _Request, kind: int, end: dict[str, Any]) -> None:
        done = request.done
        if done.done():
            return
        if kind == wire.END:
            done.set_result(Reply(bytes(request.out), end))
        else:
            done.set_exception(FileProblem(f"{self.name}: {end.get('message')}", str(end.get("reason"))))

    def _lost(self) -> Unreachable:
        return Unreachable(f"{self.name}: the connection was cut while files were moving")

    def _lose(self) -> None:
        if self.is_alive:
            self.is_alive = False
            self._line.close()
        if self._bridge:
            self._bridge(b"")
        for request in self._open.values():
            if not request.done.done():
                request.done.set_exception(self._lost())
        self._open.clear()
