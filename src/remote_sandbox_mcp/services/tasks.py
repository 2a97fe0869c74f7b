"""Tasks: what runs in the background is listed, checked, waited for, stopped and read here, by its handle."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from ..backends.mending import over_cuts
from ..core.commands.command import Completed, Missing, Observation, Running
from ..core.commands.session_handle import SessionHandle, Sessions, SessionSeen
from ..core.errors import BadArgument, ConnectError, LostContact, NotStarted, SandboxError, UnknownSandbox, UnknownTask
from ..core.jobs.job import JobQuery, JobSeen, JobState, JobWait
from ..core.jobs.lifecycle import ask_checkpoint
from ..core.jobs.watch import Watch
from ..core.progress import Beat, Progress, silent
from ..core.sandboxes.files import Span
from ..core.sandboxes.sandbox import Sandbox
from ..core.task import Handle, Job, Report, Run, TaskSeen, TaskWaited, make_report, outcome_of, printed
from ..core.texts.text import last_line
from ..local.store.jobs import STARTING, JobRecord
from ..local.waiting import within
from .fleet import Fleet
from .jobs.commands import state_of
from .jobs.service import ELSEWHERE_S, JobService, there
from .jobs.values import COMMAND, JOB, JobSnapshot, Which

# Between two looks at a command or a session that is waited for.
PAUSE_S = 0.5
# Characters that are kept of each stream of a command, and bytes of its errors in its log.
OUTPUT_CHARS, ERROR_BYTES = 20_000, 64 << 10
# Names among which the one that was meant is looked for.
MOST_NAMES = 1000
NO_LOG = "it is a session: what its commands print is returned by their calls, and one that outlasts its call is a task"


class LogSource(Protocol):
    """Task with a log."""

    kind: str

    async def read(self, cursor: int, most: int, *, closely: bool = False) -> JobSeen:
        """Return the state, and the log from there on; `closely`: also the usage, and the checkpoint.

        Raises SandboxError.
        """


class JobLog:
    """The log of a job."""

    kind = JOB

    def __init__(self, sandbox: Sandbox, query: JobQuery, watch: Watch | None) -> None:
        self._sandbox = sandbox
        self._query = query
        self._watch = watch

    async def read(self, cursor: int, most: int, *, closely: bool = False) -> JobSeen:
        query = replace(self._query, lines=0, cursor=cursor, most_bytes=most, usage=closely)
        if closely:
            query = ask_checkpoint(query, self._watch)
        (seen,) = await self._sandbox.jobs.inspect([query])
        return seen


class RunLog:
    """The output of a command that outlasted its call: standard output while it runs, then its errors."""

    kind = COMMAND

    def __init__(self, sandbox: Sandbox, run_id: str) -> None:
        self._sandbox = sandbox
        self._run_id = run_id

    async def read(self, cursor: int, most: int, *, closely: bool = False) -> JobSeen:
        found = await self._sandbox.observe(self._run_id, keep=ERROR_BYTES)
        seen = as_job(found)
        out, said = found.stdout, b""
        if most and out.total > cursor:
            said = await self._read(out.file, cursor, min(most, out.total - cursor))
        size, is_read = out.total, cursor + len(said) >= out.total
        if seen.is_over and (errors := found.stderr.head + found.stderr.tail):
            # Counted as a part of the log, so that it is sent once.
            extra = b"\nstderr:\n" + errors
            size += len(extra)
            said += extra[max(0, cursor - out.total) :] if most and is_read else b""
        return replace(seen, log=said, cursor=cursor + len(said), log_size=size)

    async def _read(self, file: str, cursor: int, most: int) -> bytes:
        return (await self._sandbox.read(file, Span(offset=cursor, limit=most))).data if file else b""


def as_job(found: Observation) -> JobSeen:
    """A command in the fields of a job."""
    ended = found if isinstance(found, Completed) else None
    return JobSeen(
        state=state_of(found),
        job_id=found.run_id,
        session=found.run_id,
        exit_code=ended.exit_code if ended else None,
        signal=ended.signal if ended else "",
        ending=ended.ending.value if ended else "",
        reason=found.reason if isinstance(found, Missing) else "",
        seconds=0.0 if isinstance(found, Missing) else found.seconds,
    )


class Tasks:
    """Commands that outlasted their calls, jobs and sessions, of all sandboxes."""

    def __init__(self, fleet: Fleet, jobs: JobService, sessions: Callable[[], Sessions]) -> None:
        self._fleet = fleet
        self._jobs = jobs
        self._sessions = sessions

    async def check(
        self, which: Which, *, lines: int = 50, cursor: int | None = None, room: int | None = None
    ) -> TaskSeen:
        """A task's current state. Raises UnknownTask."""
        handle = which.handle
        if isinstance(handle, Run):
            return await self._run(handle, which.sandbox, room)
        if isinstance(handle, SessionHandle):
            return await self._session(handle, which.sandbox)
        return await self._with_record(which, await self._jobs.check(which, lines=lines, cursor=cursor))

    async def wait(
        self,
        which: Which,
        wait: JobWait,
        *,
        lines: int = 50,
        cursor: int | None = None,
        room: int | None = None,
        progress: Progress = silent,
    ) -> TaskWaited:
        """Wait until a task ends or, for a session, until nothing runs in it; for a job also by its log."""
        if isinstance(which.handle, Job):
            waited = await self._jobs.wait(which, wait, lines=lines, cursor=cursor, progress=progress)
            return TaskWaited(waited.why, await self._with_record(which, waited.seen), waited.line)
        if wait.pattern or wait.silence_s:
            raise BadArgument(f"until_pattern and silence_s are for jobs; {which.handle} is awaited to its end")
        begun = time.monotonic()
        while True:
            seen = await over_cuts(lambda: self.check(which, room=room), begun + wait.seconds)
            if not is_running(seen):
                return TaskWaited("ended", seen)
            if time.monotonic() + PAUSE_S > begun + wait.seconds:
                return TaskWaited("timeout", seen)
            progress(_beat(seen, time.monotonic() - begun))
            await asyncio.sleep(PAUSE_S)

    async def stop(self, which: Which, *, grace_s: float = 10.0, room: int | None = None) -> TaskSeen:
        """End a task with its whole process tree; a session is closed, and its state is gone."""
        handle = which.handle
        if isinstance(handle, Run):
            return await self._run(handle, which.sandbox, room, stops=True)
        if isinstance(handle, SessionHandle):
            return replace(await self._sessions().close(handle, which.sandbox), status="stopped")
        return await self._with_record(which, await self._jobs.stop(which, grace_s=grace_s))

    async def read(
        self, which: Which, *, lines: int = 50, cursor: int | None = None, most_bytes: int = JobQuery.most_bytes
    ) -> JobSeen:
        """A task's log in the fields of a job: its last lines or, with a cursor, what is new in it."""
        handle = which.handle
        if isinstance(handle, Job):
            seen = await self._jobs.check(which, lines=lines, cursor=cursor, most_bytes=most_bytes)
            return await self._with_record(which, seen)
        if isinstance(handle, SessionHandle):
            session = await self._session(handle, which.sandbox)
            state = JobState.RUNNING if is_running(session) else JobState.ENDED
            return JobSeen(state=state, session=str(handle), cwd=session.folder, reason=NO_LOG)
        return await self._read_run(handle, which, lines, cursor, most_bytes)

    async def list(
        self, *, sandbox: str = "", state: str = "", limit: int = 50
    ) -> tuple[Sequence[JobSnapshot], Sequence[SessionSeen]]:
        """Jobs and commands, newest first, and sessions; `state` is one of the list's or of the outcome's words."""
        snapshots = await self._jobs.list(sandbox=sandbox, state=state, limit=limit)
        return snapshots, (await self._sessions().list(sandbox, state))[: limit - len(snapshots)]

    async def whereabouts(self, which: Which) -> str:
        """The sandbox that has a task; empty where it is unknown here."""
        handle = which.handle
        if isinstance(handle, SessionHandle):
            return await self._sessions().whereabouts(handle)
        if isinstance(handle, Job):
            return await self._jobs.whereabouts(handle.session, handle.watch_id)
        row = await self._jobs.commands.find(handle.id)
        return row.sandbox if row and row.sandbox in self._fleet.names else ""

    async def log(self, which: Which) -> tuple[LogSource, JobRecord | None, Watch | None]:
        """The log of a job or a command, to be followed; to read it does not make a disposable sandbox live longer."""
        handle = which.handle
        if isinstance(handle, Run):
            sandbox = await self._fleet.get(which.sandbox)
            return RunLog(getattr(sandbox, "unnoticed", sandbox), handle.id), None, None
        sandbox, query, record = await self._jobs.find(which)
        watch = await self._jobs.watch_of(record)
        return JobLog(getattr(sandbox, "unnoticed", sandbox), query, watch), record, watch

    # Commands

    async def _run(self, run: Run, name: str, room: int | None, *, stops: bool = False) -> Report:
        """A command's state from its machine or, where the machine does not know its end, from our records."""
        commands = self._jobs.commands
        name = name or await self.whereabouts(Which(session=run.id))
        try:
            sandbox = await self._fleet.get(name)
            seen = await (sandbox.stop if stops else sandbox.observe)(run.id, keep=2 * OUTPUT_CHARS + 8)
        except (ConnectError, LostContact, UnknownSandbox):
            recorded = await commands.recall(run.id)
            if recorded is None:
                raise
            return make_report(recorded, OUTPUT_CHARS, room)
        if isinstance(seen, Missing) and not (seen.stdout.total or seen.stderr.total):
            found = await commands.recall(run.id) or await self._missed(seen, self._fleet.member(name).name)
            return make_report(found, OUTPUT_CHARS, room)
        report = make_report(seen, OUTPUT_CHARS, room)
        commands.note(seen, printed(report))
        return report

    async def _missed(self, seen: Missing, name: str) -> Missing:
        """A recorded command that its machine has lost. Raises UnknownTask for all others, with where to look."""
        row = await self._jobs.commands.find(seen.run_id)
        if row is not None:
            if row.sandbox not in self._fleet.names:
                return replace(seen, reason=f"it was started on {row.sandbox}, which cannot be used here")
            if row.sandbox == name:
                return seen
            raise UnknownTask(f"{seen.run_id} is not on {name}: {there(row.sandbox)}")
        for member in await self._jobs.others(name):
            with contextlib.suppress(SandboxError, asyncio.TimeoutError):
                asked = (await member.open()).observe(seen.run_id, keep=1)
                if not isinstance(await within(asked, ELSEWHERE_S), Missing):
                    break
        else:
            raise await self._unknown(Run(seen.run_id), name, seen.reason)
        raise UnknownTask(f"{seen.run_id} is not on {name}: {there(member.name)}")

    async def _read_run(self, run: Run, which: Which, lines: int, cursor: int | None, most: int) -> JobSeen:
        name = which.sandbox or await self.whereabouts(which)
        try:
            source = RunLog(await self._fleet.get(name), run.id)
            seen = await source.read(cursor or 0, most if cursor is not None else 0)
        except (ConnectError, LostContact, UnknownSandbox) as problem:
            if (recorded := await self._jobs.commands.recall(run.id)) is None:
                raise
            return replace(as_job(recorded), log=recorded.stdout.head, recalled=str(problem))
        if seen.state is JobState.GONE and not seen.log_size:
            recorded = await self._jobs.commands.recall(run.id)
            found = recorded or await self._missed(Missing(run.id, seen.reason), self._fleet.member(name).name)
            return replace(as_job(found), log=found.stdout.head)
        if cursor is not None:
            return seen
        seen = await source.read(max(0, seen.log_size - most), most)
        return replace(seen, log=b"".join(seen.log.splitlines(keepends=True)[-lines:]) if lines else b"")

    # Sessions and jobs

    async def _session(self, handle: SessionHandle, sandbox: str) -> SessionSeen:
        found = [seen for seen in await self._sessions().list(sandbox) if seen.handle == handle]
        if not found:
            raise await self._unknown(handle, sandbox, "there is no session of that name")
        if len(found) > 1:
            places = ", ".join(seen.sandbox for seen in found)
            raise BadArgument(f"{handle} is on several sandboxes ({places}); pass sandbox_name")
        return found[0]

    async def _with_record(self, which: Which, seen: JobSeen) -> JobSeen:
        """The job, unless it is unknown: neither on its machine nor recorded for it. Raises NotStarted, UnknownTask."""
        if seen.recalled or (seen.state is JobState.MISSING and which.watch_id):
            return seen
        if seen.state is JobState.GONE and not (seen.via or seen.foreign or seen.goes_on):
            raise NotStarted(f"{seen.session} never started: {seen.reason}; start it again")
        if seen.state is not JobState.MISSING:
            return seen
        sandbox, query, record = await self._jobs.find(which)
        if record is not None and record.state == STARTING:
            name = sandbox.description.name
            raise NotStarted(f"{record.session} never started: {name} knows nothing of it; start it again")
        if record is not None and not query.element:
            return seen
        raise await self._unknown(which.handle, sandbox.description.name, seen.reason)

    async def _unknown(self, handle: Handle, sandbox: str, reason: str) -> UnknownTask:
        """The error for a task that nothing is known of, with the name that was probably meant."""
        where = f"{sandbox} knows no task {str(handle)!r}" if sandbox else f"there is no task {str(handle)!r}"
        near = difflib.get_close_matches(str(handle), await self.names(), 1)
        hint = f"; did you mean {near[0]}?" if near and near[0] != str(handle) else ""
        says_where = "pass sandbox_name" in reason
        return UnknownTask(f"{where}: {reason}{'' if says_where else hint or '; list_background_tasks shows them'}")

    async def names(self) -> Sequence[str]:
        """Names of tasks that are recorded here; no machine is asked."""
        recorded = self._jobs.registry
        if not recorded.exists():
            return ()
        records = await asyncio.to_thread(recorded.records.list, limit=MOST_NAMES)
        return [record.session for record in records]


def is_running(seen: TaskSeen) -> bool:
    """Whether something runs in it now: of an idle session, nothing is to be expected."""
    return outcome_of(seen).state.value in ("running", "pending")


def _beat(seen: TaskSeen, seconds: float) -> Beat:
    if isinstance(seen, Report) and isinstance(seen.seen, Running):
        line = last_line((seen.stdout.text or seen.stderr.text).encode())
        return Beat(seconds, seen.seen.stdout.total + seen.seen.stderr.total, line)
    return Beat(seconds, 0, "")
