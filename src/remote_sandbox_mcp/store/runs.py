"""Commands as rows: what was run in which sandbox, and what came of it; an end, once seen, stays."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING

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


class RunRecords:
    """The rows. Any number of processes may use them at once. Raises ConfigError."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def add(self, record: RunRecord) -> None:
        """Write a new one, and drop what is old or too much in its sandbox."""
        kept = replace(record, command=_text(record.command[:LONGEST_COMMAND]), tail=_text(record.tail[-LONGEST_TAIL:]))
        with self.database.writing() as connection:
            connection.execute(statements("runs")["add"], asdict(kept))
            before = {"place": record.place, "before": record.created - KEPT_S, "most": MOST_RUNS}
            connection.execute(statements("runs")["prune"], before)

    def note(
        self, run_id: str, state: str, *, outcome: str, is_listed: bool = False, exit_code: int | None = None,
        seconds: float = 0.0, tail: str = "",
    ) -> None:  # fmt: skip
        """Note what was seen of it."""
        told = {"outcome": outcome, "exit_code": exit_code, "seconds": seconds, "tail": _text(tail[-LONGEST_TAIL:])}
        self._change("note", run_id=run_id, state=state, is_listed=is_listed, **told)

    def get(self, run_id: str) -> RunRecord | None:
        return next(iter(self._select("get", run_id=run_id)), None)

    def latest(self, place: str, limit: int) -> tuple[RunRecord, ...]:
        """The last commands of a sandbox, newest first."""
        return self._select("latest", place=place, limit=limit)

    def background(self, place: str, since: float, limit: int) -> tuple[RunRecord, ...]:
        """Those that outlasted their call, and those of which no end is known; newest first."""
        return self._select("background", place=place, since=since, limit=limit)

    def remove(self, run_id: str) -> None:
        """As if it had never been."""
        self._change("remove", run_id=run_id)

    def forget(self, place: str) -> None:
        """Drop all commands of a sandbox that is gone."""
        self._change("forget", place=place)

    def _change(self, name: str, **values: object) -> None:
        with self.database.writing() as connection:
            connection.execute(statements("runs")[name], values)

    def _select(self, name: str, **values: object) -> tuple[RunRecord, ...]:
        with self.database.reading() as connection:
            return tuple(_record(row) for row in connection.execute(statements("runs")[name], values).fetchall())


def _record(row: sqlite3.Row) -> RunRecord:
    values = {field.name: row[field.name] for field in fields(RunRecord)}
    return RunRecord(**{**values, "is_listed": bool(values["is_listed"])})


def _text(text: str) -> str:
    """What SQLite takes: a command may hold bytes that are no text."""
    return text.encode("utf-8", "backslashreplace").decode()
