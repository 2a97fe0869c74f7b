"""Live: the rows of all topics for any number of lookers; nothing is asked for that nobody looks at."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from ... import __version__
from ...app import App
from ...core.errors import SandboxError
from ...core.jobs.job import JobState
from ...core.jobs.watch import Watch
from ...core.resources.history import total
from ...core.resources.usage import TREND_S, thinned
from ...core.texts.shown import values_in_use
from ...local.waiting import Chores, within
from ...services.fleet import unforeseen
from ...services.history import row_of
from ...services.jobs.service import once
from ...services.jobs.values import JobSnapshot
from ..results import plain_text, sentence
from .board import Board, Change, Row, Viewer
from .rows import Secrets, broken_job_row, call_row, end_fields, job_id, job_row
from .topics import CALLS, EVENTS, SANDBOXES, TRANSFERS, WORKSPACES, StateFile, WorkspaceTopic, refresh_disposables
from .watcher import MACHINES, TRENDS, CloseLook, SandboxPoller

log = logging.getLogger(__name__)

ABOUT, JOBS, USAGE, RUNNING = "about", "jobs", "usage", "running"
TOPICS = (ABOUT, MACHINES, TRENDS, JOBS, SANDBOXES, WORKSPACES, TRANSFERS, EVENTS, CALLS, USAGE, RUNNING)
# How often the state file's counter of changes, and the list of sandboxes, are looked at.
POLL_EVERY_S = 1.0
# How often providers of disposable sandboxes are asked.
PROVIDERS_S = 5.0
# GPU-hours are shown of today and of so long; and how often they are read.
USAGE_S, USAGE_EVERY_S = 7 * 86400.0, 60.0
# Jobs are shown when all machines have told theirs, or after this time.
FIRST_JOBS_S = 1.5
MOST_JOBS = 2000
# States of jobs of which nothing more is to be expected. One whose machine does not answer may still run.
OVER = frozenset({JobState.ENDED.value, JobState.GONE.value, JobState.MISSING.value})
# Answers of several machines within this time are shown together.
TOGETHER_S = 0.1

About = Callable[[], Mapping[str, Any]]


class Live:
    """Live view of one app. `about` returns facts that only the process has: when it began, and its clients."""

    def __init__(self, app: App, about: About = dict) -> None:
        self._app = app
        self._about = about
        self._began = time.time()
        self._board = Board()
        self._watchers: dict[str, tuple[SandboxPoller, asyncio.Future[None]]] = {}
        self._state = StateFile(app, self._board)
        # What is on no row any more, oldest first.
        self.older_calls, self.older_events = self._state.older_calls, self._state.older_events
        self._workspaces = WorkspaceTopic(app, self._board)
        self._following = Chores("asking a sandbox how it stands")
        # What is done only while anybody looks.
        self._looking = Chores("looking at what goes on")
        self._news = asyncio.Event()
        self._jobs_wait_until = 0.0
        self._showing: asyncio.TimerHandle | None = None
        self._jobs_left_out = 0
        # Whether what was seen before anybody looked has been filled in.
        self._is_remembered = False

    # Looking

    async def follow(self, topics: Collection[str] = TOPICS) -> AsyncIterator[Change]:
        """Changes, the first of each topic whole, until the caller ends it (contextlib.aclosing)."""
        with self.looking(topics) as looker:
            while True:
                for change in await looker.changes():
                    yield change

    @contextmanager
    def looking(self, topics: Collection[str] = TOPICS) -> Iterator[Viewer]:
        """For callers that also wait for something else: `await looker.changes()` may be cancelled at any time."""
        looker = Viewer(self._board, topics, {TRENDS: _grown, ABOUT: _dated})
        is_first = not self._board.lookers
        self._board.lookers.add(looker)
        if is_first:
            self._begin()
        try:
            yield looker
        finally:
            self._board.lookers.discard(looker)
            if not self._board.lookers:
                self._end()

    def stir(self) -> None:
        """Refresh jobs and other rows now, after something was done in this process."""
        for watcher, _ in self._watchers.values():
            watcher.stir()
        self._news.set()

    def knows(self, topic: str) -> bool:
        return self._board.knows(topic)

    def rows(self, topic: str) -> Mapping[str, Row]:
        """The rows of a topic as they were last seen."""
        return self._board.rows(topic)

    def clients(self) -> list[Mapping[str, Any]]:
        """The clients that are connected now, where this process knows them."""
        return [*self._about().get("clients", ())]

    async def close(self) -> None:
        if self._showing is not None:
            self._showing.cancel()
        await self._looking.close()
        await self._workspaces.close()
        await self._following.close()
        await self._state.close()

    # While anybody looks

    def _begin(self) -> None:
        self._is_remembered = False
        self._jobs_wait_until = time.monotonic() + FIRST_JOBS_S
        loops = (
            (self._refresh_fleet, POLL_EVERY_S),
            (self._refresh_state, POLL_EVERY_S),
            (self._workspaces.refresh, POLL_EVERY_S),
            (functools.partial(refresh_disposables, self._app, self._board), PROVIDERS_S),
            (self._refresh_usage, USAGE_EVERY_S),
        )
        for query, every_s in loops:
            self._looking.start(self._repeat(query, every_s))

    def _end(self) -> None:
        self._looking.cancel()
        self._following.cancel()
        self._watchers.clear()
        self._workspaces.cancel()

    async def _repeat(self, query: Callable[[], Awaitable[None]], every_s: float) -> None:
        logged = ""
        while True:
            (problem,) = await asyncio.gather(query(), return_exceptions=True)
            # What cannot be read or asked for a moment is found by the next look, and so is what was not foreseen.
            if problem is not None and not isinstance(problem, SandboxError) and repr(problem) != logged:
                unforeseen(problem, "looking at what goes on")
                logged = repr(problem)
            with suppress(asyncio.TimeoutError):
                await within(self._news.wait(), every_s)
            # One more turn of the loop, so that the others are woken by the same news.
            await asyncio.sleep(0)
            self._news.clear()

    async def _refresh_fleet(self) -> None:
        """A watcher for each sandbox, and an end of those whose sandbox has gone or is another one now."""
        self._board.put(ABOUT, {"hub": self._about_row()})
        members = {member.name: member for member in await self._app.fleet.offered()}
        before = {*self._watchers}
        for name, (watcher, following) in [*self._watchers.items()]:
            if members.get(name) is not watcher.member:
                following.cancel()
                watcher.remove()
                del self._watchers[name]
            elif following.done():
                del self._watchers[name]
        for name, member in members.items():
            if name not in self._watchers:
                watcher = SandboxPoller(self._app, member, self._board, self._show_jobs_soon, self._watch_of)
                self._watchers[name] = watcher, self._following.start(watcher.follow())
        await self._remember()
        for topic in (MACHINES, TRENDS):
            self._board.put(topic, self._board.rows(topic))
        if before != {*self._watchers} or not self._board.knows(JOBS):
            self._show_jobs()

    async def _remember(self) -> None:
        """Fill in the last hour of each machine, once for those who begin to look."""
        if not self._is_remembered:
            self._is_remembered = True
            with suppress(SandboxError):
                for name, points in (await self._app.machine_history.points(TREND_S)).items():
                    if name in self._watchers:
                        self._watchers[name][0].remember(points)

    async def _refresh_usage(self) -> None:
        rows = await self._app.machine_history.gpu_hours(USAGE_S)
        today = time.strftime("%Y-%m-%d")
        now = total((row for row in rows if row.day == today), "user")
        users = {user: hours for (user,), hours in total(rows, "user").items()}
        self._board.put(
            USAGE, {user: {"user": user, "today": now.get((user,), 0.0), "week": it} for user, it in users.items()}
        )

    async def _refresh_state(self) -> None:
        running, secrets, before = self._app.history.running, values_in_use(), self._board.rows(RUNNING)
        ids = {f"{number}": call for number, call in running.items()}
        rows = {id: before.get(id) or call_row(row_of(call, secrets)) | {"id": id} for id, call in ids.items()}
        self._board.put(RUNNING, rows)
        if await self._state.refresh():
            self._show_jobs()

    # Rows that are put together here

    def _show_jobs_soon(self) -> None:
        """Once for all machines that answer at about the same time."""
        if self._showing is None:
            self._showing = asyncio.get_running_loop().call_later(TOGETHER_S, self._show_jobs)

    def _show_jobs(self) -> None:
        if self._showing is not None:
            self._showing.cancel()
            self._showing = None
        parts = [watcher.snapshots for watcher, _ in self._watchers.values()]
        is_whole = all(snapshots is not None for snapshots in parts)
        if not is_whole and time.monotonic() < self._jobs_wait_until:
            return
        snapshots = shown_first(once(snapshot for part in (*parts, self._state.waiting) for snapshot in part or ()))
        before, secrets, now = self._board.rows(JOBS), values_in_use(), time.time()
        shown = [*snapshots.items()][:MOST_JOBS]
        rows = {id: self._job_row(snapshot, now, before.get(id), secrets) for id, snapshot in shown}
        self._jobs_left_out = len(snapshots) - len(rows)
        self._board.put(JOBS, rows)

    def _job_row(self, snapshot: JobSnapshot, now: float, before: Row | None, secrets: Secrets) -> Row:
        """The row of one job; what was not foreseen is a trouble of this job alone."""
        watcher, _ = self._watchers.get(snapshot.sandbox, (None, None))
        look = watcher.looks.of(snapshot) if watcher else CloseLook()
        try:
            row = job_row(snapshot, self._watch_of(snapshot), now, before, secrets, look.checkpoint)
            return row | end_fields(row, look.error, look.left_s, now, before)
        except Exception as problem:
            why = f"its row could not be made ({type(problem).__name__}); the log says more"
            # Once, not with each look.
            if before is None or before.get("trouble") != why:
                log.exception("making the row of %s failed", job_id(snapshot))
            return broken_job_row(snapshot, why)

    def _watch_of(self, snapshot: JobSnapshot) -> Watch | None:
        return self._state.watches.get(snapshot.record.watch_id) if snapshot.record else None

    def _about_row(self) -> Row:
        parts: dict[str, Any] = {"version": __version__, "pid": os.getpid(), "began": self._began, "clients": []}
        file = self._app.jobs.config_file
        parts |= {"config_file": plain_text(str(file)) if file else "", "jobs_left_out": self._jobs_left_out}
        return parts | {"problems": [sentence(it) for it in self._app.standing_problems()]} | dict(self._about())


def shown_first(snapshots: Iterable[JobSnapshot]) -> dict[str, JobSnapshot]:
    """Jobs by the ids of their rows: those that are not over come first, then the newest; one for each session."""
    ordered = sorted(snapshots, key=lambda snapshot: (snapshot.state not in OVER, snapshot.began), reverse=True)
    found: dict[str, JobSnapshot] = {}
    for snapshot in ordered:
        found.setdefault(job_id(snapshot), snapshot)
    return found


def _grown(before: Row | None, row: Row) -> Row:
    """A trend as it is shown: at first all of it, thinned, and then the points that are new."""
    if before is None or not before["points"] or before["filled"] != row["filled"]:
        return {"points": thinned(row["points"])}
    last = before["points"][-1][0]
    return {"add": [point for point in row["points"] if point[0] > last]}


def _dated(before: Row | None, row: Row) -> Row:
    return {**row, "now": time.time()}
