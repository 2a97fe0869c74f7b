"""Rows of what is read anew: the state file that all processes of this user share, disposable sandboxes, workspaces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ...app import App
from ...config import paths
from ...core.errors import SandboxError
from ...core.jobs.watch import Watch
from ...core.lazy import lazy
from ...core.texts.shown import values_in_use
from ...core.workspaces.workspace import Workspace, WorkspaceState
from ...local.store.database import STATE_FILE, Database
from ...local.store.history import HistoryRows, WantedCalls
from ...local.store.watches import Watches
from ...local.waiting import Chores
from ...services.jobs.values import JobSnapshot
from .board import Board
from .rows import Secrets, call_row, disposable_row, event_row, transfer_row, workspace_row

MOST_EVENTS, MOST_CALLS, MOST_TRANSFERS, MOST_WATCHES = 200, 200, 100, 1000

EVENTS, CALLS, TRANSFERS = "events", "calls", "transfers"
SANDBOXES, WORKSPACES = "sandboxes", "workspaces"
# How often both sides of a workspace are compared while it is looked at; a slow one is left alone for longer.
COMPARE_S, REST_AFTER_SCAN = 30.0, 20.0
# States of machines that cannot be asked now.
NOT_THERE = {"down": "unreachable", "unasked": "unreachable", "asking": "asking"}


class StateFile:
    """Reads the file after each change that anybody has made to it. Raises ConfigError."""

    def __init__(self, app: App, board: Board) -> None:
        self.watches: Mapping[int, Watch] = {}
        # Jobs that no machine has: they wait for one, or ended before.
        self.waiting: Sequence[JobSnapshot] = ()
        self._app = app
        self._board = board
        self._version = -1

    @lazy
    def _database(self) -> Database:
        # A connection of its own: it is told of changes by all others, those of this process too.
        return Database(paths.state_folder() / STATE_FILE)

    def exists(self) -> bool:
        """Whether there is a state file; makes none."""
        return (paths.state_path() / STATE_FILE).exists()

    async def refresh(self) -> bool:
        """Bring the board up to date; returns whether anything in the file has changed."""
        if not self.exists():
            for topic in (EVENTS, CALLS, TRANSFERS):
                self._board.put(topic, {})
            return False
        version = await asyncio.to_thread(self._database.version)
        if version == self._version:
            return False
        watches, events, calls = await asyncio.to_thread(self._read, values_in_use())
        self.watches = watches
        self.waiting = await self._app.jobs.waiting.list()
        for topic, rows in ((EVENTS, events), (CALLS, calls)):
            self._board.put(topic, {str(row["id"]): row for row in rows})
        background = self._app.transfers.background
        found = await background.list(MOST_TRANSFERS)
        stale = {it.id: not it.is_over and await background.is_stale(it) for it in found}
        self._board.put(TRANSFERS, {it.id: transfer_row(it, stale[it.id]) for it in found})
        # Only now: what could not be read is read again.
        self._version = version
        return True

    async def older_events(self, before: int, limit: int) -> list[Mapping[str, Any]]:
        """List events with a lower number, oldest first."""
        return list(await asyncio.to_thread(self._events, before, limit, values_in_use())) if self.exists() else []

    async def older_calls(self, wanted: WantedCalls) -> list[Mapping[str, Any]]:
        if not self.exists():
            return []
        found = await asyncio.to_thread(HistoryRows(self._database).newest, wanted)
        return [call_row(row) for row in found]

    async def close(self) -> None:
        if StateFile._database.made(self):
            await asyncio.to_thread(self._database.close)

    def _read(self, secrets: Secrets) -> tuple[Mapping[int, Watch], list[Mapping[str, Any]], list[Mapping[str, Any]]]:
        watches = {watch.id: watch for watch in Watches(self._database).list(limit=MOST_WATCHES)}
        calls: list[Mapping[str, Any]] = [
            call_row(row) for row in HistoryRows(self._database).newest(WantedCalls(limit=MOST_CALLS))
        ]
        return watches, self._events(0, MOST_EVENTS, secrets, watches), calls

    def _events(
        self, before: int, limit: int, secrets: Secrets, watches: Mapping[int, Watch] | None = None
    ) -> list[Mapping[str, Any]]:
        found = Watches(self._database).events(limit=limit, newest=True, before=before)
        return [event_row(event, self.watches if watches is None else watches, secrets) for event in found]


async def refresh_disposables(app: App, board: Board) -> None:
    """Ask their providers. Raises SandboxError."""
    found = await app.disposables.list()
    forwards = app.apps.forwarded() if found else ()
    board.put(SANDBOXES, {made.id: disposable_row(made, forwards) for made in found})


class WorkspaceTopic:
    """Compares the sides of workspaces, seldom, because that takes each one's turn for a moment."""

    def __init__(self, app: App, board: Board) -> None:
        self._app = app
        self._board = board
        self._states: dict[str, WorkspaceState] = {}
        self._due: dict[str, float] = {}
        self._passes: dict[str, float] = {}
        # One for each workspace at most: one that is busy, or hangs, holds up no other.
        self._comparing: dict[str, asyncio.Future[None]] = {}
        self._chores = Chores("comparing the sides of a workspace", expected=(SandboxError,))

    def cancel(self) -> None:
        """End all comparisons: nobody looks any more."""
        self._chores.cancel()

    async def close(self) -> None:
        await self._chores.close()

    async def refresh(self) -> None:
        """Show all of them, and begin to compare the sides of those that are due. Raises SandboxError."""
        workspaces = await asyncio.to_thread(self._app.workspaces.all)
        rows = {}
        for workspace in workspaces:
            last_pass, conflicts = await asyncio.to_thread(self._app.workspaces.seen_last, workspace)
            if last_pass != self._passes.get(workspace.id):
                # Something has moved: how it stood before does not count any more.
                self._passes[workspace.id], self._due[workspace.id] = last_pass, 0.0
                self._states[workspace.id] = WorkspaceState(workspace, conflicts=conflicts)
            rows[workspace.id] = workspace_row(self._states[workspace.id], self._word(workspace), last_pass)
        self._board.put(WORKSPACES, rows)
        for workspace in filter(self._is_due, workspaces):
            self._comparing[workspace.id] = self._chores.start(self._compare(workspace))

    def _is_due(self, workspace: Workspace) -> bool:
        under_way = self._comparing.get(workspace.id)
        if under_way is not None and not under_way.done():
            return False
        return self._machine_state(workspace) == "up" and time.monotonic() >= self._due[workspace.id]

    async def _compare(self, workspace: Workspace) -> None:
        begun = time.monotonic()
        # Not at once after it has failed.
        self._due[workspace.id] = begun + COMPARE_S
        found = await self._app.workspaces.state(workspace)
        if workspace.id not in self._board.rows(WORKSPACES):
            # It was unlinked meanwhile.
            return
        self._states[workspace.id] = found
        now = time.monotonic()
        self._due[workspace.id] = now + max(COMPARE_S, REST_AFTER_SCAN * (now - begun))
        last_pass = self._passes.get(workspace.id, 0.0)
        row = workspace_row(self._states[workspace.id], self._word(workspace), last_pass)
        self._board.put_row(WORKSPACES, workspace.id, row)

    def _word(self, workspace: Workspace) -> str:
        state = self._states[workspace.id]
        if state.conflicts:
            return "conflict"
        if state.trouble:
            return "unreachable"
        if not self._passes.get(workspace.id):
            return "linking"
        machine = self._machine_state(workspace)
        return NOT_THERE.get(machine, "in step" if state.is_in_step else "changed")

    def _machine_state(self, workspace: Workspace) -> str:
        row: Mapping[str, object] = self._board.rows("machines").get(workspace.sandbox, {})
        # A disposable sandbox is no machine, and is not asked: that would renew it.
        return str(row.get("state", "down"))
