"""What to do after a line was cut: repeat a request once on a new line, or retry until a new line opens."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..core.errors import BrokenRules, ConnectError, Unreachable
from ..waiting import within
from .outpost.client import LineLost

T = TypeVar("T")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0


async def ask_again(name: str, ask: Callable[[], Awaitable[T]]) -> T:
    """Send a request that may be repeated, once more if its line was cut.

    Raises Unreachable if both lines were cut, and what `ask` raises.
    """
    with contextlib.suppress(LineLost):
        return await ask()
    try:
        return await ask()
    except LineLost:
        raise Unreachable(f"{name}: the connection was cut twice in a row; try again") from None


async def mend(reach: Callable[[], Awaitable[T]], until: float) -> T:
    """Open a new line, retrying with growing pauses until that moment of the monotonic clock.

    Raises ConnectError with the reason; one that a retry cannot mend is raised at once.
    """
    pause = FIRST_PAUSE_S
    while True:
        try:
            return await within(reach(), max(0.1, until - time.monotonic()))
        except (TimeoutError, asyncio.TimeoutError):
            raise Unreachable("no answer in time") from None
        except ConnectError as problem:
            is_final = not isinstance(problem, Unreachable) or isinstance(problem, BrokenRules)
            if is_final or time.monotonic() + pause > until:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)
