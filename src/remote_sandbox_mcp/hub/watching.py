"""The watchdog inside the hub: holds its lock and runs its loop while something is watched."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from ..local.processes.locks import Lock, holder
from ..local.waiting import Chores
from ..services.watchdog.daemon import ENDING_S, LOCK_FILE, AlreadyWatched, Pulse, Rounds, take_lock

# The first front waits for the hub, which needs none of the rest yet.
if TYPE_CHECKING:
    from .houses import Houses

log = logging.getLogger(__name__)


class HubWatchdog:
    """Runs the watchdog in this process if it gets the lock; otherwise another hub or a service does it."""

    def __init__(self, state: Path, houses: Houses | None = None) -> None:
        """`houses`: configurations of sessions, whose machines the watchdog does not log in to a second time."""
        self._state = state
        self._houses = houses
        self._work = Chores("the watchdog")
        # Whether anything was to be watched, and the configuration file of the last request.
        self._is_wanted = False
        self.config: Path | None = None

    @property
    def is_on(self) -> bool:
        return bool(self._work)

    async def begin(self, config: Path | None) -> None:
        """Begin to watch, unless another process does. Raises SandboxError."""
        self._is_wanted, self.config = True, config
        # Shielded: if the caller goes away in between, an idle process would hold the lock.
        await asyncio.shield(asyncio.ensure_future(self._begin(config)))

    async def _begin(self, config: Path | None) -> None:
        try:
            # Ask the lock, not our task: a task that is about to end has released the lock already.
            lock = await asyncio.to_thread(take_lock, self._state)
        except AlreadyWatched:
            return
        self.go_round(lock, config, until_idle=True)

    def go_round(self, lock: Lock, config: Path | None, *, until_idle: bool) -> None:
        """Run the loop for which the lock is held, until nothing is left to do or let_go."""
        self._is_wanted, self.config = True, config
        # A context of its own: the loop is not part of the call that started it.
        task = contextvars.Context().run(self._work.start, self._run(lock, config, until_idle))
        # A task that is cancelled before its first step has not released the lock.
        task.add_done_callback(lambda _: lock.release())

    async def _run(self, lock: Lock, config: Path | None, until_idle: bool) -> None:
        from .rounds import make_rounds, nobody

        pulse, rounds = Pulse(self._state), None
        log.info("watching over %s", self._state)
        try:
            stock, present = (self._houses.stock, self._houses.present) if self._houses else (None, nobody)
            rounds = make_rounds(lock, config, pulse, until_idle=until_idle, stock=stock, present=present)
            await rounds.run()
        finally:
            self._end(lock, rounds)
            await asyncio.to_thread(pulse.close)

    def _end(self, lock: Lock, rounds: Rounds | None) -> None:
        lock.release()
        if rounds:
            rounds.let_go()
        log.info("watching no more: %s", (rounds.why_ended if rounds else "") or "told to end")

    async def let_go(self) -> bool:
        """Release the lock, so that another process can take it; False where the work does not end in time."""
        self._is_wanted = False
        for task in (work := set(self._work)):
            task.cancel()
        return not work or not (await asyncio.wait(work, timeout=ENDING_S))[1]

    async def take_up(self) -> None:
        """Continue what a process that has ended was watching. Raises SandboxError."""
        if self._is_wanted and not self._work and await asyncio.to_thread(self._is_left):
            log.info("nobody looks after the active watches any more")
            await self.begin(self.config)

    def _is_left(self) -> bool:
        return holder(self._state / LOCK_FILE) is None and self.active() > 0

    def active(self) -> int:
        """Number of active watches."""
        from ..services.watchdog.service import from_database

        return from_database(self._state)[1]

    async def needs(self) -> list[str]:
        """Explain why this process is needed, as sentences."""
        if not self._work:
            return []
        active = await asyncio.to_thread(self.active)
        # Notifications about their end may still be pending.
        jobs = f"{active} watched job{'' if active == 1 else 's'}" if active else "watched jobs that have ended"
        return [f"it looks after {jobs}"]
