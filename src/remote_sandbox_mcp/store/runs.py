"""Commands as rows: what was run in which sandbox, and what came of it; an end, once seen, stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from .database import Database
from .sql import statements

if TYPE_CHECKING:
    import sqlite3

RUNNING, ENDED, GONE = "running", "ended", "gone"
# How many commands are kept for each sandbox, and for how long.
MOST_RUNS, KEPT_S = 200, 7 * 86400.0
LONGEST_COMMAND, LONGEST_TAIL = 500, 4000


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A command as its row says. `outcome` is a word or two for people; `tail` the end of what it printed."""

    run_id: str
    sandbox: str
    # Tells machines apart that have the same name in two configurations.
    place: str
    command: str
    created: float
    state: str = RUNNING
    # Whether it outlasted the call that started it.
    is_listed: bool = False
    exit_code: int | None = None
    outcome: str = ""
    seconds: float = 0.0
    tail: str = ""


@dataclass(frozen=True)
class Change:
    """One change of the rows; `place` is that of a new row, where the rows of its sandbox may become too many."""

    statement: str
    values: Mapping[str, object]
    place: str = ""


def added(record: RunRecord, **told: object) -> Change:
    """A new row, with what has become of it since."""
    row = {**vars(record), **told}
    row |= {"command": _text(record.command[:LONGEST_COMMAND]), "tail": _text(row["tail"][-LONGEST_TAIL:])}
    return Change("add", row, record.place)


def noted(
    run_id: str, state: str, *, outcome: str, is_listed: bool = False, exit_code: int | None = None,
    seconds: float = 0.0, tail: str = "",
) -> Change:  # fmt: skip
    """What was seen of a command that has a row."""
    told = {"outcome": outcome, "exit_code": exit_code, "seconds": seconds, "tail": _text(tail[-LONGEST_TAIL:])}
    return Change("note", {"run_id": run_id, "state": state, "is_listed": is_listed, **told})


def removed(run_id: str) -> Change:
    """As if it had never been."""
    return Change("remove", {"run_id": run_id})


def forgotten(place: str) -> Change:
    """No row of a sandbox that is gone."""
    return Change("forget", {"place": place})


class RunRecords:
    """The rows. Any number of processes may use them at once. Raises ConfigError."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def write(self, changes: Sequence[Change]) -> None:
        """Make all of these changes in their order, or none; then drop what is old or too much in a sandbox."""
        newest: dict[str, Any] = {change.place: change.values["created"] for change in changes if change.place}
        with self.database.writing() as connection:
            for change in changes:
                connection.execute(statements("runs")[change.statement], change.values)
            for place, created in newest.items():
                connection.execute(
                    statements("runs")["prune"], {"place": place, "before": created - KEPT_S, "most": MOST_RUNS}
                )

    def get(self, run_id: str) -> RunRecord | None:
        return next(iter(self._select("get", run_id=run_id)), None)

    def latest(self, place: str, limit: int) -> tuple[RunRecord, ...]:
        """The last commands of a sandbox, newest first."""
        return self._select("latest", place=place, limit=limit)

    def background(self, place: str, since: float, limit: int) -> tuple[RunRecord, ...]:
        """Those that outlasted their call, and those of which no end is known; newest first."""
        return self._select("background", place=place, since=since, limit=limit)

    def _select(self, name: str, **values: object) -> tuple[RunRecord, ...]:
        with self.database.reading() as connection:
            return tuple(_record(row) for row in connection.execute(statements("runs")[name], values).fetchall())


def _record(row: sqlite3.Row) -> RunRecord:
    values = {field.name: row[field.name] for field in fields(RunRecord)}
    return RunRecord(**{**values, "is_listed": bool(values["is_listed"])})


def _text(text: str) -> str:
    """What SQLite takes: a command may hold bytes that are no text."""
    return text.encode("utf-8", "backslashreplace").decode()
