"""The verbs on watches: begin one for a running job, show, cancel, list events; and resume a job by its watch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...core import check
from ...core.errors import BadArgument, NotStarted, Unreachable
from ...core.jobs.job import JobOrder, JobQuery, JobSeen, JobStarted, JobState
from ...core.jobs.lifecycle import ask_checkpoint, resume_now, why_not_resumable
from ...core.jobs.watch import Decision, Event, Status, Watch, WatchOrder
from ...core.sandboxes.sandbox import Sandbox
from ...core.texts.shown import HIDDEN
from ..fleet import Fleet
from .records import JobRegistry
from .start import Starting, begin_watching
from .values import Begun, Ensure, Which

if TYPE_CHECKING:
    from ...local.store.jobs import JobRecord
    from ...local.store.watches import Effect
    from .supervise import Effects

Find = Callable[[Which], Awaitable["tuple[Sandbox, JobQuery, JobRecord | None]"]]
# The reason of a NotStarted for a job that nothing is known of with which it could go on.
NO_RESUME_COMMAND = "no_resume_command"
# How long another process may take with an attempt that it has begun, and how often we look.
OTHERS_S, CHECK_S = 60.0, 0.1
# How often a watch may change between reading and writing it.
TRIES = 20


class WatchService:
    """Watches, shared by all processes of this user, and jobs that are started again by theirs."""

    def __init__(
        self, fleet: Fleet, registry: JobRegistry, starting: Starting, find: Find, effects: Callable[[], Effects]
    ) -> None:
        self._fleet = fleet
        self._registry = registry
        self._starting = starting
        self._find = find
        self._effects = effects

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

    # Resuming: several callers and the watchdog share one attempt

    async def resume(self, which: Which, asked_by: str, command: str = "", ensure: Ensure | None = None) -> Begun:
        """Start it again now; `command` is for a job that has no resume command, or another one.

        Raises NotStarted for a job that runs or is pending, or that has no resume command.
        """
        check.text_argument("resume_command", command, required=False)
        watch, job_id = await self._resumable(which, command)
        problem = await self._starting.hand_over([watch.sandbox]) if ensure else ""
        effect = await asyncio.to_thread(self._order, watch.id, job_id, asked_by, command)
        await self._effects().resume(effect)
        effect = await self._settled(effect)
        # Also where it did not begin: the watchdog tries again what could not be asked.
        notes = await begin_watching(problem, ensure)
        try:
            return await self._outcome(effect, notes)
        except NotStarted:
            await asyncio.to_thread(self._take_back, watch, command)
            raise

    async def _resumable(self, which: Which, command: str) -> tuple[Watch, str]:
        """The watch of a job that may be resumed now, and the id of that job."""
        sandbox, query, record = await self._find(which)
        name = sandbox.description.name
        if query.element:
            raise NotStarted(f"an array is resumed as a whole: pass {query.session!r}")
        watch = await asyncio.to_thread(self._watch_of, which, name, query.session, record)
        job_id = watch.job_id if watch else record.job_id if record else query.job_id
        (seen,) = await sandbox.jobs.inspect([replace(query, job_id=job_id, lines=1)])
        about = watch or Watch(sandbox=name, session=query.session)
        if why := why_not_resumable(about, seen):
            raise NotStarted(why, seen.state.value)
        # A watch may not know yet which job was started in its session since.
        job_id = watch.job_id if watch else seen.job_id
        if command and watch is None:
            watch, _ = await self.begin(which, WatchOrder(resume_command=command))
        if watch is None or not (command or watch.policy.resume_command):
            raise NotStarted(
                f"{query.session} on {name} has no resume command: pass one as resume_command now, or when it is "
                "started with exec_bash_background",
                NO_RESUME_COMMAND,
            )
        # What was hidden of it when the watch ended is gone.
        needed = (watch.policy.resume_command, *watch.policy.resume_env.values())
        if not command and any(HIDDEN in text for text in needed):
            raise NotStarted(
                f"{query.session} on {name} was resumed with a secret, which is not kept after the end of its watch: "
                "pass the whole command as resume_command",
                NO_RESUME_COMMAND,
            )
        return watch, job_id

    def _watch_of(self, which: Which, sandbox: str, session: str, record: JobRecord | None) -> Watch | None:
        """The newest watch over this job; an earlier job of the same name may have had another."""
        if which.watch_id:
            return self._registry.watches.get(which.watch_id)
        return self._registry.watch_over(sandbox, session, record)

    def _order(self, watch_id: int, job_id: str, asked_by: str, command: str) -> Effect:
        """Record the attempt to resume this job, or find the one that is to be made already, or that was made."""
        watches = self._registry.watches
        for _ in range(TRIES):
            watch, effect, now = watches.get(watch_id), watches.open_resume(watch_id), time.time()
            if effect is None and watch and watch.job_id != job_id:
                return self._made(watch)
            if effect is None and watch and self._commit(watch, asked_by, command, now):
                # Already done, perhaps, by a watchdog that was quicker.
                effect = watches.newest_resume(watch_id)
                self._registry.relieve(watch.sandbox, watch.session, watch_id)
            if effect is not None:
                return effect
        raise NotStarted(f"watch {watch_id} changes all the time, so nothing was started; try again")

    def _commit(self, watch: Watch, asked_by: str, command: str, now: float) -> bool:
        """Write the attempt and, in the same transaction, the command that was given for it."""
        wanted = with_command(watch, command or watch.policy.resume_command)
        return self._registry.watches.commit(resume_now(wanted, asked_by, now), now, rewrites=bool(command))

    def _take_back(self, before: Watch, command: str) -> None:
        """After an attempt that was refused, the watch has the resume command that it had before."""
        watches = self._registry.watches
        for _ in range(TRIES):
            watch = watches.get(before.id)
            if not command or watch is None or watch.policy.resume_command != command or watches.open_resume(before.id):
                return
            decision = Decision(with_command(watch, before.policy.resume_command))
            if watches.commit(decision, time.time(), rewrites=True):
                return

    def _made(self, watch: Watch) -> Effect:
        """The attempt of another caller, whose job the watch is over now. Raises NotStarted if it was no attempt."""
        effect = self._registry.watches.newest_resume(watch.id)
        if effect is None or effect.resume is None or effect.resume.job_id != watch.job_id:
            who = f"{watch.session} on {watch.sandbox}"
            raise NotStarted(
                f"{who} was started anew in the meantime, so nothing was done; see how it is, and try again"
            )
        return effect

    async def _settled(self, effect: Effect) -> Effect:
        """The attempt once no process is working at it."""
        from ...local.store.watches import TAKEN

        deadline = time.monotonic() + OTHERS_S
        while True:
            found = await asyncio.to_thread(self._registry.watches.effect, effect.id) or effect
            if found.state != TAKEN or time.monotonic() > deadline:
                return found
            await asyncio.sleep(CHECK_S)

    async def _outcome(self, effect: Effect, notes: tuple[str, ...]) -> Begun:
        from ...local.store.watches import PENDING, TAKEN

        watch = await self._registry.watch(effect.watch_id)
        job_id = effect.resume.job_id if effect.resume else ""
        record = await asyncio.to_thread(self._registry.records.get, job_id)
        if record is not None and watch.job_id == job_id:
            started = JobStarted(
                job_id=job_id, session=record.session, log_file=record.log_file, cwd=record.cwd, via=record.via
            )
            return Begun(started, watch.sandbox, watch.id, notes)
        who = f"{watch.session} on {watch.sandbox}"
        if effect.state in (PENDING, TAKEN):
            raise Unreachable(
                f"{who} could not be started again yet: {watch.last_error or 'there is no answer'}; "
                "the watchdog tries again"
            )
        raise NotStarted(f"{who} was not started again: {watch.last_error or watch.last_summary}")


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


def with_command(watch: Watch, command: str) -> Watch:
    return replace(watch, policy=replace(watch.policy, resume_command=command))
