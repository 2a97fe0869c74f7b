"""The pace at which connections to one machine are made again, so that one that drops them is not stormed."""

from __future__ import annotations

import asyncio
import time

from ..core.errors import Unreachable
from ..core.reconnect import Connections

# A caller is kept waiting no longer than this, and told how long it would be.
LONGEST_WAIT_S = 5.0


class Pace:
    """Remembers how long connections lasted."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._connections = Connections()

    async def wait(self) -> None:
        """Until the next connection may be made. Raises Unreachable where that is too long to wait for."""
        pause_s = self._connections.pause_s(time.monotonic())
        if pause_s > LONGEST_WAIT_S:
            count = self._connections.short
            raise Unreachable(
                f"{self._name}: the last {count} connections ended as soon as they were made; "
                f"not tried again for another {pause_s:.0f} s"
            )
        if pause_s:
            await asyncio.sleep(pause_s)

    def opened(self) -> None:
        self._connections = self._connections.opened(time.monotonic())

    def ended(self, at: float) -> None:
        """The last one ended, at a moment of the monotonic clock."""
        self._connections = self._connections.closed(at)
