"""One round of the watchdog: carry out pending effects, then look at due watches, one question per machine."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from typing import TypeVar

from ...core.errors import BadArgument, ConfigError, FileProblem, NotStarted, SandboxError, UnknownSandbox, Unsupported
from ...core.jobs.job import JobOrder, JobQuery, JobSeen, JobStarted, JobState, NoCards
from ...core.jobs.lifecycle import decide, question, resume_refused, resumed, take_back
from ...core.jobs.watch import Decision, Event, NoContact, Resume, Unsent, Watch
from ...core.sandboxes.sandbox import Sandbox
from ...core.texts.shown import HIDDEN
from ...local.store.jobs import JobRecord, JobRecords
from ...local.store.waiting import WaitingRows
from ...local.store.watches import DONE, FAILED, LONGEST_WAIT_S, PENDING, Effect, Watches
from ...local.waiting import within
from .curves import look_at

# The sandbox of a watch, as the configuration of the watch has it.
Get = Callable[[Watch], Awaitable[Sandbox]]
Announce = Callable[[str, Watch, Event], Awaitable[None]]

# How many notifications run at once, how long a round waits for them, and how long one may take.
MOST_AT_ONCE = 16
PATIENCE_S = 5.0
LONGEST_TELLING_S = 3600.0
# Pauses before a notification that failed is tried again.
RETRIES_S = (10.0, 60.0, 300.0)
# The machine answered that nothing was started, and a retry would not change that.
REFUSALS = (NotStarted, BadArgument, Unsupported, FileProblem)
# How long a machine may take to answer; and to stop a job, which has ten seconds to end by itself.
LIMIT_S, STOP_S = 30.0, 40.0
# Earliest next round after trouble; and while notifications are being sent.
AFTER_TROUBLE_S, WHILE_BUSY_S = 30.0, 1.0
# How long finished watches are kept, and how often old ones are removed.
KEPT_S, PRUNE_EVERY_S = 30 * 86400.0, 86400.0

log = logging.getLogger(__name__)


class Effects:
    """Carries out pending effects: mark one as taken, do it, then record the result."""

    def __init__(
        self, watches: Watches, records: JobRecords, get: Get, announce: Announce, clock: Callable[[], float]
    ) -> None:
        self._watches = watches
        self._records = records
        self._get = get
        self._announce = announce
        self._clock = clock
        self._turns = asyncio.Semaphore(MOST_AT_ONCE)
        # One queue per (watch, channel) keeps notifications in order.
        self._announcing: dict[tuple[int, str], asyncio.Task[None]] = {}
        self._in_hand: set[int] = set()
        # Whether rows could not be written in this round.
        self.trouble = False

    @property
    def in_hand(self) -> Collection[int]:
        """Ids of notifications that are being sent or queued."""
        return self._in_hand

    async def carry_out(self, sandbox: str) -> None:
        """Do all that is pending for a sandbox; notifications are sent in the background."""
        if resumes := self._begin_announcing(sandbox):
            await asyncio.gather(*(self.do(self.resume(effect)) for effect in resumes))
            self._begin_announcing(sandbox)

    async def settle_down(self) -> None:
        """Wait a little for notifications: a slow hook must not hold up the rest."""
        if self._announcing:
            await asyncio.wait(self._announcing.values(), timeout=PATIENCE_S)
        self._announcing = {lane: task for lane, task in self._announcing.items() if not task.done()}

    async def do(self, work: Awaitable[None]) -> None:
        """Run one piece of work; its failure must not stop the others."""
        problem = await attempt(work, None)
        if problem is not None:
            log.warning("a part of a round failed: %s", reason_of(problem))
            self.trouble = True

    # Resuming

    async def resume(self, effect: Effect) -> None:
        """Start a job again, unless another process does; its watch says what came of it."""
        watch = self._watches.get(effect.watch_id)
        if watch is None or effect.resume is None or not self._watches.take(effect):
            return
        outcome = await attempt(self._start(watch, effect.resume))
        if isinstance(outcome, JobStarted):
            self._write_down(watch, outcome)
            self._close(effect, resumed(watch, outcome, self._clock(), asked_by=effect.resume.asked_by))
        elif isinstance(outcome, NoCards) and not effect.resume.asked_by:
            # Somebody else has its cards by now: it is resumed when they are free.
            due = self._clock() + min(watch.policy.interval_s, LONGEST_WAIT_S)
            self._watches.settle(effect, PENDING, problem=reason_of(outcome), due=due)
        elif isinstance(outcome, REFUSALS) and effect.resume.asked_by:
            self._close(effect, resume_refused(watch, effect.resume, reason_of(outcome), self._clock()))
        elif isinstance(outcome, REFUSALS):
            await self._refused(effect, watch, reason_of(outcome))
        else:
            self._put_off(effect, watch, no_contact(outcome))

    async def _start(self, watch: Watch, resume: Resume) -> JobStarted:
        if HIDDEN in watch.policy.resume_command:
            raise NotStarted("the secret in its resume command is not known any more")
        sandbox = await self._get(watch)
        return await sandbox.jobs.start(order(watch, resume))

    async def _refused(self, effect: Effect, watch: Watch, reason: str) -> None:
        """Find out why nothing was started: it cannot be, or the job still runs or has ended after all."""
        seen = await attempt(self._inspect(watch))
        if isinstance(seen, Exception):
            self._put_off(effect, watch, no_contact(seen))
        elif seen.state is JobState.MISSING:
            self._put_off(effect, watch, seen)
        elif seen.state is JobState.GONE:
            self._close(effect, resumed(watch, reason, self._clock()))
        else:
            self._close(effect, take_back(watch, self._clock()))

    async def _inspect(self, watch: Watch) -> JobSeen:
        (seen,) = await (await self._get(watch)).jobs.inspect([question(watch)])
        return seen

    def _close(self, effect: Effect, decision: Decision) -> None:
        now = self._clock()
        if not self._watches.commit(decision, now, settles=effect):
            # The watch was changed meanwhile: try again, which finds the same job, unless the watch was cancelled.
            self._watches.settle(effect, PENDING, due=now)

    def _put_off(self, effect: Effect, watch: Watch, seen: JobSeen | NoContact) -> None:
        """Try again later under the same id: if the job began after all, that finds it."""
        now = self._clock()
        self._watches.commit(decide(watch, seen, now), now)
        due = now + min(watch.policy.interval_s, LONGEST_WAIT_S)
        self._watches.settle(effect, PENDING, problem=seen.reason, due=due)

    def _write_down(self, watch: Watch, started: JobStarted) -> None:
        self._records.add(
            JobRecord(
                job_id=started.job_id,
                sandbox=watch.sandbox,
                session=started.session,
                log_file=started.log_file,
                cwd=started.cwd,
                command=watch.policy.resume_command,
                via=started.via,
                created=self._clock(),
                state=(JobState.PENDING if started.is_queued else JobState.RUNNING).value,
                watch_id=watch.id,
            )
        )

    # Notifications

    def _begin_announcing(self, sandbox: str) -> Sequence[Effect]:
        """Queue the pending notifications; returns the other effects."""
        effects = self._watches.pending(self._clock(), sandbox=sandbox)
        lanes: dict[tuple[int, str], list[Effect]] = {}
        for effect in effects:
            if effect.resume is None and effect.id not in self._in_hand:
                lanes.setdefault((effect.watch_id, effect.channel), []).append(effect)
        for lane, group in lanes.items():
            self._in_hand.update(effect.id for effect in group)
            self._announcing[lane] = asyncio.ensure_future(self._announce_in_order(group, self._announcing.get(lane)))
        return [effect for effect in effects if effect.resume is not None]

    async def _announce_in_order(self, effects: Sequence[Effect], earlier: asyncio.Task[None] | None) -> None:
        if earlier is not None:
            await asyncio.wait([earlier])
        for effect in effects:
            async with self._turns:
                await self.do(self._announce_one(effect))
            self._in_hand.discard(effect.id)

    async def _announce_one(self, effect: Effect) -> None:
        watch, event = self._watches.get(effect.watch_id), self._watches.event(effect.event_id)
        if watch is not None and event is not None and self._watches.take(effect):
            outcome = await attempt(self._announce(effect.channel, watch, event), LONGEST_TELLING_S)
            self._settle(effect, outcome)

    def _settle(self, effect: Effect, outcome: Exception | None) -> None:
        if outcome is None:
            self._watches.settle(effect, DONE)
        elif isinstance(outcome, Unsent) and outcome.passing and effect.attempts < len(RETRIES_S):
            due = self._clock() + RETRIES_S[effect.attempts]
            self._watches.settle(effect, PENDING, problem=reason_of(outcome), due=due)
        else:
            self._watches.settle(effect, FAILED, problem=reason_of(outcome))


def order(watch: Watch, resume: Resume) -> JobOrder:
    """The order that resumes a watch's job: same session, same log; and the same queue, if it came from one."""
    policy = watch.policy
    return JobOrder(
        job_id=resume.job_id,
        session=watch.session,
        script=policy.resume_command,
        cwd=policy.resume_cwd or watch.cwd,
        log_file=watch.log_file,
        # Secrets of a watch that had ended are not known any more.
        env={name: value for name, value in policy.resume_env.items() if value != HIDDEN},
        instead_of=resume.instead_of,
        even_ended=bool(resume.asked_by),
        run_for_s=policy.alerts.run_for_s,
    )


Result = TypeVar("Result")


async def attempt(work: Awaitable[Result], limit_s: float | None = LIMIT_S) -> Result | Exception:
    """The result, or the exception."""
    try:
        return await within(work, limit_s)
    # Whatever is wrong with one watch, machine, hook or notifier must not keep the watchdog from all the others.
    except Exception as problem:
        if not isinstance(problem, SandboxError | Unsent | asyncio.TimeoutError):
            log.error("unexpected trouble: %r", problem, exc_info=problem)
        return problem


def no_contact(problem: Exception) -> NoContact:
    """A failed look or start, as the watch sees it."""
    return NoContact(reason_of(problem), config=isinstance(problem, UnknownSandbox | ConfigError))


def reason_of(problem: Exception) -> str:
    if isinstance(problem, asyncio.TimeoutError):
        return f"there was no answer within {LIMIT_S:g} s"
    if isinstance(problem, SandboxError | Unsent):
        return str(problem)
    return f"{type(problem).__name__}: {problem}"


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
