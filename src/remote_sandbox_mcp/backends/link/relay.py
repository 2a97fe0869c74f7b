"""The near side of a relay: carries many connections to a machine's ports over one line, each with its own window."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable

from ...core.errors import BrokenRules, Unreachable
from ...core.sandboxes.foreign import NONSENSE, not_understood, too_much, understood
from ...core.sandboxes.port import PortClosed, Stream
from ...far.outpost import port as far
from ...far.outpost import wire
from ...local.waiting import unlogged, within
from .client import LineLost, OutpostClient, greet
from .lane import WideLine

RELAY = ("outpost/wire", "outpost/port")
CONNECT_S = 15.0
# An unused relay is closed after this time.
IDLE_S = 60.0
LONGEST_NUMBER, LONGEST_REASON = 20, 500


class RelayPorts:
    """The ports of a sandbox with an outpost, through a relay that is started beside it and ends when unused."""

    def __init__(self, name: str, open_relay: Callable[[OutpostClient], Awaitable[PortRelay]]) -> None:
        self._name = name
        self._open_relay = open_relay
        self._relay: PortRelay | None = None
        self._turn = asyncio.Lock()

    async def connect(self, client: OutpostClient, port: int) -> Stream:
        """Raises PortClosed, LineLost, and what opening a relay raises."""
        async with self._turn:
            if self._relay is None or not self._relay.is_alive:
                self._relay = await self._open_relay(client)
                # sshd limits sessions, so an unused relay gives its session back, but not at once: the next connection
                # often comes soon.
                self._relay.patience_s = IDLE_S
            relay = self._relay
        try:
            return await within(relay.connect(port), CONNECT_S)
        except (asyncio.TimeoutError, TimeoutError):
            raise Unreachable(f"{self._name}: no answer from port {port} in {CONNECT_S:.0f} s") from None

    async def close(self) -> None:
        if self._relay:
            await self._relay.close()


class PortRelay:
    """Talks to the program in far/port.py."""

    def __init__(self, line: WideLine, name: str) -> None:
        self.name = name
        self.line = line
        self.is_alive = False
        # The machine's host name, as it says itself.
        self.node = ""
        # It closes when there was no connection for so long.
        self.patience_s = math.inf
        self._numbers = itertools.count(1)
        self._streams: dict[int, RelayStream] = {}
        self._listener: asyncio.Task[None] | None = None
        self.trouble: BrokenRules | None = None

    async def greet(self, token: str) -> None:
        """Raises NoOutpost, Unreachable."""
        hello, rest = await greet(self.line, token, self.name)
        with understood(self.name):
            self.node = hello.text("node") if hello.has("node") else ""
        self.is_alive = True
        self._listener = asyncio.create_task(self._listen(rest))

    async def connect(self, port: int) -> RelayStream:
        """Raises PortClosed, LineLost."""
        if not self.is_alive:
            raise LineLost
        number = next(self._numbers)
        stream = self._streams[number] = RelayStream(self, number, f"port {port} of {self.name}")
        self.say(far.DIAL, number, b"%d" % port)
        try:
            await stream.dialled
        except BaseException:
            stream.close()
            raise
        return stream

    def say(self, kind: int, number: int, body: bytes = b"") -> None:
        if self.is_alive:
            self.line.write(wire.frame(kind, number, body))

    def forget(self, number: int) -> None:
        if self._streams.pop(number, None):
            self.say(far.ENDED, number)
            if not self._streams and self.patience_s < math.inf:
                asyncio.get_running_loop().call_later(self.patience_s, self._end_if_idle, next(self._numbers))

    def _end_if_idle(self, number: int) -> None:
        # Every connection takes a number: the next one shows that none came since the timer was set.
        if not self._streams and next(self._numbers) == number + 1:
            self._lose()

    async def close(self) -> None:
        if self._listener:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
        self._lose()

    async def _listen(self, buffer: bytearray) -> None:
        try:
            while data := await self.line.read():
                buffer += data
                for kind, number, body in wire.split_frames(buffer, self._admit):
                    if number in self._streams:
                        self._streams[number].take(kind, body)
        except BrokenRules as problem:
            self.trouble = problem
        except NONSENSE as problem:
            # What it sends is no longer the protocol.
            self.trouble = not_understood(self.name, problem)
        finally:
            self._lose()

    def _admit(self, kind: int, number: int, length: int) -> None:
        """Refuse a frame that is larger than any window. Raises BrokenRules."""
        if length > far.PORT_WINDOW:
            raise too_much(self.name)

    def _lose(self) -> None:
        if self.is_alive:
            self.is_alive = False
            self.line.close()
        for stream in self._streams.values():
            stream.lose()
        self._streams.clear()


class RelayStream:
    """One connection through a relay. Neither side sends more bytes than the other has room for."""

    def __init__(self, relay: PortRelay, number: int, what: str) -> None:
        self._relay = relay
        self._number = number
        self._what = what
        self.dialled: asyncio.Future[None] = unlogged(asyncio.get_running_loop().create_future())
        self._arrived = bytearray()
        self._ended = False
        self._trouble = ""
        self._read = 0
        self._unsent = bytearray()
        self._room = far.PORT_WINDOW
        # How many bytes the far side may still send before we tell it that there is room again.
        self._window = far.PORT_WINDOW
        self._is_last = False
        self._news, self._sent = asyncio.Event(), asyncio.Event()
        self._sent.set()

    async def read(self, most: int = 65536) -> bytes:
        while not self._arrived and not self._ended:
            self._news.clear()
            await self._news.wait()
        data = bytes(self._arrived[:most])
        del self._arrived[: len(data)]
        if not data and self._trouble:
            raise self._cut()
        self._read += len(data)
        if self._read >= far.PORT_PIECE:
            self._relay.say(far.ROOM, self._number, b"%d" % self._read)
            self._window += self._read
            self._read = 0
        return data

    def write(self, data: bytes) -> None:
        if not self._trouble:
            self._unsent += data
            self._send()

    async def drain(self) -> None:
        await self._sent.wait()
        if self._trouble:
            raise self._cut()
        await self._relay.line.drain()

    def write_eof(self) -> None:
        self._is_last = True
        self._send()

    def close(self) -> None:
        self._relay.forget(self._number)
        self._end("")

    def lose(self) -> None:
        """End the connection because its line was cut."""
        if not self.dialled.done():
            self.dialled.set_exception(self._relay.trouble or LineLost())
        self._end(str(self._relay.trouble or "the line to the machine was lost"))

    def take(self, kind: int, body: bytes) -> None:
        """Take a frame. Raises BrokenRules for more bytes than there is room for, ValueError for a malformed one."""
        if kind == far.DIALLED:
            if not self.dialled.done():
                self.dialled.set_result(None)
        elif kind == far.BYTES:
            self._take_bytes(body)
        elif kind == far.ROOM:
            self._take_room(int(body[:LONGEST_NUMBER]))
        elif kind == far.LAST:
            self._ended = True
            self._news.set()
        elif kind == far.ENDED:
            self._refuse(body[:LONGEST_REASON].decode("utf-8", "replace"))

    def _take_bytes(self, body: bytes) -> None:
        self._window -= len(body)
        if self._window < 0 or not body or self._ended:
            raise too_much(self._relay.name)
        self._arrived += body
        self._news.set()

    def _take_room(self, more: int) -> None:
        """The far side has room again. Raises ValueError for more room than bytes were sent."""
        if not 0 < more <= far.PORT_WINDOW - self._room:
            raise ValueError("room that there cannot be")
        self._room += more
        self._send()

    def _refuse(self, why: str) -> None:
        if not self.dialled.done():
            self.dialled.set_exception(PortClosed(f"nothing accepts connections at {self._what}: {why}"))
        self._end(why)

    def _send(self) -> None:
        while self._unsent and self._room:
            piece = bytes(self._unsent[: min(self._room, far.ONE_READ)])
            del self._unsent[: len(piece)]
            self._room -= len(piece)
            self._relay.say(far.BYTES, self._number, piece)
        if self._unsent:
            self._sent.clear()
            return
        self._sent.set()
        if self._is_last:
            self._is_last = False
            self._relay.say(far.LAST, self._number)

    def _end(self, trouble: str) -> None:
        self._trouble = self._trouble or trouble
        self._ended = True
        self._unsent.clear()
        self._news.set()
        self._sent.set()

    def _cut(self) -> Unreachable:
        return Unreachable(f"the connection to {self._what} was cut: {self._trouble}")
