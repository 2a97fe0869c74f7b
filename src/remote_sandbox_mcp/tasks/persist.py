"""Trying again: a transfer is not given up because a line was cut."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from ..core.errors import LostContact, Unreachable
from ..core.transfer import Headway, Listener, Order, Outcome
from .log import Log

# Carries out an order. May be cancelled at any moment and begun again: it goes on with what is already there.
Runner = Callable[[Order, Listener], Awaitable[Outcome]]
# What a new attempt may mend.
PASSING = (Unreachable, LostContact)
LONGEST_PAUSE_S = 60.0
GIVE_UP_AFTER_S = 3600.0
RECONNECTING = "reconnecting"


async def persist(runner: Runner, order: Order, listener: Listener, log: Log) -> Outcome:
    """Run it until it ends, again and again where contact is lost. Raises Unreachable after an hour without headway."""
    failures, since = 0, time.monotonic()
    while True:
        ear = Ear(listener)
        try:
            return await runner(order, ear.hear)
        except PASSING as problem:
            if ear.moved_at:
                failures, since = 0, ear.moved_at
            if time.monotonic() - since > GIVE_UP_AFTER_S:
                raise Unreachable(f"{problem}; there was no headway for an hour of trying again") from problem
            pause = pause_after(failures)
            log.note(f"contact lost: {problem}; trying again in {pause:g} s")
        failures += 1
        listener(replace(ear.latest, phase=RECONNECTING, rate=0.0, left_s=None))
        await asyncio.sleep(pause)


def pause_after(failures: int) -> float:
    """1, 2, 4, ... seconds, up to a minute."""
    return min(2.0 ** min(failures, 10), LONGEST_PAUSE_S)


class Ear:
    """Hears one attempt, and knows when it last got ahead; looking at what is there is not getting ahead."""

    def __init__(self, listener: Listener) -> None:
        self.latest = Headway(RECONNECTING)
        self.moved_at = 0.0
        self._listener = listener
        self._first: Headway | None = None

    def hear(self, headway: Headway) -> None:
        if headway.phase != "scanning":
            self._first = self._first or headway
            if (headway.files, headway.bytes) > (self._first.files, self._first.bytes):
                self.moved_at = time.monotonic()
        self.latest = headway
        self._listener(headway)
