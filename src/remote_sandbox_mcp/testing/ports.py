"""Connections in memory, for tests: two ends, of which one is a service that the test wrote."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from ..core.errors import Unreachable
from ..core.port import Stream

# As much as a real connection holds before its writer has to wait.
MOST_UNREAD = 1 << 18

Service = Callable[[Stream], Awaitable[None]]


class MemoryStream:
    """One end of a connection; `other` is the other one."""

    other: MemoryStream

    def __init__(self) -> None:
        self._arrived = bytearray()
        self._ended = False
        # Why nothing can be read any more, and why nothing can be sent.
        self._trouble = self._deaf = ""
        self._changed = asyncio.Event()

    async def read(self, most: int = 65536) -> bytes:
        await self._until(lambda: bool(self._arrived) or self._ended)
        data = bytes(self._arrived[:most])
        del self._arrived[: len(data)]
        if not data and self._trouble:
            raise cut(self._trouble)
        self._note()
        return data

    def write(self, data: bytes) -> None:
        if not self._deaf:
            self.other._arrived += data
            self.other._note()

    async def drain(self) -> None:
        await self.other._until(lambda: len(self.other._arrived) < MOST_UNREAD)
        if self._deaf:
            raise cut(self._deaf)

    def write_eof(self) -> None:
        self.other._ended = True
        self.other._note()

    def close(self) -> None:
        """The other end finds the end of what was sent, and cannot send any more."""
        self._arrived.clear()
        self._ended = True
        self._note()
        self.other._ended = True
        self.other._deaf = self.other._deaf or "the other side has closed it"
        self.other._note()

    def lose(self, why: str) -> None:
        self._trouble, self._deaf, self._ended = why, why, True
        self.other._arrived.clear()
        self.other._note()
        self._note()

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    def _note(self) -> None:
        self._changed.set()


def cut(why: str) -> Unreachable:
    return Unreachable(f"the connection was cut: {why}")


def converse(service: Service, line: asyncio.Future[None]) -> MemoryStream:
    """A caller's end of a connection to the service; it is cut when the sandbox's line is, or the service fails."""
    ours, theirs = MemoryStream(), MemoryStream()
    ours.other, theirs.other = theirs, ours

    async def serve() -> None:
        # That the caller has gone is nothing that a service must expect.
        with contextlib.suppress(Unreachable), contextlib.closing(theirs):
            await service(theirs)

    serving = asyncio.ensure_future(serve())

    def lose(_: object) -> None:
        ours.lose("the line was lost")
        serving.cancel()

    line.add_done_callback(lose)
    # A failure of a fake service is not hidden: the event loop logs it.
    serving.add_done_callback(lambda _: line.remove_done_callback(lose))
    return ours
