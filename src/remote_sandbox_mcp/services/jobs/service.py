"""The verbs on background jobs; those on watches are in watches.py."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...backends.mending import over_cuts
from ...config import paths
from ...config.schema import Origin, Settings
from ...core import check
from ...core.commands.command import Command
from ...core.commands.session_handle import SessionHandle
from ...core.errors import BadArgument, ConnectError, LostContact, NotStarted, SandboxError, UnknownSandbox, Unsupported
from ...core.jobs.job import (
    MOST_SCREEN,
    JobQuery,
    JobSeen,
    JobState,
    JobWait,
    JobWaited,
    Screen,
    read_screen,
    screen_script,
    why_no_screen,
)
from ...core.jobs.lifecycle import ask_checkpoint, next_resume, shown
from ...core.jobs.placement import ANY
from ...core.jobs.queue import pending_text
from ...core.progress import Beat, Progress, silent
from ...core.sandboxes.sandbox import Sandbox
from ...core.task import Job
from ...core.texts.text import last_line
from ...local.waiting import within
from ..fleet import Fleet, Member, unforeseen
from ..session import current, may_tell
from .commands import Commands
from .curves import WHOLE_BYTES, CurveBook, ReadLog, look_at
from .records import AskedJob, JobRegistry, recorded
from .start import Starting
from .values import Begun, Ensure, JobSnapshot, Wanted, Which
from .watches import WatchService

if TYPE_CHECKING:
    from ...core.jobs.watch import Event, Watch
    from ...local.notify.announcer import Announcer
    from ...local.store.jobs import JobRecord
    from ...local.store.waiting import WaitingJob
    from .attach import Attached, Window
    from .supervise import Effects, WatchSupervisor
    from .waiting import WaitingList

__all__ = ["Begun", "JobService", "JobSnapshot", "Wanted", "Which"]

LIST_S = 12.0
# A cluster's controller that is down is noticed by its programs after that time; then the jobs are known all the same.
CLUSTER_LIST_S = 25.0
LONGEST_WAIT_S = 280.0
# How long another machine may take to say whether it has a job.
ELSEWHERE_S = 5.0
# How long a leaving process waits for rows that are being written.
LEAVE_S = 0.08
# Pauses between two looks at the log of a job that is waited for; the first is short.
SOON_S, BEAT_S = 0.5, 2.0
# Between two looks at an interrupted job whose resume is waited for.
RESUMED_S = 1.0
LAST_LINES, LAST_BYTES = 5, 4096
# How long tmux may take to show a window.
SCREEN_S = 20.0


class JobService:
    """Jobs of all sandboxes: start, check, wait, stop, resume, send input."""

    def __init__(self, fleet: Fleet, settings: Settings, config_file: Path | None, identity: str = "") -> None:
        self._fleet = fleet
        self._settings = settings
        self.config_file = config_file
        self.registry = JobRegistry(settings.keep_calls_days, identity)
        origin = Origin(identity, str(config_file or ""))
        self._starting = Starting(fleet, settings.notify, self.registry, origin, settings.alerts)
        self._identity = identity
        self.commands = Commands(self.registry)
        self._curves = CurveBook()
        self.watching = WatchService(fleet, self.registry, self._starting, self.find, self._effects)

    def reconfigure(self, settings: Settings) -> None:
        """Use these settings from now on."""
        self._settings = settings
        self._starting.notify, self._starting.alerts = settings.notify, settings.alerts
        self.registry.keeper.days = settings.keep_calls_days
        self.__dict__.pop("_announcer", None)

    async def close(self) -> None:
        await self.commands.close(LEAVE_S)
        await self.registry.close()

    @functools.cached_property
    def _announcer(self) -> Announcer:
        from ...local.notify.announcer import Announcer

        return Announcer(self._settings.notify, paths.state_folder())

    @functools.cached_property
    def waiting(self) -> WaitingList:
        from .waiting import WaitingList

        return WaitingList(self._fleet, self.registry, self._starting, self._identity)

    def supervisor(self, responsible: Callable[[Watch], Awaitable[JobService]] | None = None) -> WatchSupervisor:
        """The supervisor for the process that is the watchdog; `responsible`: the jobs of a watch's configuration."""
        from .supervise import WatchSupervisor

        async def get(watch: Watch) -> Sandbox:
            return await (await responsible(watch) if responsible else self).sandbox_of(watch)

        async def announce(channel: str, watch: Watch, event: Event) -> None:
            await (await responsible(watch) if responsible else self)._announcer.announce(channel, watch, event)

        return WatchSupervisor(self.registry.watches, self.registry.records, get, announce)

    async def sandbox_of(self, watch: Watch) -> Sandbox:
        return await self._fleet.get(watch.sandbox)

    def _effects(self) -> Effects:
        from .supervise import Effects

        return Effects(
            self.registry.watches, self.registry.records, self.sandbox_of, self._announcer.announce, time.time
        )

    async def start(self, wanted: Wanted, ensure: Ensure | None = None) -> Begun:
        """Start a job; one that asks for GPUs, a choice of machines or an order may have to wait for a place."""
        needs_place = bool(wanted.places or wanted.after)
        if wanted.cards and not needs_place:
            # Of a cluster, its queue decides when it starts.
            needs_place = self._fleet.member(wanted.sandbox).slurm is None or wanted.slurm is False
        return await (self.waiting if needs_place else self._starting).start(wanted, ensure)

    async def check(
        self, which: Which, *, lines: int = 50, cursor: int | None = None, most_bytes: int = JobQuery.most_bytes
    ) -> JobSeen:
        """A job's current state, with the last lines of its log or, with a cursor, what is new in it."""
        if waiting := await self._waiting(which, is_open=False):
            return waiting
        target = await self._target(which)
        watch = await self._watch_over(target)
        query = replace(target.query, lines=lines, cursor=cursor, most_bytes=most_bytes, usage=True)

        async def ask(sandbox: Sandbox) -> JobSeen:
            (seen,) = await look_at(sandbox.jobs.inspect, [ask_checkpoint(query, watch)])
            if watch is not None and seen.checkpoint is not None:
                seen = replace(seen, checkpoint=replace(seen.checkpoint, form=watch.policy.checkpoint_format))
            return await self._curves.with_metrics(sandbox, query, seen)

        seen = await self._seen(target, ask, or_last=True)
        await self._show(target, seen)
        return seen

    async def _show(self, target: AskedJob, seen: JobSeen) -> None:
        """Note what a session is shown of its own job, so that it is not told the same once more."""
        watch = await self._watch_over(target) if current().home and not target.query.element else None
        if watch and may_tell(current(), watch.home, watch.seat):
            await asyncio.to_thread(self.registry.watches.show, watch, shown(seen.job_id, seen.state))

    async def wait(
        self, which: Which, wait: JobWait, *, lines: int = 50, cursor: int | None = None, progress: Progress = silent
    ) -> JobWaited:
        """Wait for a job's end, for a line in its log, or for silence; an interruption before a resume is no end."""
        check.in_range("timeout_s", wait.seconds, 0, LONGEST_WAIT_S)
        check.in_range("silence_s", wait.silence_s, 0, check.LONGEST_TIMEOUT_S)
        check.text_argument("until_pattern", wait.pattern, required=False)
        until = time.monotonic() + wait.seconds

        async def ask() -> JobWaited:
            # After a resume, the watch is over another job; after a cut, the machine may have another address.
            target = await self._target(which)
            left = replace(wait, seconds=max(0.0, until - time.monotonic()))
            return await self._wait_once(target, replace(target.query, lines=lines, cursor=cursor), left, progress)

        while True:
            if waiting := await self._waiting(which, is_open=False):
                if waiting.is_over or time.monotonic() >= until:
                    return JobWaited("ended" if waiting.is_over else "timeout", waiting)
                progress(Beat(wait.seconds - (until - time.monotonic()), 0, pending_text(waiting.queue, time.time())))
                await asyncio.sleep(min(RESUMED_S, max(0.0, until - time.monotonic())))
                continue
            waited = await over_cuts(ask, until)
            if waited.why != "ended" or not waited.seen.goes_on:
                return waited
            if time.monotonic() >= until:
                return replace(waited, why="timeout")
            await asyncio.sleep(min(RESUMED_S, max(0.0, until - time.monotonic())))

    async def _wait_once(self, target: AskedJob, query: JobQuery, wait: JobWait, progress: Progress) -> JobWaited:
        waited = JobWaited("ended", JobSeen(state=JobState.MISSING))

        async def ask(sandbox: Sandbox) -> JobSeen:
            nonlocal waited
            reporting = asyncio.ensure_future(report_last_line(sandbox, target.query, progress))
            try:
                waited = await sandbox.jobs.wait(query, wait)
            finally:
                reporting.cancel()
            return await self._curves.with_metrics(sandbox, query, waited.seen)

        seen = await self._seen(target, ask)
        await self._show(target, seen)
        return replace(waited, seen=seen)

    async def stop(self, which: Which, *, grace_s: float = 10.0) -> JobSeen:
        """End a job's whole process tree, and make sure that it is not resumed."""
        check.in_range("grace_s", grace_s, 0, 30)
        waiting = await self._waiting_job(which)
        if waiting is not None and (ended := await self.waiting.stop(waiting)):
            return ended
        target = await self._target(which)
        name = target.sandbox

        async def ask(sandbox: Sandbox) -> JobSeen:
            nonlocal name
            # The default has no name in the question, and watches are recorded under one.
            name = sandbox.description.name
            return await sandbox.jobs.stop(target.query, grace_s)

        seen = await self._seen(target, ask)
        if seen.is_over and not target.query.element and self.registry.exists():
            await self._show(target, seen)
            watch_id = which.watch_id or (target.record.watch_id if target.record else 0)
            await asyncio.to_thread(self.registry.settle, name, target.query, watch_id, seen)
        return seen

    async def resume(self, which: Which, *, asked_by: str, command: str = "", ensure: Ensure | None = None) -> Begun:
        """Start a job again by its resume command, whether it was interrupted or has ended."""
        return await self.watching.resume(which, asked_by, command, ensure)

    async def send(self, which: Which, *, text: str = "", keys: Sequence[str] = ()) -> str:
        """Type into a running job; returns the name of its session."""
        check.text_argument("text", text, required=False)
        sandbox, query, _ = await self.find(which)
        if not text and not keys:
            raise BadArgument("nothing is to be typed: give text, keys, or both")
        name = with_element(query.session, query)
        try:
            await sandbox.jobs.send(query, text=text, keys=keys)
        except NotStarted:
            seen = await self.check(which, lines=1)
            if seen.state is JobState.MISSING:
                raise NotStarted(f"{sandbox.description.name} knows no {name}: {seen.reason}") from None
            if seen.state is JobState.PENDING:
                why = f"{name} is {pending_text(seen.queue, time.time())}"
                raise NotStarted(f"{why}; text can be typed into it when it runs") from None
            raise
        return name

    async def screen(self, which: Which) -> tuple[JobSeen, Screen]:
        """Read a running job's tmux screen as a person would see it. Raises Unsupported for a job without one."""
        seen = await self.check(which, lines=1)
        if why := why_no_screen(seen):
            raise Unsupported(why)
        sandbox, _, _ = await self.find(which)
        command = Command(screen_script(seen.session), timeout_s=SCREEN_S, keep=MOST_SCREEN)
        done = await sandbox.run(command)
        sandbox.forget(command.run_id)
        try:
            return seen, read_screen(done.stdout.head)
        except ValueError:
            said = last_line(done.stderr.head) or "it printed nothing"
            raise Unsupported(f"the screen of {seen.session} cannot be read by tmux: {said}") from None

    async def attach(self, which: Which, window: Window) -> Attached:
        """A person's terminal in a running job's tmux. Raises Unsupported for a job that is in none."""
        from .attach import attach

        seen = await self.check(which, lines=1)
        if why := why_no_screen(seen):
            raise Unsupported(why)
        sandbox, _, _ = await self.find(which)
        return await attach(sandbox, seen.session, window)

    async def curves(self, which: Which) -> tuple[JobSeen, ReadLog]:
        """All numbers that a job's log and its checkpoint have."""
        seen = await self.check(which, lines=1)
        sandbox, query, _ = await self.find(which)
        return seen, await self._curves.read(sandbox, query, seen, WHOLE_BYTES)

    async def find(self, which: Which) -> tuple[Sandbox, JobQuery, JobRecord | None]:
        """The job that is meant, and its sandbox. Raises BadArgument."""
        target = await self._target(which)
        return await self._fleet.get(target.sandbox), target.query, target.record

    async def _waiting_job(self, which: Which, *, is_open: bool = True) -> WaitingJob | None:
        """The job that is meant, if it waits for a place; or, not `is_open`, if it has ended without one.

        A job of that name that was started later is meant instead of one that has ended.
        """
        if which.watch_id or not isinstance(which.handle, Job):
            return None
        job = await self.waiting.find(which.handle.session, which.sandbox, is_open=is_open)
        if job is None or job.is_open:
            return job
        record = await asyncio.to_thread(self.registry.records.find, "", job.session)
        return None if record and record.created > job.created else job

    async def _waiting(self, which: Which, *, is_open: bool) -> JobSeen | None:
        job = await self._waiting_job(which, is_open=is_open)
        return await self.waiting.seen(job) if job else None

    async def put_ahead(self, which: Which, priority: int | None = None) -> tuple[str, int]:
        """Let a job that waits start before others; returns its name and its priority. Raises NotStarted."""
        job = await self._waiting_job(which)
        if job is None:
            raise NotStarted(f"{which.session} does not wait for a place, so there is nothing to raise")
        return job.session, await self.waiting.put_ahead(job, priority)

    async def _target(self, which: Which) -> AskedJob:
        if waiting := await self._waiting(which, is_open=True):
            raise NotStarted(f"{waiting.session} is {pending_text(waiting.queue, time.time())}; it has not started")
        if which.sandbox == ANY or "," in which.sandbox:
            # Where it waited; by now it is on one of these.
            which = replace(which, sandbox="")
        records, handle = self.registry.records, which.handle
        if not isinstance(handle, Job):
            what = "a session" if isinstance(handle, SessionHandle) else "a command of exec_bash"
            raise Unsupported(f"{handle} is {what} and no job: it can be checked, waited for and stopped, no more")
        if which.watch_id:
            watch = await self.registry.watch(which.watch_id)
            record = await asyncio.to_thread(records.get, watch.job_id) if watch.job_id else None
            query = JobQuery(job_id=watch.job_id, session=watch.session, log_file=watch.log_file)
            return AskedJob(watch.sandbox, query, record, watch)
        session, element = handle.session, handle.element
        name = which.sandbox or await self.whereabouts(session)
        # A record is of a whole array: what is seen of one element must not be written there, nor read from there.
        record = None if element else await asyncio.to_thread(records.find, name, session)
        return AskedJob(name, JobQuery(session=session, log_file=which.log_file, element=element), record)

    async def _seen(
        self, target: AskedJob, ask: Callable[[Sandbox], Awaitable[JobSeen]], *, or_last: bool = False
    ) -> JobSeen:
        """A job's state from its machine or, where the machine does not know its end, from our records.

        `or_last`: a recorded state of a job that may still run is accepted, too.
        """
        try:
            seen = await ask(await self._fleet.get(target.sandbox))
        except (ConnectError, LostContact, UnknownSandbox) as problem:
            recorded = target.recall(problem)
            if recorded is None or not (or_last or recorded.state is JobState.ENDED):
                raise
            return recorded
        seen = replace(seen, session=with_element(seen.session, target.query))
        await self.registry.note(target.record, seen)
        if seen.state is JobState.GONE:
            return with_resume(seen, await self._watch_over(target))
        if seen.state is not JobState.MISSING:
            return seen
        return target.recall(f"its machine knows it no more ({seen.reason})") or await self._missed(target, seen)

    async def _missed(self, target: AskedJob, seen: JobSeen) -> JobSeen:
        """A job that is not on this sandbox: add the name of the sandbox that has it, if we can find out."""
        if target.watch is not None:
            return seen
        session, name = target.query.session, self._fleet.member(target.sandbox).name
        record = await asyncio.to_thread(self.registry.records.find, "", session)
        if record is not None and record.sandbox != name:
            return self._started_elsewhere(record, seen)
        question = replace(target.query, lines=0, log_file="")
        for member in await self.others(name):
            with contextlib.suppress(SandboxError, asyncio.TimeoutError):
                (found,) = await within((await member.open()).jobs.inspect([question]), ELSEWHERE_S)
                if found.state is not JobState.MISSING:
                    return replace(seen, reason=there(member.name))
        return seen

    def _started_elsewhere(self, record: JobRecord, seen: JobSeen) -> JobSeen:
        with contextlib.suppress(UnknownSandbox):
            if self._fleet.knows(record.sandbox):
                return replace(seen, reason=there(record.sandbox))
        why = f"it was started on {record.sandbox}, which cannot be used here"
        return recorded(record, why) if record.ended else replace(seen, reason=why)

    async def watch_of(self, record: JobRecord | None) -> Watch | None:
        with contextlib.suppress(SandboxError):
            return await self.registry.watch(record.watch_id) if record and record.watch_id else None
        return None

    async def _watch_over(self, target: AskedJob) -> Watch | None:
        """The watch over a job: the one that was named, or the newest of its session that is over this job."""
        if target.watch is not None or target.query.element:
            return target.watch
        with contextlib.suppress(SandboxError):
            name = self._fleet.member(target.sandbox).name
            return await asyncio.to_thread(self.registry.watch_over, name, target.query.session, target.record)
        return None

    async def others(self, name: str) -> Sequence[Member]:
        """The other sandboxes with an open connection, which can be asked quickly."""
        open_ones = [member for member in await self._fleet.offered() if member.sandbox and member.sandbox.is_open]
        return [member for member in open_ones if member.name != name]

    async def whereabouts(self, session: str, watch_id: int = 0) -> str:
        """The sandbox in which a job was started, if it can be used here; empty for a job that is not ours.

        Raises UnknownSandbox for one in a disposable sandbox that is over.
        """
        if watch_id:
            return (await self.registry.watch(watch_id)).sandbox
        record = await asyncio.to_thread(self.registry.records.find, "", session) if self.registry.exists() else None
        waiting = await self.waiting.find(session, is_open=record is not None)
        if waiting is not None:
            return waiting.label
        try:
            return record.sandbox if record and self._fleet.knows(record.sandbox) else ""
        except UnknownSandbox:
            # Its end is recorded even if its sandbox is gone.
            if record is not None and record.ended:
                return record.sandbox
            raise

    async def list(self, *, sandbox: str = "", state: str = "", limit: int = 100) -> Sequence[JobSnapshot]:
        """All jobs, from machines and records, newest first. A machine that does not answer delays no other."""
        check.in_range("limit", limit, 1, 1000)
        members = [self._fleet.member(sandbox)] if sandbox else await self._to_be_asked()
        asked = [self.jobs_of(member, limit) for member in members]
        found = await asyncio.gather(*asked, return_exceptions=True)
        parts = [await self._snapshots_of(member, part) for member, part in zip(members, found, strict=True)]
        every = once(snapshot for part in (*parts, await self.waiting.list(sandbox)) for snapshot in part)
        snapshots = [snapshot for snapshot in every if state in ("", snapshot.state, snapshot.outcome.state.value)]
        return sorted(snapshots, key=lambda snapshot: snapshot.began, reverse=True)[:limit]

    async def _snapshots_of(
        self, member: Member, found: Sequence[JobSnapshot] | BaseException
    ) -> Sequence[JobSnapshot]:
        """Turn an unexpected exception into a problem of that one machine, so that all other jobs are listed."""
        if not isinstance(found, BaseException):
            return found
        why = unforeseen(found, f"listing the jobs of {member.name}")
        recorded = await asyncio.to_thread(self.registry.records.list, member.name)
        return [JobSnapshot(member.name, None, record, why) for record in recorded]

    async def _to_be_asked(self) -> Sequence[Member]:
        """All sandboxes, but of the hosts that a pattern offers only those that were used."""
        members = await self._fleet.offered()
        unused = {member.name for member in members if not member.may_open_unasked}
        if unused and self.registry.exists():
            unused -= {record.sandbox for record in await asyncio.to_thread(self.registry.records.list, limit=1000)}
        return [member for member in members if member.name not in unused]

    async def jobs_of(self, member: Member, limit: int = 100, *, noticed: bool = True) -> Sequence[JobSnapshot]:
        """The jobs of a machine, and commands that outlasted their calls there.

        `noticed`: the question counts as a use of a disposable sandbox, which then lives longer.
        """
        seconds = CLUSTER_LIST_S if member.slurm else LIST_S
        try:
            return await within(self._all_of(member, limit, noticed), seconds)
        except (SandboxError, asyncio.TimeoutError) as problem:
            why = str(problem) or f"{member.name} did not answer in {seconds:g} s"
            return await self.recorded_of(member, why, limit)

    async def recorded_of(self, member: Member, why: str, limit: int = 100) -> Sequence[JobSnapshot]:
        """The jobs of a machine that is not asked, as they are recorded; `why` it is not."""
        recorded = await asyncio.to_thread(self.registry.records.list, member.name, limit=limit)
        jobs = [JobSnapshot(member.name, None, record, why) for record in recorded]
        return [*jobs, *await self.commands.list(member, None, why)]

    async def _all_of(self, member: Member, limit: int, noticed: bool) -> Sequence[JobSnapshot]:
        sandbox = await member.open()
        sandbox = sandbox if noticed else getattr(sandbox, "unnoticed", sandbox)
        jobs, commands = await asyncio.gather(self._ask_for_all(sandbox, limit), self.commands.list(member, sandbox))
        recorded = await asyncio.to_thread(self.registry.records.list, member.name, limit=limit)
        # One machine may have two names, and its jobs be recorded under the other one.
        more = await asyncio.to_thread(self.registry.records.of, [job.job_id for job in jobs])
        records = {record.job_id: record for record in (*recorded, *more)}
        seen = [(job.job_id, job) for job in jobs if job.job_id in records]
        await asyncio.to_thread(self.registry.records.note_all, seen)
        snapshots = [await self._snapshot(member, job, records.pop(job.job_id, None)) for job in jobs]
        return [*snapshots, *(JobSnapshot(member.name, None, record) for record in records.values()), *commands]

    async def _snapshot(self, member: Member, job: JobSeen, record: JobRecord | None) -> JobSnapshot:
        """A job of the list; of one that was interrupted also when it is resumed."""
        if job.state is JobState.GONE:
            watch = await asyncio.to_thread(self.registry.watch_over, member.name, job.session, record, job.job_id)
            job = with_resume(job, watch)
        return JobSnapshot(member.name, job, record)

    async def _ask_for_all(self, sandbox: Sandbox, limit: int) -> Sequence[JobSeen]:
        try:
            return await sandbox.jobs.list(limit)
        except Unsupported:
            # It supports no jobs, but may have commands.
            return ()


