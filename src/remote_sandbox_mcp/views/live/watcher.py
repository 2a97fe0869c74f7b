"""Asks one sandbox how it stands, in a task of its own: how busy it is, its jobs, their checkpoints; and how often."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ...app import App
from ...core.errors import ConnectError, LostContact, SandboxError, Unsupported
from ...core.jobs.curves import Curves
from ...core.jobs.job import Checkpoint, JobQuery, JobSeen
from ...core.jobs.lifecycle import ask_checkpoint
from ...core.jobs.log import last_error
from ...core.jobs.watch import Watch
from ...core.resources.usage import Point, point_of, recent
from ...core.sandboxes.disposable import DISPOSABLE_ID
from ...core.sandboxes.sandbox import Sandbox
from ...core.task import TaskState
from ...local.waiting import within
from ...services.fleet import Member, unforeseen
from ...services.jobs.values import JOB, JobSnapshot
from ...services.probe.measure import measure
from ...services.survey import UNASKED, View
from .board import Board
from .rows import machine_row

# How often a file is read, and a command is run, which may take longer; and how long all of a machine may take.
FILE_S, COMMAND_S, CHECK_S = 10.0, 30.0, 12.0
REST_AFTER_SCAN = 3.0

WatchOf = Callable[[JobSnapshot], Watch | None]


# Jobs that are looked at closely at once, and how much of the end of a log is read.
MOST_AT_ONCE, END_LINES, END_BYTES = 20, 40, 8192
CLOSE = (TaskState.RUNNING, TaskState.FAILED, TaskState.INTERRUPTED)


@dataclass(frozen=True)
class CloseLook:
    """A job's checkpoint, the line of its log that says why it failed, and seconds until its end."""

    checkpoint: Checkpoint | None = None
    error: str = ""
    left_s: float | None = None


class CloseLooks:
    """Checkpoints of one sandbox's jobs and the ends of their logs; of a job that is over, they are read once."""

    def __init__(self) -> None:
        self._found: dict[str, CloseLook] = {}
        self._due: dict[str, float] = {}

    def of(self, snapshot: JobSnapshot) -> CloseLook:
        return self._found.get(f"{snapshot.id} {snapshot.state}", CloseLook())

    async def refresh(self, sandbox: Sandbox, snapshots: Sequence[JobSnapshot], watch_of: WatchOf) -> bool:
        """Returns whether any was looked at. What fails is asked for again later."""
        jobs = {f"{it.id} {it.state}": it for it in snapshots if it.kind == JOB and it.outcome.state in CLOSE}
        self._found = {id: look for id, look in self._found.items() if id in jobs}
        self._due = {id: at for id, at in self._due.items() if id in jobs}
        begun = time.monotonic()
        if not (due := [id for id in jobs if begun >= self._due.get(id, 0.0)][:MOST_AT_ONCE]):
            return False
        queries = [close_query(jobs[id], watch_of(jobs[id])) for id in due]
        with suppress(SandboxError, asyncio.TimeoutError):
            seen = await within(sandbox.jobs.inspect(queries), CHECK_S)
            self._found |= {id: close_look(it) for id, it in zip(due, seen, strict=True)}
        now = time.monotonic()
        for id, query in zip(due, queries, strict=True):
            usual = COMMAND_S if query.checkpoint_command else FILE_S
            is_done = id in self._found and jobs[id].outcome.is_over
            self._due[id] = math.inf if is_done else now + max(usual, REST_AFTER_SCAN * (now - begun))
        return True


def close_query(snapshot: JobSnapshot, watch: Watch | None) -> JobQuery:
    """The question after a job, the end of its log and, while it runs, its checkpoint."""
    seen = snapshot.seen
    log_file = seen.log_file if seen and seen.foreign else ""
    job_id = seen.job_id if seen else snapshot.id
    query = JobQuery(job_id=job_id, session=snapshot.session, log_file=log_file, lines=END_LINES, most_bytes=END_BYTES)
    return query if snapshot.outcome.is_over else ask_checkpoint(query, watch)


def close_look(seen: JobSeen) -> CloseLook:
    if not seen.is_running:
        return CloseLook(error=last_error(seen.log))
    curves = Curves()
    curves.feed(seen.log.decode("utf-8", "replace"))
    is_whole = seen.cursor == len(seen.log)
    left_s = curves.metrics(seen.seconds, seen.silent_s, is_whole=is_whole).left_s
    return CloseLook(seen.checkpoint, left_s=left_s)


# How often a machine is asked while it is looked at, and again after it did not answer.
SAMPLE_S, DOWN_S = 4.0, 30.0
# A slow one is left alone for so many times as long as it took to answer.
REST_AFTER_ANSWER = 3.0
JOBS_S = 5.0


# How often it is looked whether another caller has opened a machine that was down.
POLL_EVERY_S = 2.0
LEAST_PAUSE_S = 0.05

MACHINES, TRENDS = "machines", "trends"


