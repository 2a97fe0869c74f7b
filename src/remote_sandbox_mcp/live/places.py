"""Rows of disposable sandboxes and of workspaces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from ..app import App
from ..core.errors import SandboxError
from ..core.workspace import Workspace, WorkspaceState
from ..waiting import Chores
from .board import Board
from .rows import disposable_row, workspace_row

SANDBOXES, WORKSPACES = "sandboxes", "workspaces"
# How often both sides of a workspace are compared while it is looked at; a slow one is left alone for longer.
COMPARE_S, REST_AFTER_LOOK = 30.0, 20.0
# States of machines that cannot be asked now.
NOT_THERE = {"down": "unreachable", "unasked": "unreachable", "asking": "asking"}


async def look_at_disposables(app: App, board: Board) -> None:
    """Ask their providers. Raises SandboxError."""
    found = await app.disposables.list()
    forwards = app.apps.forwarded() if found else ()
    board.put(SANDBOXES, {made.id: disposable_row(made, forwards) for made in found})


class WorkspaceLooks:
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

    async def look(self) -> None:
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
        self._due[workspace.id] = now + max(COMPARE_S, REST_AFTER_LOOK * (now - begun))
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
