"""A session channel with any program: its input and output as a line, its complaints and its end beside that."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...waiting import within
from ..command.way import Ending

if TYPE_CHECKING:
    import asyncssh

KEPT = 256 << 10
# How long a program whose output has ended may take to end itself, with its last words.
END_S = 2.0


class ProgramLine:
    """A program in a session of its own; closing it ends the session, and `closed` is called."""

    def __init__(self, process: asyncssh.SSHClientProcess[bytes], closed: Callable[[], None]) -> None:
        self._process = process
        self._closed: Callable[[], None] | None = closed
        self._complaints = bytearray()
        self._hearing = asyncio.ensure_future(self._hear())

    @property
    def complaints(self) -> bytes:
        return bytes(self._complaints)

    def write(self, data: bytes) -> None:
        # The reader finds the end of the line and tells it.
        with contextlib.suppress(OSError):
            self._process.stdin.write(data)

    async def drain(self) -> None:
        import asyncssh

        with contextlib.suppress(OSError, asyncssh.Error):
            await self._process.stdin.drain()

    async def read(self) -> bytes:
        import asyncssh

        try:
            return await self._process.stdout.read(1 << 18)
        except (OSError, asyncssh.Error):
            return b""

    async def ending(self) -> Ending:
        with contextlib.suppress(asyncio.TimeoutError):
            await within(self._process.wait_closed(), END_S)
        with contextlib.suppress(asyncio.TimeoutError):
            await within(asyncio.shield(self._hearing), END_S)
        return Ending(self._process.exit_status, self.complaints)

    async def _hear(self) -> None:
        """All of it is read, so that the program never waits for us; the end is kept."""
        import asyncssh

        with contextlib.suppress(OSError, asyncssh.Error):
            while data := await self._process.stderr.read(1 << 16):
                self._complaints += data
                del self._complaints[:-KEPT]

    def close(self) -> None:
        self._hearing.cancel()
        self._process.channel.abort()
        closed, self._closed = self._closed, None
        if closed:
            closed()
