"""Records of jobs and watches, and the description of a job whose machine cannot be asked."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...config import paths
from ...core.errors import BadArgument, SandboxError, UnknownSandbox
from ...core.jobs.job import JobOrder, JobQuery, JobSeen, JobStarted, JobState
from ...core.jobs.lifecycle import decide, next_resume
from ...core.jobs.watch import Status, Watch
from ...core.lazy import lazy
from ...core.sandboxes.port import DeployOrder
from ...core.task import Outcome, job_outcome
from ...local.store.database import STATE_FILE, Database
from ...local.store.jobs import JobRecord, JobRecords, RunRecords
from ...local.store.keeping import Keeper

if TYPE_CHECKING:
    from ...local.store.sessions import ForwardRows, KeptSessionRows
    from ...local.store.waiting import WaitingRows
    from ...local.store.watches import Watches

# A watch's last state as the state of its job; all others are unknown.
STATES = {
    "running": JobState.RUNNING,
    "pending": JobState.PENDING,
    **dict.fromkeys(("completed", "failed", "stopped"), JobState.ENDED),
    **dict.fromkeys(("interrupted", "resuming", "exhausted"), JobState.GONE),
}


class JobRegistry:
    """The rows; the database is opened with the first question."""

    def __init__(self, days: float = 1, configuration: str = "") -> None:
        self.keeper = Keeper(days, configuration)

    @lazy
    def _database(self) -> Database:
        return Database(paths.state_folder() / STATE_FILE)

    @functools.cached_property
    def watches(self) -> Watches:
        from ...local.store.watches import Watches

        return Watches(self._database, self.keeper)

    @functools.cached_property
    def records(self) -> JobRecords:
        return JobRecords(self._database, self.keeper)

    @functools.cached_property
    def runs(self) -> RunRecords:
        return RunRecords(self._database, self.keeper)

    @functools.cached_property
    def waiting(self) -> WaitingRows:
        from ...local.store.waiting import WaitingRows

        return WaitingRows(self._database, self.keeper)

    def forwards(self, configuration: str) -> ForwardRows:
        from ...local.store.sessions import ForwardRows

        return ForwardRows(self._database, configuration)

    def sessions(self, kind: str) -> KeptSessionRows:
        """Sessions of one kind that keep their state between calls."""
        from ...local.store.sessions import KeptSessionRows

        return KeptSessionRows(self._database, kind)

    async def close(self) -> None:
        if JobRegistry._database.made(self):
            await asyncio.to_thread(self._database.close)

    def is_anything_watched(self) -> bool:
        """Whether there is work for a watchdog; does not create a database."""
        return self.exists() and bool(self.watches.counts().get(Status.ACTIVE.value) or self.waiting.by_configuration())

    def apps(self) -> Sequence[JobRecord]:
        """Apps that were not seen to end, newest first; does not create a database."""
        return self.records.apps() if self.exists() else ()

    def exists(self) -> bool:
        """Whether there is a database; does not create one."""
        return (paths.state_folder() / STATE_FILE).exists()

    async def watch(self, watch_id: int) -> Watch:
        """Raises BadArgument where there is none."""
        found = await asyncio.to_thread(self.watches.get, watch_id)
        if found is None:
            raise BadArgument(f"there is no watch {watch_id}; list_background_tasks shows those that there are")
        return found

    def write_down(
        self, sandbox: str, order: JobOrder, watch: Watch | None, app: DeployOrder | None = None, *,
        again: bool = False, configuration: str = "",
    ) -> int:  # fmt: skip
        """Record a job that is about to start, and its watch; returns the watch's number."""
        # A repeated call may find the watch that it added before its process died.
        watch_id = ((again and self._watching(order.job_id)) or self.watches.add(watch).id) if watch else 0
        self.records.add(
            JobRecord(
                job_id=order.job_id,
                sandbox=sandbox,
                session=order.session,
                log_file=order.log_file,
                cwd=order.cwd,
                command=order.script,
                created=time.time(),
                watch_id=watch_id,
                app=app,
            ),
            configuration,
        )
        return watch_id

    def _watching(self, job_id: str) -> int:
        """The watch recorded by a process that died before it could record the job."""
        # The limit stands for all active watches.
        active = self.watches.list(Status.ACTIVE, 10_000)
        return next((watch.id for watch in active if watch.job_id == job_id), 0)

    def begun(self, job_id: str) -> JobRecord | None:
        """The record of a job by a process that died."""
        return self.records.get(job_id) if self.exists() else None

    def complete(self, sandbox: str, watch_id: int, started: JobStarted) -> None:
        """Record what only the machine knows: where the log is. Earlier watches of the session end."""
        self.records.started(started.job_id, started)
        if watch_id:
            self.watches.started(watch_id, started)
        self.relieve(sandbox, started.session, watch_id)

    def relieve(self, sandbox: str, session: str, watch_id: int) -> None:
        """Keep only the newest of a session's watches active: two would resume it twice.

        Another configuration may give the sandbox's name to another machine: of its watches, those of the same job go.
        """
        newest = self.watches.get(watch_id)
        job_id = newest.job_id if newest else ""
        for older in self.watches.list(Status.ACTIVE, 10_000):
            is_there = (older.sandbox, older.session) == (sandbox, session) and older.id != watch_id
            if is_there and (self._is_ours(older) or (job_id and older.job_id == job_id)):
                self.watches.cancel(older.id)

    def watch_over(self, sandbox: str, session: str, record: JobRecord | None, job_id: str = "") -> Watch | None:
        """The newest watch over a job, by its record or id; an earlier job of the same name may have had another."""
        watches = self.watches.of_session(sandbox, session) if self.exists() else ()
        if record is not None:
            return next((watch for watch in watches if _is_over(watch, record)), None)
        return next((watch for watch in watches if not job_id or watch.job_id == job_id), None)

    def _is_ours(self, watch: Watch) -> bool:
        """Whether a watch was begun under our configuration, as far as that is known."""
        return not watch.configuration or self.keeper.may_read(watch.configuration)

    def strike_out(self, job_id: str, watch_id: int) -> None:
        """Remove the records of a job that never started."""
        self.records.remove(job_id)
        if watch_id:
            self.watches.remove(watch_id)

    async def note(self, record: JobRecord | None, seen: JobSeen) -> None:
        if record is not None and seen.job_id == record.job_id:
            await asyncio.to_thread(self.records.note, record.job_id, seen)

    def settle(self, sandbox: str, query: JobQuery, watch_id: int, seen: JobSeen) -> None:
        """End all watches of a job that was stopped, so that it is not resumed: its own, and those begun later.

        A look by the session's name alone means whatever runs in it, and so all of the session's watches.
        """
        for watch in self.watches.list(Status.ACTIVE, 10_000):
            is_there = (watch.sandbox, watch.session) == (sandbox, query.session)
            is_meant = query.job_id == watch.job_id if query.job_id else self._is_ours(watch)
            if watch.id == watch_id or (is_there and is_meant):
                self._settle(watch, seen)

    def _settle(self, watch: Watch, seen: JobSeen) -> None:
        now = time.time()
        # If the row has changed meanwhile, or the machine reports no end, cancelling is the safe way.
        if seen.state is not JobState.ENDED or not self.watches.commit(decide(watch, seen, now), now):
            self.watches.cancel(watch.id)


