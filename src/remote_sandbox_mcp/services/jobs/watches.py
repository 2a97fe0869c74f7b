"""The verbs on watches: begin one for a running job, show, cancel, list events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...core import check
from ...core.errors import BadArgument
from ...core.jobs.job import JobOrder, JobQuery, JobSeen, JobState
from ...core.jobs.lifecycle import ask_checkpoint
from ...core.jobs.watch import Event, Status, Watch, WatchOrder
from ...core.sandboxes.sandbox import Sandbox
from ..fleet import Fleet
from .records import JobRegistry
from .start import Starting, begin_watching
from .values import Ensure, Which

if TYPE_CHECKING:
    from ...local.store.jobs import JobRecord

Find = Callable[[Which], Awaitable["tuple[Sandbox, JobQuery, JobRecord | None]"]]


class WatchService:
    """Watches, shared by all processes of this user."""

    def __init__(self, fleet: Fleet, registry: JobRegistry, starting: Starting, find: Find) -> None:
        self._fleet = fleet
        self._registry = registry
        self._starting = starting
        self._find = find

    async def begin(
        self, which: Which, order: WatchOrder, *, cwd: str = "", command: str = "", ensure: Ensure | None = None
    ) -> tuple[Watch, tuple[str, ...]]:
        """Watch a job that runs already, ours or not; returns notes for its owner."""
        for name, text in (("log_file", which.log_file), ("cwd", cwd), ("launch_command", command)):
            check.text_argument(name, text, required=False)
        sandbox, query, _ = await self._find(which)
        if query.element:
            raise BadArgument(f"an array is watched as a whole: pass tmux_session={query.session!r}")
        name = sandbox.description.name
        job = JobOrder(session=query.session, script=command, cwd=cwd, log_file=which.log_file)
        watch, left_out = self._starting.make_watch(order, name, job)
        (seen,) = await sandbox.jobs.inspect([query])
        if seen.state is JobState.MISSING:
            raise BadArgument(f"{name} knows no session {query.session!r}, so nothing is watched: {seen.reason}")
        if seen.foreign and seen.queue and watch.policy.auto_resume:
            # Its resume would be started beside the queue, on the login node itself.
            raise BadArgument(
                f"auto_resume is for jobs of exec_bash_background: how {query.session} was submitted is not known, so "
                "it cannot be submitted again; watch it without auto_resume"
            )
        problem = await self._starting.hand_over([name]) if ensure else ""
        added = await asyncio.to_thread(self._registry.watches.add, _as_seen(watch, seen))
        await asyncio.to_thread(self._registry.relieve, name, added.session, added.id)
        return added, (*left_out, *await begin_watching(problem, ensure))

    async def get(self, watch_id: int) -> Watch:
        return await self._registry.watch(watch_id)

    async def inspect(self, watch: Watch, *, lines: int) -> JobSeen:
        """The current state of a watched job, with its checkpoint."""
        query = JobQuery(job_id=watch.job_id, session=watch.session, log_file=watch.log_file, lines=lines)
        query = ask_checkpoint(query, watch)
        (seen,) = await (await self._fleet.get(watch.sandbox)).jobs.inspect([query])
        return seen

    async def cancel(self, watch_id: int) -> Watch:
        """Stop watching a job; the job itself goes on."""
        cancelled = await asyncio.to_thread(self._registry.watches.cancel, watch_id)
        return cancelled or await self._registry.watch(watch_id)

    async def list(self, status: str = "", limit: int = 100) -> Sequence[Watch]:
        return await asyncio.to_thread(self._registry.watches.list, Status(status) if status else None, limit)

    async def events(self, watch_id: int = 0, after: int | None = None, limit: int = 50) -> Sequence[Event]:
        """Events in order: those after `after`, or else the newest."""
        if watch_id:
            await self._registry.watch(watch_id)

        def read() -> Sequence[Event]:
            return self._registry.watches.events(watch_id or None, after or 0, limit, newest=after is None)

        return await asyncio.to_thread(read)


def _as_seen(watch: Watch, seen: JobSeen) -> Watch:
    """Fill in from the machine what the caller left out."""
    return replace(
        watch,
        job_id=seen.job_id,
        log_file=seen.log_file or watch.log_file,
        cwd=watch.cwd or seen.cwd,
        command=watch.command or seen.command,
        policy=replace(watch.policy, resume_cwd=watch.policy.resume_cwd or seen.cwd),
        due=time.time(),
    )
