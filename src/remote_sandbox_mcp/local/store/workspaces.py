"""Rows of workspaces: any process can add, read and remove them."""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass
from typing import Any

from ...core.workspaces.workspace import Rules, Workspace
from .database import Rows
from .library import sqlite3


@dataclass(frozen=True)
class WorkspaceRow:
    """A workspace as its row has it: with its configuration, and the inode of its local folder when it was linked."""

    workspace: Workspace
    configuration: str
    inode: int


class WorkspaceRows(Rows):
    """The rows."""

    name = "workspaces"

    def put(self, row: WorkspaceRow) -> None:
        """Add it, or change it."""
        workspace = row.workspace
        values = {name: getattr(workspace, name) for name in ("id", "folder", "sandbox", "remote", "free")}
        rules = json.dumps(dataclasses.asdict(workspace.rules))
        values |= {"configuration": row.configuration, "inode": _signed(row.inode), "rules": rules}
        self._change("put", **values, created=time.time())

    def all(self) -> tuple[WorkspaceRow, ...]:
        """List the workspaces of all configurations, by their local folders."""
        return tuple(map(_row, self._found("all")))

    def remove(self, workspace_id: str) -> None:
        self._change("remove", id=workspace_id)


def _row(row: sqlite3.Row) -> WorkspaceRow:
    names = {field.name for field in dataclasses.fields(Rules)}
    said = {name: value for name, value in json.loads(row["rules"]).items() if name in names}
    fields: dict[str, Any] = {name: tuple(it) if isinstance(it, list) else it for name, it in said.items()}
    workspace = Workspace(row["id"], row["folder"], row["sandbox"], row["remote"], Rules(**fields), bool(row["free"]))
    return WorkspaceRow(workspace, row["configuration"], row["inode"] & (1 << 64) - 1)


def _signed(inode: int) -> int:
    """SQLite's integers have a sign."""
    return inode - (1 << 64) if inode >= 1 << 63 else inode
