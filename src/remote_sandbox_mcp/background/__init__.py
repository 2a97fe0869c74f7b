"""The verbs on background jobs; those on their watches are beside them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..config import paths
from ..config.schema import Settings
from ..core import check
from ..core.errors import BadArgument, SandboxError
from ..core.job import JobLook, JobSeen, JobWait, JobWaited, session_name
from ..core.output import last_line
from ..core.progress import Beat, Progress, silent
from ..core.sandbox import Sandbox
from ..fleet import Fleet, Member, unforeseen
from .known import Known
from .starting import Starting
from .values import Begun, Ensure, Sight, Wanted, Which
from .watching import Watching

if TYPE_CHECKING:
    from ..jobs.supervise import Supervisor
    from ..notify.announcer import Announcer
    from ..store.jobs import JobRecord

__all__ = ["Background", "Begun", "Sight", "Wanted", "Which"]

LIST_S = 12.0
LONGEST_WAIT_S = 280.0
# Between two looks at the log of a job that is waited for; the first comes soon.
SOON_S, BEAT_S = 0.5, 2.0
LAST_LINES, LAST_BYTES = 5, 4096


class Background:
    """Jobs of all sandboxes: started, asked after, waited for, stopped, typed into."""

    def __init__(self, fleet: Fleet, settings: Settings, config_file: Path | None) -> None:
        self._fleet = fleet
        self._settings = settings
        self.config_file = config_file
        self.known = Known()
        self._starting = Starting(fleet, settings.notify, self.known)
        self.watching = Watching(fleet, self.known, self._starting, self.find)

    async def close(self) -> None:
        await self.known.close()

    @functools.cached_property
    def _announcer(self) -> Announcer:
        from ..notify.announcer import Announcer

        return Announcer(self._settings.notify, paths.state_folder())

    def supervisor(self) -> Supervisor:
        """For whoever looks after the watches."""
        from ..jobs.supervise import Supervisor

        return Supervisor(self.known.watches, self.known.records, self._fleet.get, self._announcer.announce)

    async def start(self, wanted: Wanted, ensure: Ensure | None = None) -> Begun:
        return await self._starting.start(wanted, ensure)

    async def check(self, which: Which, *, lines: int = 50, cursor: int | None = None) -> JobSeen:
        """What a job is doing."""
        sandbox, look, record = await self.find(which)
        (seen,) = await sandbox.jobs.look([replace(look, lines=lines, cursor=cursor, usage=True)])
        await self.known.note(record, seen)
        return seen

    async def wait(
        self, which: Which, wait: JobWait, *, lines: int = 50, cursor: int | None = None, progress: Progress = silent
    ) -> JobWaited:
        """Wait for a job's end, for a line of its log, or for silence."""
        check.within("timeout_s", wait.seconds, 0, LONGEST_WAIT_S)
        check.within("silence_s", wait.silence_s, 0, check.LONGEST_TIMEOUT_S)
        check.text_argument("until_pattern", wait.pattern, required=False)
        sandbox, look, record = await self.find(which)
        telling = asyncio.ensure_future(tell_last_line(sandbox, look, progress))
        try:
            waited = await sandbox.jobs.wait(replace(look, lines=lines, cursor=cursor), wait)
        finally:
            telling.cancel()
        await self.known.note(record, waited.seen)
        return waited

    async def stop(self, which: Which, *, grace_s: float = 10.0) -> JobSeen:
        """End a job's whole tree, and see to it that nobody starts it again."""
        check.within("grace_s", grace_s, 0, 30)
        sandbox, look, record = await self.find(which)
        seen = await sandbox.jobs.stop(look, grace_s)
        await self.known.note(record, seen)
        watch_id = which.watch_id or (record.watch_id if record else 0)
        if watch_id and not seen.is_running:
            await asyncio.to_thread(self.known.settle, watch_id, seen)
        return seen

    async def send(self, which: Which, *, text: str = "", keys: Sequence[str] = ()) -> str:
        """Type into a running job; the name of its session."""
        check.text_argument("text", text, required=False)
        sandbox, look, _ = await self.find(which)
        if not text and not keys:
            raise BadArgument("nothing is to be typed: give text, keys, or both")
        await sandbox.jobs.send(look, text=text, keys=keys)
        return look.session

    async def find(self, which: Which) -> tuple[Sandbox, JobLook, JobRecord | None]:
        """The job that is meant, and where it is. Raises BadArgument."""
        records = self.known.records
        if which.watch_id:
            watch = await self.known.watch(which.watch_id)
            record = await asyncio.to_thread(records.get, watch.job_id) if watch.job_id else None
            look = JobLook(job_id=watch.job_id, session=watch.session, log_file=watch.log_file)
            return await self._fleet.get(watch.sandbox), look, record
        if not which.session:
            raise BadArgument("say which job: pass its tmux_session or watch_id (list_background_tasks shows them)")
        session = session_name(check.text_argument("tmux_session", which.session))
        name = which.sandbox or await self.whereabouts(session)
        record = await asyncio.to_thread(records.find, name, session)
        return await self._fleet.get(name), JobLook(session=session, log_file=which.log_file), record

    async def whereabouts(self, session: str, watch_id: int = 0) -> str:
        """The sandbox in which a job was started, where it can be used here; nothing for one that is not ours.

        Raises UnknownSandbox for one in a disposable sandbox that is over.
        """
        if watch_id:
            return (await self.known.watch(watch_id)).sandbox
        record = await asyncio.to_thread(self.known.records.find, "", session) if self.known.exists() else None
        return record.sandbox if record and self._fleet.knows(record.sandbox) else ""

    async def list(self, *, sandbox: str = "", state: str = "", limit: int = 100) -> Sequence[Sight]:
        """Every job that we or the machines know, newest first; a machine that does not answer delays nobody."""
        check.within("limit", limit, 1, 1000)
        members = [self._fleet.member(sandbox)] if sandbox else await self._fleet.offered()
        asked = [self._jobs_of(member, limit) for member in members]
        found = await asyncio.gather(*asked, return_exceptions=True)
        told = [await self._told(member, part) for member, part in zip(members, found, strict=True)]
        sights = [sight for part in told for sight in part if not state or sight.state == state]
        return sorted(sights, key=lambda sight: sight.began, reverse=True)[:limit]

    async def _told(self, member: Member, found: Sequence[Sight] | BaseException) -> Sequence[Sight]:
        """A failure that nobody foresaw is told of the jobs of its own machine; all others are listed."""
        if not isinstance(found, BaseException):
            return found
        why = unforeseen(found, f"listing the jobs of {member.name}")
        known = await asyncio.to_thread(self.known.records.list, member.name)
        return [Sight(member.name, None, record, why) for record in known]

    async def _jobs_of(self, member: Member, limit: int) -> Sequence[Sight]:
        known = await asyncio.to_thread(self.known.records.list, member.name, limit=limit)
        records = {record.job_id: record for record in known}
        try:
            seen = await asyncio.wait_for(self._ask_for_all(member, limit), LIST_S)
        except (SandboxError, asyncio.TimeoutError) as problem:
            why = str(problem) or f"{member.name} did not answer in {LIST_S:g} s"
            return [Sight(member.name, None, record, why) for record in known]
        await asyncio.to_thread(
            self.known.records.note_all, [(job.job_id, job) for job in seen if job.job_id in records]
        )
        sights = [Sight(member.name, job, records.pop(job.job_id, None)) for job in seen]
        return [*sights, *(Sight(member.name, None, record) for record in records.values())]

    async def _ask_for_all(self, member: Member, limit: int) -> Sequence[JobSeen]:
        return await (await member.open()).jobs.list(limit)


async def tell_last_line(sandbox: Sandbox, look: JobLook, progress: Progress) -> None:
    """Tell what a job printed last, again and again until this is cancelled; trouble is left to whoever waits."""
    if progress is silent:
        return
    begun, pause = time.monotonic(), SOON_S
    look = replace(look, lines=LAST_LINES, cursor=None, most_bytes=LAST_BYTES)
    while True:
        await asyncio.sleep(pause)
        with contextlib.suppress(SandboxError):
            (seen,) = await sandbox.jobs.look([look])
            progress(Beat(time.monotonic() - begun, seen.log_size, last_line(seen.log)))
        pause = BEAT_S
