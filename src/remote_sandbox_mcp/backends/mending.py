"""After a line was cut: repeat a request, retry until a new line opens, and pause where connections end at once."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from ..core.errors import BrokenRules, ConnectError, LostContact, SandboxError, Unreachable
from ..local.waiting import within
from .link.client import LineLost

T = TypeVar("T")
S = TypeVar("S", bound="Openable")
FIRST_RETRY_S, LONGEST_RETRY_S = 0.1, 2.0


class Openable(Protocol):
    async def open(self) -> None: ...

    async def close(self) -> None: ...


async def opened(sandbox: S) -> S:
    """Open a sandbox, or close it if that fails."""
    try:
        await sandbox.open()
    except BaseException:
        await sandbox.close()
        raise
    return sandbox


async def ask_again(name: str, ask: Callable[[], Awaitable[T]]) -> T:
    """Send a request, once more if its line was cut. Raises Unreachable if both were cut, and what `ask` raises."""
    with contextlib.suppress(LineLost):
        return await ask()
    try:
        return await ask()
    except LineLost:
        raise Unreachable(f"{name}: the connection was cut twice in a row; try again") from None


async def mend(reach: Callable[[], Awaitable[T]], until: float) -> T:
    """Open a new line, retrying with growing pauses until that moment. Raises ConnectError, at once if none helps."""
    pause = FIRST_RETRY_S
    while True:
        try:
            return await within(reach(), max(0.1, until - time.monotonic()))
        except (TimeoutError, asyncio.TimeoutError):
            raise Unreachable("no answer in time") from None
        except ConnectError as problem:
            if not is_passing(problem) or time.monotonic() + pause > until:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_RETRY_S)


async def over_cuts(ask: Callable[[], Awaitable[T]], until: float) -> T:
    """Ask again and again while the machine cannot be reached, until that moment of the monotonic clock.

    Raises what `ask` raises last, and at once what another attempt cannot mend.
    """
    pause = FIRST_RETRY_S
    while True:
        try:
            return await ask()
        except (Unreachable, LostContact) as problem:
            if not is_passing(problem) or time.monotonic() + pause > until:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_RETRY_S)


def is_passing(problem: SandboxError) -> bool:
    """Whether the machine may answer again: it is out of reach now, and what runs there may go on."""
    if isinstance(problem, LostContact):
        return problem.outcome == "unknown"
    return isinstance(problem, Unreachable) and not isinstance(problem, BrokenRules)


# A caller waits no longer than this; a longer pause is an error that says how long it is.
LONGEST_WAIT_S = 5.0
# A connection that lived this long counts as good. The first few short ones in a row cause no pause: connections that
# end together may have met the same fault.
LIVED_S, FREE = 5.0, 4
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 60.0


class Pace:
    """Delays reconnecting to a machine whose last connections ended soon after they were made."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._connections = Connections()

    async def wait(self) -> None:
        """Wait until the next connection may be made. Raises Unreachable if that takes too long."""
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
        """Note that the last connection ended, at a moment of the monotonic clock."""
        self._connections = self._connections.closed(at)


@dataclass(frozen=True)
class Connections:
    """The connections to one machine so far. Times are of the monotonic clock, which is immune to clock changes."""

    # How many in a row ended soon after they were made.
    short: int = 0
    made: float = 0.0
    ended: float = 0.0

    def opened(self, now: float) -> Connections:
        return replace(self, made=now)

    def closed(self, now: float) -> Connections:
        """A connection has ended; of several that end together, only the first counts.

        >>> Connections().opened(10.0).closed(11.0).closed(11.0).short, Connections(7).opened(10.0).closed(90.0).short
        (1, 0)
        """
        if self.made < self.ended:
            return replace(self, ended=now)
        return replace(self, short=self.short + 1 if now - self.made < LIVED_S else 0, ended=now)

    def pause_s(self, now: float) -> float:
        """Return how long to wait before the next one.

        >>> [round(Connections(short).opened(1.0).closed(2.0).pause_s(2.0), 3) for short in (0, 3, 4, 5, 6, 20)]
        [0.0, 0.0, 0.2, 0.4, 0.8, 60.0]
        """
        if self.short <= FREE:
            return 0.0
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self.short - FREE - 1, 30))
        return max(0.0, self.ended + pause - now)
