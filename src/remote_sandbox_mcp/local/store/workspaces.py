"""Rows of workspaces: any process can add, read and remove them."""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass
from typing import Any

from ...core.workspaces.workspace import Rules, Workspace
from .database import Rows
from .keeping import fields_of
from .library import sqlite3


@dataclass(frozen=True)
class WorkspaceRow:
    """A workspace as its row has it: with its configuration, and the inode of its local folder when it was linked."""

    workspace: Workspace
    configuration: str
    inode: int


class WorkspaceRows(Rows[WorkspaceRow]):
    """The rows."""

    name = "workspaces"

    def put(self, row: WorkspaceRow) -> None:
        """Add it, or change it."""
        workspace = row.workspace
        values = {name: getattr(workspace, name) for name in ("id", "folder", "sandbox", "remote", "free")}
        rules = json.dumps(dataclasses.asdict(workspace.rules))
        values |= {"configuration": row.configuration, "rules": rules}
        # SQLite's integers have a sign.
        values["inode"] = row.inode - (1 << 64) if row.inode >= 1 << 63 else row.inode
        self._change("put", **values, created=time.time())

    def all(self) -> tuple[WorkspaceRow, ...]:
        """List the workspaces of all configurations, by their local folders."""
        return self._select("all")

    def remove(self, workspace_id: str) -> None:
        self._change("remove", id=workspace_id)

    def _read(self, row: sqlite3.Row) -> WorkspaceRow:
        said = fields_of(Rules, json.loads(row["rules"]))
        fields: dict[str, Any] = {name: tuple(it) if isinstance(it, list) else it for name, it in said.items()}
        rules, free = Rules(**fields), bool(row["free"])
        workspace = Workspace(row["id"], row["folder"], row["sandbox"], row["remote"], rules, free)
        return WorkspaceRow(workspace, row["configuration"], row["inode"] & (1 << 64) - 1)
