"""Going on after a cut line: asking once more on a new one, or waiting until there is a new one."""

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
    """The answer to what may be asked twice: on a new line, where the first was cut.

    Raises Unreachable where both were, and what `ask` raises.
    """
    with contextlib.suppress(LineLost):
        return await ask()
    try:
        return await ask()
    except LineLost:
        raise Unreachable(f"{name}: the connection was cut twice in a row; try again") from None


async def mend(reach: Callable[[], Awaitable[T]], until: float) -> T:
    """A new line, tried with growing pauses until that moment of the monotonic clock.

    Raises ConnectError, which says why there is none: what trying again does not mend is raised at once.
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
