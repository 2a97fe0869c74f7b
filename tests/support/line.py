"""A line between a client and a local port: as slow, as frozen or as broken as a test needs it."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

HOST = "127.0.0.1"
# What may be on its way in one direction of one connection: enough for 1 Gbit/s at the slowest line that we try.
IN_FLIGHT = 16 * 1024 * 1024
# The loop rounds its sleep up to whole milliseconds and then has to wake up: measured, about one for each way.
_LATENESS_S = 0.001

T = TypeVar("T")

# A file of known hosts that several tests share knows a machine by the line's port: none is used for two lines.
_used_ports: set[int] = set()


class Line:
    """A TCP proxy in the running loop. Bytes arrive half of `rtt_s` later, however many are on their way.

    Opening costs what it would cost: the first byte of the far side arrives two round trips after the client began.
    """

    port: int

    def __init__(self, target_port: int, rtt_s: float = 0.0) -> None:
        self.target_port = target_port
        self.rtt_s = rtt_s
        self.total_opened = 0
        self.total_refused = 0
        self.frozen = False
        self._refusing = False
        self._ends: set[_End] = set()
        self._dials: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server
        self._flowing = asyncio.Event()

    async def __aenter__(self) -> Line:
        loop = asyncio.get_running_loop()
        self._flowing.set()
        while True:
            self._server = await loop.create_server(partial(_End, self, near=True), HOST, 0)
            self.port = self._server.sockets[0].getsockname()[1]
            if self.port not in _used_ports:
                _used_ports.add(self.port)
                return self
            self._server.close()

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.refuse()
        self.cut()
        await asyncio.gather(*self._dials, return_exceptions=True)
        while self._ends:
            await asyncio.gather(*(end.gone.wait() for end in self._ends))
        await self._server.wait_closed()

    @property
    def connections(self) -> int:
        """How many clients are connected now."""
        return sum(end.near for end in self._ends)

    def cut(self) -> None:
        """Reset every connection on both sides, now."""
        for dial in self._dials:
            dial.cancel()
        for end in tuple(self._ends):
            end.abort()

    def refuse(self, refusing: bool = True) -> None:
        """Reset new connections as soon as they are made."""
        self._refusing = refusing

    def freeze(self) -> None:
        """Let nothing through, in either direction; connections stay open, and new ones are accepted and wait."""
        self.frozen = True
        self._flowing.clear()
        for end in self._ends:
            end.regulate()

    def thaw(self) -> None:
        self.frozen = False
        self._flowing.set()
        for end in tuple(self._ends):
            end.deliver()
            # The other end may be gone, with its last words still on their way.
            if end.other:
                end.other.deliver()

    def opened(self, end: _End) -> None:
        """A socket of ours is open; the near one of a pair has its far side dialled."""
        self._ends.add(end)
        if not end.near:
            return
        if self._refusing:
            self.total_refused += 1
            end.abort()
            return
        self.total_opened += 1
        dial = asyncio.get_running_loop().create_task(self._dial(end))
        self._dials.add(dial)
        dial.add_done_callback(self._dials.discard)

    def closed(self, end: _End) -> None:
        self._ends.discard(end)

    async def _dial(self, near: _End) -> None:
        # The client's kernel has finished its handshake with us at once; over a line it takes three ways.
        await asyncio.sleep(1.5 * self.rtt_s)
        await self._flowing.wait()
        try:
            await asyncio.get_running_loop().create_connection(lambda: near.pair(_End(self)), HOST, self.target_port)
        except OSError:
            near.abort()


class _End(asyncio.Protocol):
    """One socket of a pair: what it receives, the other end sends when its time has come."""

    def __init__(self, line: Line, near: bool = False) -> None:
        self.line = line
        self.near = near
        self.gone = asyncio.Event()
        self.other: _End | None = None
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[tuple[float, int, Callable[[_End], None]]] = deque()
        self._in_flight = 0
        self._timer: asyncio.TimerHandle | None = None
        self._reading = True
        self._writable = True
        self._received_all = False
        self._sent_all = False

    def pair(self, far: _End) -> _End:
        """Join with the far end, which is about to be connected."""
        far.other = self
        self.other = far
        return far

    def abort(self) -> None:
        """Close with a reset, and forget what was on its way."""
        self._waiting.clear()
        if self._transport and not self._transport.is_closing():
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()

    def send(self, data: bytes) -> None:
        if self._transport and not self._transport.is_closing():
            self._transport.write(data)

    def finish(self) -> None:
        """Send the end of the stream, as the other side did."""
        if self._transport and not self._transport.is_closing():
            # The other side may have reset it a moment ago.
            with suppress(OSError):
                self._transport.write_eof()
            self._sent_all = True
            self._close_if_done()

    def close(self) -> None:
        if self._transport:
            self._transport.close()

    def _close_if_done(self) -> None:
        if self._received_all and self._sent_all:
            self.close()

    # What the loop tells us

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.line.opened(self)
        self.regulate()
        if self.other:
            self.other.deliver()

    def data_received(self, data: bytes) -> None:
        self._later(len(data), lambda other: other.send(data))

    def eof_received(self) -> bool:
        self._received_all = True
        self._later(0, _End.finish)
        self._close_if_done()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        self.line.closed(self)
        self._later(0, _End.abort if exc else _End.close)

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        if self.other:
            self.other.deliver()

    # The queue

    def _later(self, size: int, action: Callable[[_End], None]) -> None:
        self._waiting.append((asyncio.get_running_loop().time() + self.line.rtt_s / 2, size, action))
        self._in_flight += size
        self.regulate()
        self.deliver()

    def deliver(self) -> None:
        """Hand over everything whose time has come, and be back when the next of it is due."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        while self._waiting and self._can_deliver():
            due, size, action = self._waiting[0]
            if due - _LATENESS_S > loop.time():
                self._timer = loop.call_at(due - _LATENESS_S, self.deliver)
                break
            self._waiting.popleft()
            self._in_flight -= size
            assert self.other
            action(self.other)
        self.regulate()

    def _can_deliver(self) -> bool:
        other = self.other
        return not self.line.frozen and other is not None and other._transport is not None and other._writable

    def regulate(self) -> None:
        """Read only while bytes may move and there is room for them."""
        reading = not self.line.frozen and self._in_flight < IN_FLIGHT
        # To read on after the end would be to see the end once more.
        if reading == self._reading or self._received_all or not self._transport or self._transport.is_closing():
            return
        self._reading = reading
        self._transport.resume_reading() if reading else self._transport.pause_reading()


class ThreadedLine:
    """A Line in a thread with a loop of its own, for tests that block and clients that are other processes."""

    def __init__(self, target_port: int, rtt_s: float = 0.0) -> None:
        self._line = Line(target_port, rtt_s)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="line", daemon=True)

    def __enter__(self) -> ThreadedLine:
        self._thread.start()
        self._await(self._line.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._await(self._line.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @property
    def port(self) -> int:
        return self._line.port

    @property
    def connections(self) -> int:
        return self._do(lambda: self._line.connections)

    @property
    def frozen(self) -> bool:
        return self._line.frozen

    @property
    def total_opened(self) -> int:
        return self._line.total_opened

    @property
    def total_refused(self) -> int:
        return self._line.total_refused

    def cut(self) -> None:
        self._do(self._line.cut)

    def refuse(self, refusing: bool = True) -> None:
        self._do(lambda: self._line.refuse(refusing))

    def freeze(self) -> None:
        self._do(self._line.freeze)

    def thaw(self) -> None:
        self._do(self._line.thaw)

    def _do(self, action: Callable[[], T]) -> T:
        async def act() -> T:
            return action()

        return self._await(act())

    def _await(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)
