"""Trying again after contact is lost: one policy, for a call that waits and for a transfer that outlives it."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from ...core.errors import LostContact, Unreachable
from ...core.sync.transfer import Headway, Listener, Outcome

T = TypeVar("T")
# One attempt at something; it may be made again, and goes on with what is already there.
Attempt = Callable[[Listener], Awaitable[T]]
# What a new attempt may mend.
PASSING = (Unreachable, LostContact)
RECONNECTING = "reconnecting"
FIRST_PAUSE_S = 0.2


@dataclass(frozen=True)
class Patience:
    """Limits on attempts without headway: their time, the pauses between them, and their number.

    `said` is what is added to the last problem where that is told much later.
    """

    seconds: float
    longest_pause_s: float
    most: int | None = None
    said: str = ""

    def pause_after(self, failures: int) -> float:
        """Return the pause: zero at first, then ever longer."""
        return min(FIRST_PAUSE_S * 2 ** min(failures - 1, 30), self.longest_pause_s) if failures else 0.0


# A caller waits; and a line that is cut again and again is not mended by trying for ever.
CALL = Patience(20.0, 4.0, most=50)
TRANSFER = Patience(3600.0, 60.0, said="there was no headway for an hour of trying again")


async def persist(
    attempt: Attempt[T], listener: Listener, patience: Patience = CALL, note: Callable[[str], None] = lambda line: None
) -> T:
    """Make attempts until one ends in another way than by lost contact. Raises Unreachable when patience is over."""
    failures = attempts = 0
    since = 0.0
    while True:
        ear = Ear(listener)
        try:
            return await attempt(ear.hear)
        except PASSING as problem:
            attempts += 1
            failures = 0 if ear.moved_at else failures
            since = ear.moved_at or since or time.monotonic()
            pause = patience.pause_after(failures)
            if time.monotonic() + pause > since + patience.seconds or attempts == patience.most:
                if not patience.said:
                    raise
                raise Unreachable(f"{problem}; {patience.said}") from problem
            note(f"contact lost: {problem}; trying again in {pause:g} s")
        failures += 1
        listener(replace(ear.latest, phase=RECONNECTING, rate=0.0, left_s=None))
        await asyncio.sleep(pause)


class Ear:
    """Hears one attempt, and knows when it last got ahead; looking at what is there is not getting ahead."""

    def __init__(self, listener: Listener) -> None:
        self.latest = Headway(RECONNECTING)
        self.moved_at = 0.0
        self._listener = listener
        self._first: Headway | None = None
        self._heard = time.monotonic()

    @property
    def silent_s(self) -> float:
        """Return how long it has not heard anything."""
        return time.monotonic() - self._heard

    def hear(self, headway: Headway) -> None:
        self._heard = time.monotonic()
        if headway.phase != "scanning":
            self._first = self._first or headway
            if (headway.files, headway.bytes) > (self._first.files, self._first.bytes):
                self.moved_at = self._heard
        self.latest = headway
        self._listener(headway)


class CutOff(Exception):
    """An attempt that lost contact, and what it had done by then, if it had begun."""

    def __init__(self, problem: Unreachable, done: Outcome | None) -> None:
        super().__init__(str(problem))
        self.problem = problem
        self.done = done


def adding_up(attempt: Attempt[Outcome]) -> Attempt[Outcome]:
    """Add the work of attempts that were cut off to the outcome of the last."""
    earlier: list[Outcome] = []

    async def add_up(listener: Listener) -> Outcome:
        try:
            return functools.reduce(Outcome.after, earlier, await attempt(listener))
        except CutOff as cut:
            earlier.extend([cut.done] if cut.done else [])
            raise cut.problem from cut

    return add_up
