"""When a lost connection may be opened again: at once, then with growing pauses."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace

from ..core.errors import Unreachable

# A caller is kept waiting no longer than this, and told how long it would be.
LONGEST_WAIT_S = 5.0
# A connection that lives as long as this has done its work; the first that do not may have met the same fault.
LIVED_S, FREE = 5.0, 4
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 60.0


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


@dataclass(frozen=True)
class Connections:
    """The connections to one machine so far. Times are those of a clock that is never set."""

    # How many in a row ended soon after they were made.
    short: int = 0
    made: float = 0.0
    ended: float = 0.0

    def opened(self, now: float) -> Connections:
        return replace(self, made=now)

    def closed(self, now: float) -> Connections:
        """One has ended; of several that end together, the first is counted.

        >>> Connections().opened(10.0).closed(11.0).closed(11.0).short, Connections(7).opened(10.0).closed(90.0).short
        (1, 0)
        """
        if self.made < self.ended:
            return replace(self, ended=now)
        return replace(self, short=self.short + 1 if now - self.made < LIVED_S else 0, ended=now)

    def pause_s(self, now: float) -> float:
        """How long to wait before the next one.

        >>> [round(Connections(short).opened(1.0).closed(2.0).pause_s(2.0), 3) for short in (0, 3, 4, 5, 6, 20)]
        [0.0, 0.0, 0.2, 0.4, 0.8, 60.0]
        """
        if self.short <= FREE:
            return 0.0
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self.short - FREE - 1, 30))
        return max(0.0, self.ended + pause - now)
