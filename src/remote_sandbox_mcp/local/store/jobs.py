"""Rows of jobs and commands: where they were started and what was last seen; a recorded end stays."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ...core.jobs.job import JobSeen, JobStarted, JobState
from ...core.sandboxes.port import DeployOrder
from ...core.texts.shown import HIDDEN
from .database import Database, Rows, statements
from .keeping import Keeper
from .library import sqlite3

STARTING = "starting"
# Stored as JSON, which can also hold names that are not valid UTF-8.
_WANTED = ("log_file", "cwd", "command")
# Fields of an app's order; the rest is in other columns.
_APP = ("port", "health_path", "cwd")
_COLUMNS = ("job_id", "sandbox", "session", "via", "created", "state", "exit_code", "signal", "ended", "watch_id")
RUNNING, ENDED, GONE = "running", "ended", "gone"
# How many commands are kept for each sandbox, and for how long.
MOST_RUNS, KEPT_S = 200, 7 * 86400.0
LONGEST_COMMAND, LONGEST_TAIL = 500, 4000


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """A job as its row says. `state` is "starting" or one of JobState; times are seconds since the epoch."""

    job_id: str
    sandbox: str
    session: str
    log_file: str = ""
    cwd: str = ""
    command: str = ""
    via: str = ""
    created: float = 0.0
    state: str = STARTING
    exit_code: int | None = None
    signal: str = ""
    ended: float = 0.0
    watch_id: int = 0
    # For an app: as it was ordered.
    app: DeployOrder | None = None


class JobRecords(Rows[JobRecord]):
    """The rows."""

    name = "jobs"

    def add(self, record: JobRecord, configuration: str = "") -> None:
        """Add a row; an existing one stays as it is. `configuration`: whose job it is, if not ours."""
        fields = {name: getattr(record, name) for name in _COLUMNS}
        kept = replace(record, command=self._keeper.command(record.command))
        wanted = _wanted(kept) | {"configuration": configuration or self._keeper.configuration}
        self._change("add", **fields, wanted=json.dumps(wanted))

    def started(self, job_id: str, started: JobStarted) -> None:
        """Record what is known only after the start."""
        with self.database.writing() as connection:
            row = self._execute(connection, "get", job_id=job_id).fetchone()
            if row is not None:
                placed = json.loads(row["wanted"]) | {"log_file": started.log_file, "cwd": started.cwd}
                state = JobState.PENDING if started.is_queued else JobState.RUNNING
                values = {"via": started.via, "state": state.value, "wanted": json.dumps(placed)}
                self._execute(connection, "started", job_id=job_id, **values)

    def note(self, job_id: str, seen: JobSeen) -> None:
        """Record what was seen of it."""
        self.note_all([(job_id, seen)])

    def note_all(self, snapshots: Iterable[tuple[str, JobSeen]]) -> None:
        """Record what was seen of several, in one transaction."""
        with self.database.writing() as connection:
            connection.executemany(statements("jobs")["note"], [_snapshot(job_id, seen) for job_id, seen in snapshots])

    def get(self, job_id: str) -> JobRecord | None:
        return self._first("get", job_id=job_id)

    def find(self, sandbox: str, session: str) -> JobRecord | None:
        """The newest of a session; of any sandbox where none is named."""
        return self._first("find", sandbox=sandbox, session=session)

    def list(self, sandbox: str | None = None, state: str | None = None, limit: int = 100) -> tuple[JobRecord, ...]:
        """Newest first."""
        return self._select("list", sandbox=sandbox, state=state, limit=limit)

    def of(self, job_ids: Iterable[str]) -> tuple[JobRecord, ...]:
        """List the jobs with these ids."""
        return self._select("of", job_ids=json.dumps(list(job_ids)))

    def apps(self) -> tuple[JobRecord, ...]:
        """List the apps that have not been seen to end, newest first."""
        return self._select("apps")

    def remove(self, job_id: str) -> None:
        """Remove the row."""
        self._change("remove", job_id=job_id)

    def prune(self, before: float) -> None:
        """Drop older ones, except those that still run or wait in a queue."""
        self._change("prune", before=before)

    def _read(self, row: sqlite3.Row) -> JobRecord:
        wanted = json.loads(row["wanted"])
        if not self._keeper.may_read(wanted.get("configuration", "")):
            wanted["command"] = ""
        plain = {name: row[name] for name in _COLUMNS} | {name: wanted[name] for name in _WANTED}
        app = wanted.get("app")
        # No order is without a command, and the one of this may not be kept, or is another configuration's.
        command = wanted["command"] or HIDDEN
        return JobRecord(**plain, app=DeployOrder(sandbox=row["sandbox"], command=command, **app) if app else None)


def _wanted(record: JobRecord) -> dict[str, object]:
    wanted = {name: getattr(record, name) for name in _WANTED}
    app = {"app": {name: getattr(record.app, name) for name in _APP}} if record.app else {}
    return wanted | app


def _snapshot(job_id: str, seen: JobSeen) -> dict[str, object]:
    ended = 0.0
    if seen.state is JobState.ENDED:
        ended = seen.started + seen.seconds if seen.started else time.time()
    values = {"exit_code": seen.exit_code, "signal": seen.signal}
    return {"job_id": job_id, "state": seen.state.value, "ended": ended, **values}


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A command as its row says. `outcome` is a word or two for people; `tail` the end of what it printed."""

    run_id: str
    sandbox: str
    # Distinguishes machines that have the same name in two configurations.
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
    # Configuration under which it was run; empty for rows of earlier versions.
    configuration: str = ""


