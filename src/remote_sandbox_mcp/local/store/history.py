"""Rows of the history of calls: what each client asked for, and what came of it; old ones are dropped."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from .database import Database, Rows, statements
from .keeping import clean
from .library import sqlite3

DAY_S = 86400.0
MOST_ROWS, MOST_BYTES = 100_000, 64 << 20
# Rows are pruned with the first write of a process, and again after so many.
PRUNE_EVERY = 1_000
# What a row takes besides its texts.
BESIDES = 120


@dataclass(frozen=True, kw_only=True)
class CallRow:
    """A call that has ended. `arguments` and `told` hold no secrets; `outcome` is "done" or a code."""

    tool: str
    outcome: str
    begun: float
    seconds: float
    client: str = ""
    version: str = ""
    session: str = ""
    folder: str = ""
    sandbox: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    exit_code: int | None = None
    told: str = ""
    id: int = 0


@dataclass(frozen=True, kw_only=True)
class WantedCalls:
    """Filter of calls: the newest that have a higher number than `after`, and a lower one than `before`."""

    after: int = 0
    # 0 for no limit.
    before: int = 0
    client: str = ""
    sandbox: str = ""
    tool: str = ""
    failed: bool = False
    limit: int = 50


class HistoryRows(Rows[CallRow]):
    """The rows."""

    name, or_in_memory = "history", True

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._unpruned = PRUNE_EVERY

    def write(self, calls: Sequence[CallRow], days: float, configuration: str = "") -> None:
        """Add calls that are kept so many days; now and then, drop what is old or too much."""
        with self.database.writing(or_in_memory=True) as connection:
            rows = [_fields(call, days, configuration) for call in calls]
            connection.executemany(statements(self.name)["add"], rows)
            self._unpruned += len(rows)
            if self._unpruned >= PRUNE_EVERY:
                self._prune(connection, days, configuration)
                self._unpruned = 0

    def forget(self, configuration: str) -> None:
        """Drop all calls made under a configuration."""
        with self.database.writing(or_in_memory=True) as connection:
            self._prune(connection, 0.0, configuration)

    def newest(self, wanted: WantedCalls) -> tuple[CallRow, ...]:
        """Oldest first."""
        return self._select("newest", **vars(wanted), now=time.time())

    def _read(self, row: sqlite3.Row) -> CallRow:
        values = {one.name: row[one.name] for one in fields(CallRow)}
        return CallRow(**{**values, "arguments": json.loads(row["arguments"])})

    def _prune(self, connection: sqlite3.Connection, days: float, configuration: str) -> None:
        now = time.time()
        old = {"now": now, "most": MOST_ROWS, "configuration": configuration, "before": now - days * DAY_S}
        self._execute(connection, "prune", **old)
        too_large = self._execute(connection, "too_large", most=MOST_BYTES).fetchone()[0]
        if too_large is not None:
            self._execute(connection, "drop", id=too_large)


def _fields(call: CallRow, days: float, configuration: str) -> dict[str, object]:
    texts = {name: clean(getattr(call, name)) for name in ("client", "version", "session", "folder", "sandbox")}
    texts |= {"tool": clean(call.tool), "outcome": call.outcome, "told": clean(call.told)}
    texts["arguments"] = json.dumps(dict(call.arguments))
    size = BESIDES + sum(map(len, texts.values()))
    numbers = {"begun": call.begun, "seconds": call.seconds, "exit_code": call.exit_code, "size": size}
    return {**texts, **numbers, "configuration": configuration, "expires": call.begun + days * DAY_S}
