"""What is written down of jobs and watches, so that every process of this user knows it."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..config import paths
from ..core.errors import BadArgument
from ..core.identity import is_again
from ..core.job import JobOrder, JobSeen, JobStarted, JobState
from ..core.lifecycle import decide
from ..core.port import DeployOrder
from ..core.watch import Status, Watch

if TYPE_CHECKING:
    from ..store.database import Database
    from ..store.forwards import ForwardRows
    from ..store.jobs import JobRecord, JobRecords
    from ..store.runs import RunRecords
    from ..store.watches import Watches


class Known:
    """The rows; opened with the first question."""

    @functools.cached_property
    def _database(self) -> Database:
        from ..store.database import STATE_FILE, Database

        return Database(paths.state_folder() / STATE_FILE)

    @functools.cached_property
    def watches(self) -> Watches:
        from ..store.watches import Watches

        return Watches(self._database)

    @functools.cached_property
    def records(self) -> JobRecords:
        from ..store.jobs import JobRecords

        return JobRecords(self._database)

    @functools.cached_property
    def runs(self) -> RunRecords:
        from ..store.runs import RunRecords

        return RunRecords(self._database)

    def forwards(self, configuration: str) -> ForwardRows:
        from ..store.forwards import ForwardRows

        return ForwardRows(self._database, configuration)

    async def close(self) -> None:
        if "_database" in self.__dict__:
            await asyncio.to_thread(self._database.close)

    def is_anything_watched(self) -> bool:
        """Whether there is work for a watchdog; makes no database to find that out."""
        return self.exists() and bool(self.watches.counts().get(Status.ACTIVE.value))

    def apps(self) -> Sequence[JobRecord]:
        """Apps that nobody has seen end, newest first; makes no database to find that out."""
        return self.records.apps() if self.exists() else ()

    def exists(self) -> bool:
        """Whether anything was ever written down; makes no database to find that out."""
        from ..store.database import STATE_FILE

        return (paths.state_folder() / STATE_FILE).exists()

    async def watch(self, watch_id: int) -> Watch:
        """Raises BadArgument where there is none."""
        found = await asyncio.to_thread(self.watches.get, watch_id)
        if found is None:
            raise BadArgument(f"there is no watch {watch_id}; list_background_tasks shows those that there are")
        return found

    def write_down(self, sandbox: str, order: JobOrder, watch: Watch | None, app: DeployOrder | None = None) -> int:
        """A job that is about to start, and its watch; returns the watch's number."""
        from ..store.jobs import JobRecord

        watch_id = (self._watching(order.job_id) or self.watches.add(watch).id) if watch else 0
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
            )
        )
        return watch_id

    def _watching(self, job_id: str) -> int:
        """The watch that a process of ours has written down, which died before it could write down the job."""
        active = self.watches.list(Status.ACTIVE, 10_000) if is_again() else ()
        return next((watch.id for watch in active if watch.job_id == job_id), 0)

    def begun(self, job_id: str) -> JobRecord | None:
        """What a process of ours that died has written down of a job."""
        return self.records.get(job_id) if self.exists() else None

    def complete(self, sandbox: str, watch_id: int, started: JobStarted) -> None:
        """What only the machine knows: where the log is. Whoever watched the session before has nothing to resume."""
        self.records.started(started.job_id, started)
        if watch_id:
            self.watches.started(watch_id, started)
        self.relieve(sandbox, started.session, watch_id)

    def relieve(self, sandbox: str, session: str, watch_id: int) -> None:
        """Of a session's watches only the newest goes on: two would resume it twice."""
        for older in self.watches.list(Status.ACTIVE, 10_000):
            if (older.sandbox, older.session) == (sandbox, session) and older.id != watch_id:
                self.watches.cancel(older.id)

    def strike_out(self, job_id: str, watch_id: int) -> None:
        """It never started."""
        self.records.remove(job_id)
        if watch_id:
            self.watches.remove(watch_id)

    async def note(self, record: JobRecord | None, seen: JobSeen) -> None:
        if record is not None and seen.job_id == record.job_id:
            await asyncio.to_thread(self.records.note, record.job_id, seen)

    def settle(self, watch_id: int, seen: JobSeen) -> None:
        """A job that was stopped is over for its watch, too; one that was gone before must not come back."""
        watch, now = self.watches.get(watch_id), time.time()
        if watch is None or watch.status is not Status.ACTIVE:
            return
        if seen.state is not JobState.ENDED or not self.watches.commit(decide(watch, seen, now), now):
            self.watches.cancel(watch_id)
