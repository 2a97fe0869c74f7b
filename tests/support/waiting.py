"""Waiting for what a test asks for, under a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tests.support.pace import Deadline

T = TypeVar("T")

DEADLINE_S = 15.0


async def eventually(
    ask: Callable[[], Awaitable[T]], holds: Callable[[T], bool], what: str, pause_s: float = 0.02
) -> T:
    """Ask until the answer is as it should be, ever less often; fails after a deadline."""
    deadline = Deadline(DEADLINE_S)
    while not holds(answer := await ask()):
        assert not deadline.has_passed(), f"waited {DEADLINE_S} s for {what}; the last answer was {answer}"
        await asyncio.sleep(pause_s)
        pause_s = max(pause_s, min(1.3 * pause_s, 0.2))
    return answer
