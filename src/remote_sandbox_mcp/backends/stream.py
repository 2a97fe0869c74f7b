"""A reader and a writer as a Stream: asyncio's for sockets, asyncssh's for channels."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

from ..core.errors import Unreachable


class PairStream:
    """A reader and a writer as one Stream.

    `failures` are the exceptions that its library raises when it is cut, `end` cuts it, `what` names it in a sentence.
    """

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
    try:
        reader, writer = await asyncio.open_connection(sock=sock)
    except BaseException:
        sock.close()
        raise
    return over_asyncio(reader, writer, what)


def over_asyncio(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, what: str) -> PairStream:
    # Without a write buffer, drain() returns only when all bytes have been sent.
    writer.transport.set_write_buffer_limits(0)
    return PairStream(reader, writer, writer.transport.abort, what, (OSError,))
