"""A session channel with any program as a CommandLine: input and output, standard error, and how it ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...waiting import within
from ..command.way import Ending

if TYPE_CHECKING:
    import asyncssh

# How many of the last bytes of standard error are kept.
KEPT = 256 << 10
# How long a program whose output has ended may take to exit and to close its standard error.
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
        # The reader notices the end of the line.
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
        """Read standard error, so that the program never blocks on it, and keep the last part."""
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
