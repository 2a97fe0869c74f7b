"""One round of the watchdog: carry out pending effects, then look at due watches, one question per machine."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ...core.jobs.job import JobQuery, JobSeen
from ...core.jobs.lifecycle import decide, question
from ...core.jobs.watch import NoContact, Watch
from ...local.store.jobs import JobRecords
from ...local.store.waiting import WaitingRows
from ...local.store.watches import Watches
from .checkpoints import look_at
from .effects import Announce, Effects, Get, attempt, no_contact

# Earliest next round after trouble; and while notifications are being sent.
AFTER_TROUBLE_S, WHILE_BUSY_S = 30.0, 1.0
# How long finished watches are kept, and how often old ones are removed.
KEPT_S, PRUNE_EVERY_S = 30 * 86400.0, 86400.0

# How long it may take to stop a job: it has ten seconds to end by itself.
STOP_S = 40.0

log = logging.getLogger(__name__)


class WatchSupervisor:
    """Looks after all watches. Only one process does this at a time, whichever others use the same rows."""

    def __init__(
        self, watches: Watches, records: JobRecords, get: Get, announce: Announce, *,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._watches = watches
        self._records = records
        self._get = get
        self._clock = clock
        self._effects = Effects(watches, records, get, announce, clock)
        self._pruned = -math.inf

    async def tick(self) -> float:
        """Do all that is due; returns the epoch second at which something is due next, infinity for never.

        All machines are visited at once, and none waits for another. Raises ConfigError where the rows cannot be read.
        """
        now, self._effects.trouble = self._clock(), False
        self._watches.recover(now, self._effects.in_hand)
        due: dict[str, list[Watch]] = {effect.sandbox: [] for effect in self._watches.pending(now)}
        for watch in self._watches.due(now):
            due.setdefault(watch.sandbox, []).append(watch)
        await asyncio.gather(*(self._effects.do(self._visit(sandbox, watches)) for sandbox, watches in due.items()))
        await self._effects.settle_down()
        # Monotonic clock, immune to clock changes: with the other one, pruning could repeat again and again.
        if time.monotonic() - self._pruned >= PRUNE_EVERY_S:
            before = self._clock() - KEPT_S
            self._watches.prune(before)
            self._records.prune(before)
            WaitingRows(self._watches.database).prune(before)
            self._pruned = time.monotonic()
        return self._next()

    async def _visit(self, sandbox: str, watches: Sequence[Watch]) -> None:
        await self._effects.carry_out(sandbox)
        if watches:
            # In two configurations, one name may stand for two machines.
            groups: dict[str, list[Watch]] = {}
            for watch in watches:
                groups.setdefault(watch.configuration, []).append(watch)
            await asyncio.gather(*map(self._tend, groups.values()))
            await self._effects.carry_out(sandbox)

    async def _tend(self, watches: Sequence[Watch]) -> None:
        """Look at watches of one sandbox in one configuration, and decide about each."""
        found = await attempt(self._inspect(watches))
        if isinstance(found, Exception):
            trouble = no_contact(found)
            for watch in watches:
                await self._effects.do(self._judge(watch, trouble))
            return
        self._records.note_all((seen.job_id, seen) for seen in found if seen.job_id)
        for watch, seen in zip(watches, found, strict=True):
            await self._effects.do(self._judge(watch, seen))

    async def _inspect(self, watches: Sequence[Watch]) -> list[JobSeen]:
        return await look_at(lambda queries: self._ask(watches[0], queries), [question(watch) for watch in watches])

    async def _ask(self, watch: Watch, queries: Sequence[JobQuery]) -> list[JobSeen]:
        found = await (await self._get(watch)).jobs.inspect(queries)
        if len(found) != len(queries):
            raise ValueError(f"{watch.sandbox} was asked for {len(queries)} jobs and answered for {len(found)}")
        return found

    async def _judge(self, watch: Watch, seen: JobSeen | NoContact) -> None:
        now = self._clock()
        decision = decide(watch, seen, now)
        # If the row has changed meanwhile, the observation is outdated; the next round looks again.
        if self._watches.commit(decision, now):
            for event in decision.events:
                log.info("watch %d: %s: %s", watch.id, event.type.value, event.summary)
            if decision.stop:
                await self._stop(decision.watch)

    async def _stop(self, watch: Watch) -> None:
        """Stop a job whose time is over; if that fails, the next look wants it again."""
        query = replace(question(watch), job_id=watch.job_id)
        stopped = await attempt((await self._get(watch)).jobs.stop(query), STOP_S)
        log.info("watch %d: its time is over: %s", watch.id, stopped if isinstance(stopped, Exception) else "stopped")
        found = self._watches.get(watch.id)
        if not isinstance(stopped, Exception) and stopped.is_over and found:
            await self._judge(found, stopped)

    def _next(self) -> float:
        if self._effects.in_hand:
            return self._clock() + WHILE_BUSY_S
        due = self._watches.next_due()
        earliest = self._clock() + AFTER_TROUBLE_S if self._effects.trouble else 0.0
        return math.inf if due is None else max(earliest, due)
