"""The waiting list: jobs that ask for GPUs, for the best machine, or for the good end of others, and their turns."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...config import paths
from ...core.client import is_again
from ...core.errors import BadArgument, ConnectError, LostContact, NotStarted, SandboxError, UnknownSandbox, Unsupported
from ...core.jobs.cards import CardRequest
from ...core.jobs.job import Fate, JobOrder, JobQuery, JobSeen, JobStarted, JobState, NoCards, QueueSeen
from ...core.jobs.lifecycle import decide
from ...core.jobs.placement import ANY, Place, ranked, reasons, why_not
from ...core.jobs.waiting import GO, WAIT, Turn, Waiter, after_verdict, who_may_start
from ...core.jobs.watch import WatchOrder
from ...core.sandboxes.port import DeployOrder
from ...core.task import Outcome, TaskState, end_outcome, job_outcome
from ...local.processes.locks import Lock
from ...local.store.waiting import REFUSED, STOPPED, WaitingJob
from ...local.waiting import within
from ..fleet import Fleet, Member
from ..probe.measure import measure
from .curves import look_at
from .records import JobRegistry, watch_outcome
from .start import Starting, begin_watching, make_order
from .values import Begun, Ensure, JobSnapshot, Wanted

if TYPE_CHECKING:
    from ...local.store.jobs import JobRecord

log = logging.getLogger(__name__)

# Held while jobs of the list are started, by whichever process does it: the kernel releases it, however that ends.
LOCK_FILE = "waiting.lock"
# How often a machine is measured while anybody waits for it; a call that starts a job believes less old figures.
LOOK_S, FRESH_S = 30.0, 3.0
# How long a machine may take to be measured, and to start a job; how long a call waits for the turn of another one.
MEASURE_S, START_S, TURN_S = 15.0, 60.0, 30.0
# Between two tries to get the turn, and the next round where another process has it.
TRY_S, BUSY_S = 0.05, 2.0
UNSEEN = "no machine was looked at yet"
UNSURE = "{0}: contact was lost while it was being started, so it may run; only {0} is asked ({1})"
ENDED = "it was stopped before it started"
NOBODY = "nobody looks for a place for it while ensure_watchdog is false"
# Names the one of these machines that something is in use on already; "" for none.
Used = Callable[[Sequence[str]], Awaitable[str]]


class WaitingList:
    """Jobs that wait for a place. Calls and the watchdog start them, one process at a time, each job once."""

    def __init__(self, fleet: Fleet, registry: JobRegistry, starting: Starting, identity: str = "") -> None:
        self._fleet = fleet
        self._registry = registry
        self._starting = starting
        self._identity = identity
        # What was last seen of each machine, and when.
        self._sights: dict[str, tuple[float, Place]] = {}
        self._due = 0.0
        self._fingerprint: object = None
        self._ended_until = time.time()

    # What callers do

    async def start(self, wanted: Wanted, ensure: Ensure | None) -> Begun:
        """Start a job where there is room, or let it wait for that. Mistakes are refused before anything starts."""
        order = make_order(wanted)
        members = await self.members(wanted.places or (wanted.sandbox,))
        after = [await self._named(name) for name in wanted.after]
        _, left_out = self._starting.make_watch(wanted.watch, ANY, order) if wanted.watch else (None, ())
        names = [member.name for member in members]
        job = await self._enter(replace(wanted, places=wanted.places or tuple(names)), order, after)
        problem = await self._starting.hand_over(names) if ensure else ""
        begun = await self._begun_now(job, wanted, order, names)
        # A choice of machines without GPUs is made once: there is nothing that would become free.
        if begun is None and not (wanted.waits and (wanted.cards or wanted.after)):
            why = row.reason if (row := await asyncio.to_thread(self._registry.waiting.get, job.job_id)) else UNSEEN
            await asyncio.to_thread(self._registry.waiting.remove, job)
            raise NoCards(f"no machine has what {job.session} asks for, so nothing was started: {why}")
        notes = await begin_watching(problem, ensure)
        if begun is not None:
            return replace(begun, notes=(*begun.notes, *notes))
        found = await asyncio.to_thread(self._registry.waiting.get, job.job_id)
        started = JobStarted(job_id=job.job_id, session=job.session, log_file=order.log_file, cwd=order.cwd, via="")
        unattended = () if ensure else (NOBODY,)
        return Begun(started, job.label, 0, (*left_out, *notes, *unattended), await self.seen(found or job))

    async def find(self, session: str, sandbox: str = "", *, is_open: bool = True) -> WaitingJob | None:
        """The job of that name that waits, or that ended without a start; `sandbox` is one on which it may run."""
        job = await asyncio.to_thread(self._registry.waiting.find, session) if self._registry.exists() else None
        if job is None or (is_open and not job.is_open):
            return None
        return job if {sandbox, ANY} & {"", job.label, *job.places, job.tried} else None

    async def seen(self, job: WaitingJob) -> JobSeen:
        """A job that waits, in the fields of a job, with how many are ahead of it."""
        rows = await asyncio.to_thread(self._registry.waiting.open) if job.is_open else ()
        return next((as_seen(each, ahead) for ahead, each in enumerate(rows) if each.id == job.id), as_seen(job))

    async def list(self, sandbox: str = "") -> Sequence[JobSnapshot]:
        """List all that wait, and those that ended without a start."""
        rows = self._registry.waiting
        if not self._registry.exists():
            return ()
        waiting, over = await asyncio.to_thread(rows.open), await asyncio.to_thread(rows.ended)
        found = [*enumerate(waiting), *((0, job) for job in over)]
        fitting = [(ahead, job) for ahead, job in found if not sandbox or {sandbox, ANY} & {*job.places, job.tried}]
        return [JobSnapshot(job.label, as_seen(job, ahead)) for ahead, job in fitting]

    async def stop(self, job: WaitingJob) -> JobSeen | None:
        """Take a job off the list; None where it has begun, so that it is to be stopped on its machine."""
        rows = self._registry.waiting
        if not await asyncio.to_thread(rows.end, job, STOPPED, ENDED):
            # A start of it was begun: what came of that decides.
            with contextlib.suppress(BlockingIOError):
                await self._round(job.configuration, [job.job_id])
            found = await asyncio.to_thread(rows.get, job.job_id)
            if found is None:
                return None
            if not await asyncio.to_thread(rows.end, found, STOPPED, ENDED):
                raise LostContact.while_starting(found.tried, found.session, found.reason or "no answer")
        return as_seen(replace(job, state=STOPPED, reason=ENDED, ended=time.time()))

    async def put_ahead(self, job: WaitingJob, priority: int | None) -> int:
        """Give a job that priority, or one above all others; returns it."""
        others = await asyncio.to_thread(self._registry.waiting.open)
        wanted = max((each.priority for each in others), default=0) + 1 if priority is None else priority
        if not await asyncio.to_thread(self._registry.waiting.put_ahead, job, wanted):
            raise NotStarted(f"{job.session} does not wait any more")
        return wanted

    async def one_of(self, places: Sequence[str], cards: CardRequest | None, used: Used | None = None) -> str:
        """The machine for what begins at once: the one on which it is in use, or the best now. Raises NoCards.

        `used` says which of the machines that is; "" for none. Clusters are left out: their queues decide when.
        """
        names = [member.name for member in await self.members(places) if member.slurm is None]
        if not names:
            raise BadArgument("only jobs go to the queue of a cluster: make an allocation with create_sandbox")
        return (await used(names) if used else "") or await self.best(names, cards)

    async def best(self, names: Sequence[str], cards: CardRequest | None) -> str:
        """The machine that fits best now, for what has to be in a place of its own choice. Raises NoCards."""
        places = await asyncio.gather(*(self._place(name, 0.0) for name in names))
        if fitting := ranked(places, cards):
            return fitting[0].name
        why = reasons([why_not(place, cards) for place in places]) or UNSEEN
        raise NoCards(f"no machine has what is asked for, so nothing was started: {why}")

    async def members(self, names: Sequence[str]) -> Sequence[Member]:
        """The machines that are meant: those that are named, or all that are configured. Raises SandboxError.

        Not this computer; and hosts that only a pattern offers are not opened unless somebody has used them.
        """
        if tuple(names) != (ANY,):
            return self._fleet.distinct(names)
        members = [member for member in await self._fleet.configured() if member.may_open_unasked]
        fitting = [member for member in members if not member.describe().capabilities.is_this_computer]
        if not fitting:
            raise UnknownSandbox("sandbox_name any stands for the configured machines, and there is none; name one")
        return fitting

    async def _named(self, name: str) -> tuple[str, str]:
        """A job that has to end first: its name, and its id, because names are used again. Raises BadArgument."""
        if waiting := await self.find(name):
            return name, waiting.job_id
        records = self._registry.records
        record = await asyncio.to_thread(records.find, "", name) if self._registry.exists() else None
        if record is None:
            raise BadArgument(f"after: there is no job {name[:60]!r}; list_background_tasks shows those that there are")
        return name, record.job_id

    async def _enter(self, wanted: Wanted, order: JobOrder, after: Sequence[tuple[str, str]]) -> WaitingJob:
        """Put a job on the list: should this process die now, another one starts it. Raises NotStarted."""
        rows = self._registry.waiting
        same = await self.find(order.session)
        if same is not None and same.job_id != order.job_id:
            raise NotStarted(f"a job named {order.session} waits already; choose another session_name")
        shown = {
            "command": wanted.command, "cwd": wanted.cwd, "log_file": wanted.log_file, "places": wanted.places,
            "cards": dataclasses.asdict(wanted.cards) if wanted.cards else None, "run_for_s": wanted.run_for_s,
            "after": after,
        }  # fmt: skip
        job = WaitingJob(
            job_id=order.job_id, session=order.session, created=time.time(), priority=wanted.priority, shown=shown,
            reason=UNSEEN,
        )  # fmt: skip
        is_begun = is_again() and await asyncio.to_thread(self._registry.begun, order.job_id) is not None
        if not is_begun:
            await asyncio.to_thread(rows.add, job, dataclasses.asdict(replace(wanted, session=order.session)))
        return job

    async def _begun_now(self, job: WaitingJob, wanted: Wanted, order: JobOrder, names: Sequence[str]) -> Begun | None:
        """The job, if it could start at once. Raises what kept it from starting for good."""
        outcome: Begun | SandboxError | None = None
        # Where another process has the turn for that long, it or the watchdog finds the job on the list.
        with contextlib.suppress(BlockingIOError):
            # One that does not wait is refused only by what holds now.
            fresh_s = FRESH_S if wanted.waits else 0.0
            outcome = (await self._round(self._identity, [job.job_id], names, fresh_s)).get(job.job_id)
        if isinstance(outcome, SandboxError):
            await asyncio.to_thread(self._registry.waiting.remove, job)
            raise outcome
        row = await asyncio.to_thread(self._registry.waiting.get, job.job_id)
        if outcome is not None or row is not None:
            return outcome
        # Started by another process, or by an earlier one that died: its machine tells the rest.
        record = await asyncio.to_thread(self._registry.begun, job.job_id)
        if record is None:
            raise NotStarted(f"{job.session} was stopped before it started")
        return await self._starting.begin(replace(wanted, sandbox=record.sandbox), order, None, again=True)

    # Rounds

    async def tick(self, configuration: str) -> float:
        """Start whom there is room for now, if anything has changed or it is time to look; returns when to look again.

        `configuration`: whose jobs these are, by an app that looks after all.
        """
        rows, now = self._registry.waiting, time.time()
        freed = await asyncio.to_thread(rows.freed, self._ended_until)
        for name in freed:
            self._sights.pop(name, None)
        self._ended_until = max((*freed.values(), self._ended_until))
        fingerprint = (await asyncio.to_thread(rows.by_configuration)).get(configuration)
        if freed or fingerprint != self._fingerprint or not now < self._due <= now + LOOK_S:
            self._fingerprint, self._due = fingerprint, time.time() + LOOK_S
            try:
                await self._round(configuration, turn_s=0.0)
            except BlockingIOError:
                self._due = time.time() + BUSY_S
        return self._due if configuration in await asyncio.to_thread(rows.by_configuration) else math.inf

    async def _round(
        self, configuration: str, only: Sequence[str] = (), names: Sequence[str] = (), fresh_s: float = LOOK_S,
        turn_s: float = TURN_S,
    ) -> Mapping[str, Begun | SandboxError]:  # fmt: skip
        """Start whom there is room for. With `only`, look just at the machines `names`, for these jobs and those ahead.

        Returns what came of each that was tried, but for those that still wait.
        """
        outcomes: dict[str, Begun | SandboxError] = {}
        async with self._turn(turn_s):
            jobs = {job.job_id: job for job in await self._ready(configuration, only, outcomes)}
            meant = {places: await self._meant(places) for places in dict.fromkeys(job.places for job in jobs.values())}
            waiters = {job_id: as_waiter(job, meant[job.places]) for job_id, job in jobs.items()}
            asked = names if only else dict.fromkeys(name for each in waiters.values() for name in each.places)
            seen = await asyncio.gather(*(self._place(name, fresh_s) for name in asked))
            places = {place.name: place for place in seen}
            taken: dict[str, int] = {}
            while (verdict := who_may_start(waiters.values(), places.values(), time.time(), taken)).turns:
                again = await self._take_turns(verdict.turns, jobs, places, outcomes)
                for turn in verdict.turns:
                    if turn.job_id not in again:
                        cards = waiters.pop(turn.job_id).cards
                        taken[turn.place] = taken.get(turn.place, 0) + (cards.count if cards else 0)
            why = {job_id: reason for job_id, reason in verdict.reasons.items() if not only or job_id in only}
            await asyncio.to_thread(self._registry.waiting.explain, why)
        return outcomes

    @contextlib.asynccontextmanager
    async def _turn(self, seconds: float) -> AsyncIterator[None]:
        """Only one process at a time starts jobs of the list. Raises BlockingIOError where another does."""
        file, until = paths.state_folder() / LOCK_FILE, time.monotonic() + seconds
        while True:
            try:
                lock = await asyncio.to_thread(Lock.take, file, 0.0)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise
                await asyncio.sleep(TRY_S)
        try:
            yield
        finally:
            lock.release()

    async def _ready(
        self, configuration: str, only: Sequence[str], outcomes: dict[str, Begun | SandboxError]
    ) -> Sequence[WaitingJob]:
        """List those that may start as soon as there is room, in order.

        Where a start was begun, the same machine is asked again first, whatever is free elsewhere.
        """
        rows = self._registry.waiting
        mine = [job for job in await asyncio.to_thread(rows.open) if job.configuration == configuration]
        ready: list[WaitingJob] = []
        for job in mine:
            now: WaitingJob | None = job
            if job.tried and (job.job_id in only or not only):
                await self._try(job, job.tried, outcomes)
                now = await asyncio.to_thread(rows.get, job.job_id)
            if now is not None and now.is_open and not now.tried:
                ready.append(now)
        ended = await self._ends_of({job_id for job in ready for _, job_id in job.shown["after"]})
        return [job for job in ready if await self._may_begin(job, ended, outcomes)]

    async def _may_begin(
        self, job: WaitingJob, ended: Mapping[str, Outcome], outcomes: dict[str, Begun | SandboxError]
    ) -> bool:
        """Whether the jobs that it waits for have ended well; if one has not, it ends without a start."""
        verdicts = {name: after_verdict(name, ended[job_id]) for name, job_id in job.shown["after"]}
        never = next((verdict for verdict in verdicts.values() if verdict not in (WAIT, GO)), "")
        if never:
            await self._refuse(job, NotStarted(f"{job.session} was not started: {never}"), outcomes)
        elif WAIT in verdicts.values():
            waits = ", ".join(name for name, verdict in verdicts.items() if verdict == WAIT)
            await asyncio.to_thread(self._registry.waiting.explain, {job.job_id: f"it starts after {waits} has ended"})
        return all(verdict == GO for verdict in verdicts.values())

    async def _ends_of(self, job_ids: Iterable[str]) -> Mapping[str, Outcome]:
        """The outcomes of jobs that others wait for; those that may run are asked for, one question per machine."""
        found: dict[str, Outcome] = {}
        asked: dict[str, dict[str, JobRecord]] = {}
        for job_id in job_ids:
            found[job_id], record = await asyncio.to_thread(self._last_seen, job_id)
            if record is not None and not record.ended:
                asked.setdefault(record.sandbox, {})[job_id] = record
        for sandbox, records in asked.items():
            with contextlib.suppress(SandboxError, asyncio.TimeoutError):
                found |= await within(self._ask_ends(sandbox, records), MEASURE_S)
        return found

    async def _ask_ends(self, sandbox: str, records: Mapping[str, JobRecord]) -> Mapping[str, Outcome]:
        queries = [JobQuery(job_id=each.job_id, session=each.session, lines=0) for each in records.values()]
        seen = await look_at((await self._fleet.get(sandbox)).jobs.inspect, queries)
        await asyncio.to_thread(self._registry.records.note_all, [(it.job_id, it) for it in seen if it.job_id])
        ended = zip(records, seen, strict=True)
        return {job_id: job_outcome(it) for job_id, it in ended if it.state is JobState.ENDED}

    def _last_seen(self, job_id: str) -> tuple[Outcome, JobRecord | None]:
        """A job, or the one that was started in its place, as last seen: its watch says whether it is resumed."""
        if waiting := self._registry.waiting.get(job_id):
            return job_outcome(as_seen(waiting)), None
        record = self._registry.records.get(job_id)
        watch = self._registry.watches.get(record.watch_id) if record and record.watch_id else None
        record = (self._registry.records.get(watch.job_id) if watch else None) or record
        if record and record.ended:
            return end_outcome(record.exit_code, signal=record.signal), record
        is_gone = record is not None and record.state == JobState.GONE.value
        return watch_outcome(watch) if watch else Outcome(
            TaskState.INTERRUPTED if is_gone else TaskState.RUNNING
        ), record

    async def _meant(self, names: Sequence[str]) -> tuple[str, ...]:
        """The machines of a job that waits; those that are not configured any more are left out."""
        found: list[str] = []
        for name in names:
            with contextlib.suppress(UnknownSandbox):
                found += [member.name for member in await self.members((name,))]
        return tuple(dict.fromkeys(found))

    async def _place(self, name: str, fresh_s: float) -> Place:
        """The machine as it stands, measured no more often than it needs to be."""
        at, place = self._sights.get(name, (-math.inf, Place(name)))
        if time.monotonic() - at >= fresh_s:
            place = await self._measured(name)
            self._sights[name] = time.monotonic(), place
        return place

    async def _measured(self, name: str) -> Place:
        try:
            member = self._fleet.member(name)
            sandbox = await within(member.open(), MEASURE_S)
            return Place(name, await within(measure(sandbox, cluster=member.slurm), MEASURE_S))
        except SandboxError as problem:
            return Place(name, trouble=problem.cause)
        except asyncio.TimeoutError:
            return Place(name, trouble=f"it did not answer in {MEASURE_S:g} s")

    async def _take_turns(
        self, turns: Sequence[Turn], jobs: Mapping[str, WaitingJob], places: dict[str, Place],
        outcomes: dict[str, Begun | SandboxError],
    ) -> set[str]:  # fmt: skip
        """Start these jobs, all machines at once, on each one after the other. Returns those that still want a place.

        Where a machine has less than it seemed, it is left alone: one that comes later must not pass by that.
        """
        again: set[str] = set()

        async def on(name: str) -> None:
            for turn in turns:
                if turn.place != name:
                    continue
                trouble = "it is not asked" if name in failed else await self._try(jobs[turn.job_id], name, outcomes)
                if trouble:
                    again.add(turn.job_id)
                    failed.add(name)
                    places[name] = Place(name, trouble=places[name].trouble or trouble)
                    self._sights[name] = time.monotonic(), places[name]

        failed: set[str] = set()
        await asyncio.gather(*(on(name) for name in dict.fromkeys(turn.place for turn in turns)))
        return again

    async def _try(self, job: WaitingJob, place: str, outcomes: dict[str, Begun | SandboxError]) -> str:
        """Start a job there, once. Returns why the machine has no room for it; empty for whatever else came of it."""
        rows = self._registry.waiting
        if not await asyncio.to_thread(rows.try_on, job, place):
            return ""
        self._sights.pop(place, None)
        try:
            begun = await within(self._begin(job, place), START_S)
        except NoCards as problem:
            await asyncio.to_thread(rows.give_up, job)
            return str(problem)
        except (ConnectError, Unsupported, UnknownSandbox) as problem:
            # Nothing was sent, this time. If it was sent before, only this machine knows what came of it.
            if not job.tried:
                await asyncio.to_thread(rows.give_up, job)
                return problem.cause
            await asyncio.to_thread(rows.explain, {job.job_id: UNSURE.format(place, problem.cause)})
        except (LostContact, asyncio.TimeoutError) as problem:
            why = str(problem) or "it did not answer in time"
            await asyncio.to_thread(rows.explain, {job.job_id: UNSURE.format(place, why)})
        except SandboxError as problem:
            await self._refuse(job, problem, outcomes)
        else:
            outcomes[job.job_id] = begun
            await asyncio.to_thread(rows.remove, job)
        return ""

    async def _begin(self, job: WaitingJob, place: str) -> Begun:
        if not (order := await asyncio.to_thread(self._registry.waiting.order, job)):
            raise NotStarted(f"what {job.session} was to run is gone: {paths.state_folder()} has lost its file")
        wanted = replace(read_wanted(order), sandbox=place)
        ready = replace(make_order(wanted), job_id=job.job_id)
        return await self._starting.begin(wanted, ready, None, again=True, configuration=job.configuration)

    async def _refuse(self, job: WaitingJob, problem: SandboxError, outcomes: dict[str, Begun | SandboxError]) -> None:
        """End a job that can never start, and announce it as its watch would have announced its end."""
        order = await asyncio.to_thread(self._registry.waiting.order, job)
        outcomes[job.job_id] = problem
        if not await asyncio.to_thread(self._registry.waiting.end, job, REFUSED, str(problem)):
            return
        log.info("%s: %s", job.session, problem)
        wanted = read_wanted(order) if order else None
        if wanted is not None and wanted.watch is not None:
            made, _ = self._starting.make_watch(wanted.watch, job.label, replace(make_order(wanted), job_id=job.job_id))
            watch = await asyncio.to_thread(self._registry.watches.add, replace(made, configuration=job.configuration))
            seen = as_seen(replace(job, state=REFUSED, reason=str(problem)))
            await asyncio.to_thread(self._registry.watches.commit, decide(watch, seen, time.time()), time.time())


def read_wanted(fields: Mapping[str, Any]) -> Wanted:
    """Read what a caller wanted from JSON; fields of a later version are left out."""
    known = {field.name for field in dataclasses.fields(Wanted)}
    kept = {name: value for name, value in fields.items() if name in known}
    watch, cards, app = kept.get("watch"), kept.get("cards"), kept.get("app")
    kept |= {"watch": WatchOrder(**watch) if watch else None, "cards": CardRequest(**cards) if cards else None}
    # What its record shows of an app; its cards and places are the job's.
    kept["app"] = DeployOrder(**app | {"cards": None, "places": ()}) if app else None
    return Wanted(**kept | {"places": tuple(kept["places"]), "after": tuple(kept["after"])})


def as_waiter(job: WaitingJob, places: tuple[str, ...]) -> Waiter:
    cards = job.shown.get("cards")
    return Waiter(
        job_id=job.job_id, session=job.session, places=places, cards=CardRequest(**cards) if cards else None,
        priority=job.priority, since=job.created, run_for_s=job.shown.get("run_for_s", 0.0),
    )  # fmt: skip


def as_seen(job: WaitingJob, ahead: int = 0) -> JobSeen:
    """A job that waits, or that ended without a start, in the fields of a job; `ahead` others come before it."""
    is_open = job.is_open
    before = f"{ahead} job{'' if ahead == 1 else 's'} ahead of it. " if ahead and is_open else ""
    return JobSeen(
        state=JobState.PENDING if is_open else JobState.ENDED, job_id=job.job_id, session=job.session,
        log_file=job.shown.get("log_file", ""), cwd=job.shown.get("cwd", ""), command=job.shown.get("command", ""),
        ending="" if is_open else job.state, fate=Fate.CANCELLED if job.state == REFUSED else None,
        queue=QueueSeen(number="", reason=f"{before}{job.reason}"), reason="" if is_open else job.reason,
        started=job.created, seconds=max(0.0, (time.time() if is_open else job.ended) - job.created),
    )  # fmt: skip
