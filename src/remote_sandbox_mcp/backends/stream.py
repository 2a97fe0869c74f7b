"""A reader and a writer as a Stream: asyncio's for sockets, asyncssh's for channels; and one Stream tied to another."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import Callable
from typing import Any

from ..core.errors import Unreachable
from ..core.sandboxes.port import Stream
from ..local.waiting import undone_by

# One side has ended, and nothing comes from the other: many programs never close such a connection.
HALF_CLOSED_S = 60.0


class PairStream:
    """A reader and a writer as one Stream; `end` cuts it, `failures` are what its library raises then."""

    def __init__(
        self, reader: Any, writer: Any, end: Callable[[], None], what: str, failures: tuple[type[Exception], ...]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._end = end
        self._what = what
        self._failures = failures

    async def read(self, most: int = 65536) -> bytes:
        try:
            data: bytes = await self._reader.read(most)
        except self._failures as problem:
            raise self._cut(problem) from None
        return data

    def write(self, data: bytes) -> None:
        # The next drain or read raises that it was cut.
        with contextlib.suppress(*self._failures):
            self._writer.write(data)

    async def drain(self) -> None:
        try:
            await self._writer.drain()
        except self._failures as problem:
            raise self._cut(problem) from None

    def write_eof(self) -> None:
        with contextlib.suppress(*self._failures):
            self._writer.write_eof()

    def close(self) -> None:
        self._end()

    def _cut(self, problem: Exception) -> Unreachable:
        return Unreachable(f"the connection to {self._what} was cut: {problem or 'the other side is gone'}")


async def over_socket(sock: socket.socket, what: str) -> PairStream:
    """A connected socket as a Stream, which owns it from now on."""
    with undone_by(sock.close):
        reader, writer = await asyncio.open_connection(sock=sock)
    return over_asyncio(reader, writer, what)


def over_asyncio(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, what: str) -> PairStream:
    # Without a write buffer, drain() returns only when all bytes have been sent.
    writer.transport.set_write_buffer_limits(0)
    return PairStream(reader, writer, writer.transport.abort, what, (OSError,))


class _Ties:
    """Two streams, each of which is copied into the other."""

    def __init__(self, moved: Callable[[], None]) -> None:
        self._moved = moved
        self.at = asyncio.get_running_loop().time()

    def note(self) -> None:
        self.at = asyncio.get_running_loop().time()
        self._moved()

    async def carry(self, source: Stream, target: Stream) -> None:
        """Copy one direction, no faster than the target takes it."""
        while data := await source.read():
            self.note()
            target.write(data)
            await target.drain()
            self.note()
        target.write_eof()
        self.note()


async def carry_both_ways(
    here: Stream, there: Stream, *, moved: Callable[[], None] = lambda: None, idle_s: float = math.inf
) -> None:
    """Copy in both directions until both sides have ended, or one is cut. Raises Unreachable.

    It ends, too, when nothing has moved for `idle_s`, or for a minute after one side has ended.
    """
    ties = _Ties(moved)
    ways = [asyncio.ensure_future(ties.carry(here, there)), asyncio.ensure_future(ties.carry(there, here))]
    running = set(ways)
    try:
        while running:
            patience = idle_s if len(running) > 1 else min(idle_s, HALF_CLOSED_S)
            left = ties.at + patience - asyncio.get_running_loop().time()
            if left <= 0:
                break
            timeout = None if left == math.inf else left
            ended, running = await asyncio.wait(running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            for way in ended:
                way.result()
    finally:
        here.close()
        there.close()
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