@dataclass(frozen=True)
class AskedJob:
    """A job that a caller asks about: its sandbox, the question to the machine, and its record."""

    sandbox: str
    query: JobQuery
    record: JobRecord | None = None
    watch: Watch | None = None

    def recall(self, why: SandboxError | str) -> JobSeen | None:
        """The recorded end; or, for a watch whose machine cannot be used here, whatever was seen last."""
        if self.record is not None and self.record.ended:
            return recorded(self.record, str(why))
        # A completed watch has seen the end; anything else it saw may be outdated, unless its machine is out of reach
        # for good.
        is_over = self.watch is not None and self.watch.status is Status.COMPLETED
        if self.watch is not None and (is_over or isinstance(why, UnknownSandbox)):
            return watched(self.watch, str(why))
        return None


def recorded(record: JobRecord, why: str) -> JobSeen:
    """A job that has ended, from its row."""
    return JobSeen(
        state=JobState.ENDED, job_id=record.job_id, session=record.session, log_file=record.log_file, cwd=record.cwd,
        command=record.command, via=record.via, exit_code=record.exit_code, signal=record.signal,
        started=record.created, seconds=max(0.0, record.ended - record.created), recalled=why, recalled_at=record.ended,
    )  # fmt: skip


def watch_outcome(watch: Watch) -> Outcome:
    """The outcome of a watched job as the watchdog last saw it."""
    return job_outcome(watched(watch, ""))


def watched(watch: Watch, why: str) -> JobSeen:
    """A watched job as the watchdog last saw it."""
    state = STATES.get(watch.last_state, JobState.MISSING)
    return JobSeen(
        state=state, job_id=watch.job_id, session=watch.session, log_file=watch.log_file, cwd=watch.cwd,
        command=watch.command, exit_code=watch.last_exit_code,
        ending="stopped" if watch.last_state == "stopped" else "",
        resume=next_resume(watch) if state is JobState.GONE else None,
        reason=_why(watch) if state in (JobState.GONE, JobState.MISSING) else "", started=watch.created,
        seconds=max(0.0, watch.checked - watch.created), log=watch.last_log_tail.encode("utf-8", "surrogateescape"),
        recalled=why, recalled_at=watch.checked or watch.updated,
    )  # fmt: skip


def _is_over(watch: Watch, record: JobRecord) -> bool:
    """Whether it is a watch over this job: made for it, begun later, or gone over to it."""
    return watch.id == record.watch_id or watch.job_id == record.job_id or watch.created >= record.created


def _why(watch: Watch) -> str:
    """Explain why a watched job was interrupted or cannot be seen; the summary also says whether it is resumed."""
    is_interrupted = STATES.get(watch.last_state) is JobState.GONE
    return (is_interrupted and watch.last_error) or watch.last_summary or watch.last_state