class SandboxPoller:
    """One member of the fleet. A disposable one is asked for its jobs only, and in a way that does not renew it."""

    def __init__(
        self,
        app: App,
        member: Member,
        board: Board,
        jobs_changed: Callable[[], None],
        watch_of: WatchOf,
    ) -> None:
        """`jobs_changed` is called when `snapshots` or `looks` are new; `watch_of` gives the watch of a job."""
        self.member = member
        self.looks = CloseLooks()
        self._watch_of = watch_of
        self.snapshots: Sequence[JobSnapshot] | None = None
        self._app = app
        self._board = board
        self._jobs_changed = jobs_changed
        self._is_machine = not DISPOSABLE_ID.match(member.name)
        self._points: tuple[Point, ...] = ()
        # How often points were filled in between: lookers are sent all of them then.
        self._filled = 0
        self._sample_at = self._jobs_at = 0.0
        # Empty: it has not been asked yet, or it answers.
        self._trouble = ""
        self._stirred = asyncio.Event()
        # What was seen before is shown until it has answered again.
        if self._is_machine and member.name not in board.rows(MACHINES):
            self._show(View(member.name, member.describe(), self._is_active, False), self._first_state)

    def stir(self) -> None:
        """Ask for its jobs now."""
        self._jobs_at = 0.0
        self._stirred.set()

    async def follow(self) -> None:
        """Until it is cancelled, because nobody looks any more."""
        while True:
            self._stirred.clear()
            await self._ask()
            with suppress(asyncio.TimeoutError):
                await within(self._stirred.wait(), self._pause())

    def remember(self, points: Sequence[Point]) -> None:
        """Fill in what was seen while nobody looked here."""
        self._points = recent(sorted({*points, *self._points}, key=lambda point: point[0]), time.time())
        self._filled += 1
        self._show_trend()

    def _show_trend(self) -> None:
        self._board.put_row(TRENDS, self.member.name, {"points": self._points, "filled": self._filled})

    def remove(self) -> None:
        """Take its rows from the board."""
        for topic in (MACHINES, TRENDS) if self._is_machine else ():
            self._board.put_row(topic, self.member.name, None)

    # When

    async def _ask(self) -> None:
        if self._trouble and self.member.is_connected:
            # Another caller has just opened it.
            self._sample_at = 0.0
        if self._is_machine and time.monotonic() >= self._sample_at:
            await self._sample()
        if time.monotonic() >= self._jobs_at:
            await self._list_jobs()
        if self._may_ask and not self._trouble:
            await self._look_closely()

    def _pause(self) -> float:
        due = min(self._sample_at if self._is_machine else math.inf, self._jobs_at) - time.monotonic()
        return max(LEAST_PAUSE_S, min(due, POLL_EVERY_S))

    @property
    def _is_active(self) -> bool:
        return self.member.name == self._app.fleet.default

    @property
    def _may_ask(self) -> bool:
        if not self._is_machine:
            return self.member.is_connected
        return self.member.may_open_unasked

    @property
    def _first_state(self) -> str:
        return "asking" if self.member.may_open_unasked else "unasked"

    # How busy it is

    async def _sample(self) -> None:
        begun = time.monotonic()
        if not self._may_ask:
            self._sample_at = begun + SAMPLE_S
            return
        view, is_up = await self._view_in_any_case()
        self._trouble = "" if is_up else view.cause or view.trouble
        if view.usage is not None:
            now = time.time()
            self._points = recent((*self._points, point_of(view.usage, now)), now)
            self._app.machine_history.record(self.member, view.usage)
            self._show_trend()
        self._show(view, "up" if is_up else "down")
        took = time.monotonic() - begun
        pause = max(SAMPLE_S, REST_AFTER_ANSWER * took) if is_up else max(DOWN_S, took)
        self._sample_at = time.monotonic() + pause

    async def _view(self) -> tuple[View, bool]:
        """Describe how it stands, and whether it answers."""
        member, active = self.member, self._is_active
        try:
            sandbox = await member.open()
            usage = await measure(sandbox, cluster=member.slurm)
            return View(member.name, sandbox.description, active, True, usage=usage), True
        except (ConnectError, Unsupported, LostContact) as problem:
            return View(member.name, member.describe(), active, False, str(problem), cause=problem.cause), False
        except SandboxError as problem:
            return View(member.name, member.describe(), active, True, usage_trouble=str(problem)), True

    async def _view_in_any_case(self) -> tuple[View, bool]:
        """View the sandbox; an unforeseen error is a trouble of this sandbox alone."""
        (found,) = await asyncio.gather(self._view(), return_exceptions=True)
        if not isinstance(found, BaseException):
            return found
        why = unforeseen(found, f"looking at {self.member.name}")
        return View(self.member.name, self.member.describe(), self._is_active, False, why, cause=why), False

    def _show(self, view: View, state: str) -> None:
        if state == "unasked":
            view = View(view.name, view.description, view.active, False, UNASKED)
        sampled = 0.0 if state in ("asking", "unasked") else time.time()
        self._board.put_row(MACHINES, self.member.name, machine_row(view, state, sampled))

    # Its jobs

    async def _list_jobs(self) -> None:
        begun = time.monotonic()
        (found,) = await asyncio.gather(self._ask_for_jobs(), return_exceptions=True)
        if isinstance(found, BaseException):
            unforeseen(found, f"listing the jobs of {self.member.name}")
        self.snapshots = self.snapshots or () if isinstance(found, BaseException) else found
        now = time.monotonic()
        self._jobs_at = now + max(JOBS_S, 2 * (now - begun))
        self._jobs_changed()

    async def _look_closely(self) -> None:
        if self.snapshots and self.member.sandbox is not None:
            sandbox = getattr(self.member.sandbox, "unnoticed", self.member.sandbox)
            if await self.looks.refresh(sandbox, self.snapshots, self._watch_of):
                self._jobs_changed()

    async def _ask_for_jobs(self) -> Sequence[JobSnapshot]:
        if self._may_ask and not self._trouble:
            return await self._app.jobs.jobs_of(self.member, noticed=self._is_machine)
        return await self._app.jobs.recorded_of(self.member, self._trouble or UNASKED)