@dataclass(frozen=True)
class RowChange:
    """One change of the rows; `place` is set for a new row, after which a sandbox may have too many."""

    statement: str
    values: Mapping[str, object]
    place: str = ""


def added(record: RunRecord, **values: object) -> RowChange:
    """A new row, with what was seen since."""
    return RowChange("add", {**vars(record), **values}, record.place)


def noted(
    run_id: str, state: str, *, outcome: str, is_listed: bool = False, exit_code: int | None = None,
    seconds: float = 0.0, tail: str = "",
) -> RowChange:  # fmt: skip
    """Build the change that records the state of a command that has a row."""
    values = {"outcome": outcome, "exit_code": exit_code, "seconds": seconds, "tail": tail}
    return RowChange("note", {"run_id": run_id, "state": state, "is_listed": is_listed, **values})


def removed(run_id: str) -> RowChange:
    """Remove the row."""
    return RowChange("remove", {"run_id": run_id})


def forgotten(place: str) -> RowChange:
    """Remove all rows of a sandbox that is gone."""
    return RowChange("forget", {"place": place})


class RunRecords(Rows[RunRecord]):
    """The rows."""

    name = "runs"

    def __init__(self, database: Database, keeper: Keeper | None = None) -> None:
        super().__init__(database, keeper)
        # Where none are to be kept: whether those of an earlier time were dropped.
        self._is_forgotten = False

    def write(self, changes: Sequence[RowChange]) -> None:
        """Make all changes in order, or none; then drop rows that are old or too many for a sandbox."""
        newest: dict[str, Any] = {change.place: change.values["created"] for change in changes if change.place}
        rows = [(change.statement, self._kept(change.values)) for change in changes]
        with self.database.writing() as connection:
            for statement, values in rows:
                self._execute(connection, statement, **values)
            self._forget(connection)
            for place, created in newest.items():
                self._execute(connection, "prune", place=place, before=created - KEPT_S, most=MOST_RUNS)

    def _kept(self, values: Mapping[str, object]) -> dict[str, object]:
        """The values with their texts as they may be kept."""
        kept = dict(values)
        if "configuration" in kept:
            kept["configuration"] = self._keeper.configuration
        for name, keep, most in (
            ("command", self._keeper.command, LONGEST_COMMAND),
            ("tail", self._keeper.output, LONGEST_TAIL),
            ("outcome", self._keeper.stored, LONGEST_COMMAND),
        ):
            if name in kept:
                kept[name] = keep(str(kept[name]), most)
        return kept

    def _forget(self, connection: sqlite3.Connection) -> None:
        """Empty the texts of an earlier time, once, where none are to be kept."""
        if self._keeper.days <= 0 and not self._is_forgotten:
            self._execute(connection, "forget_texts", configuration=self._keeper.configuration)
        self._is_forgotten = self._keeper.days <= 0

    def get(self, run_id: str) -> RunRecord | None:
        return self._first("get", run_id=run_id)

    def latest(self, place: str, limit: int) -> tuple[RunRecord, ...]:
        """The last commands of a sandbox that were run under this configuration, newest first."""
        return self._select("latest", place=place, limit=limit, configuration=self._keeper.configuration)

    def background(self, place: str, since: float, limit: int) -> tuple[RunRecord, ...]:
        """Commands that outlasted their call, and those without a known end; newest first."""
        return self._select("background", place=place, since=since, limit=limit)

    def _read(self, row: sqlite3.Row) -> RunRecord:
        values = {field.name: row[field.name] for field in fields(RunRecord)}
        if not self._keeper.may_read(values["configuration"]):
            values |= {"command": "", "tail": ""}
        return RunRecord(**{**values, "is_listed": bool(values["is_listed"])})