def with_resume(seen: JobSeen, watch: Watch | None) -> JobSeen:
    """An interrupted job with when it is resumed, if it is."""
    return replace(seen, resume=next_resume(watch, has_fate=bool(seen.fate))) if watch else seen


def once(snapshots: Iterable[JobSnapshot]) -> Iterable[JobSnapshot]:
    """Keep each job once, even if its machine was seen under several names."""
    best: dict[str, JobSnapshot] = {}
    for snapshot in snapshots:
        if snapshot.id not in best or snapshot.worth > best[snapshot.id].worth:
            best[snapshot.id] = snapshot
    return best.values()


def with_element(session: str, query: JobQuery) -> str:
    """A session's name as a caller gives it: with the element that was asked for."""
    return f"{session}[{query.element}]" if query.element else session


def there(sandbox: str) -> str:
    return f"it is on {sandbox}; pass sandbox_name={sandbox!r}"


async def report_last_line(sandbox: Sandbox, query: JobQuery, progress: Progress) -> None:
    """Report why a job is pending or the last line that it printed, repeatedly until cancelled.

    Failures are left to the waiting caller.
    """
    if progress is silent:
        return
    begun, pause = time.monotonic(), SOON_S
    query = replace(query, lines=LAST_LINES, cursor=None, most_bytes=LAST_BYTES)
    while True:
        await asyncio.sleep(pause)
        with contextlib.suppress(SandboxError):
            (seen,) = await sandbox.jobs.inspect([query])
            line = pending_text(seen.queue, time.time()) if seen.state is JobState.PENDING else last_line(seen.log)
            progress(Beat(time.monotonic() - begun, seen.log_size, line))
        pause = BEAT_S
