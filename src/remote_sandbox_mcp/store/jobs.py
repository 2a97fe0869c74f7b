"""Jobs as rows: what was started where, and what was last seen of it; an end, once seen, stays."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..core.job import JobSeen, JobStarted, JobState
from ..core.port import DeployOrder
from .database import Database
from .sql import statements

if TYPE_CHECKING:
    import sqlite3

STARTING = "starting"
# As JSON, which also keeps names that are no text.
_WANTED = ("log_file", "cwd", "command")
# Of an app's order; the rest of it is in the row.
_APP = ("port", "health_path", "cwd")
_COLUMNS = ("job_id", "sandbox", "session", "via", "created", "state", "exit_code", "signal", "ended", "watch_id")


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


class JobRecords:
    """The rows. Any number of processes may use them at once. Raises ConfigError."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def add(self, record: JobRecord) -> None:
        """Write a new one; one that is there already stays as it is."""
        fields = {name: getattr(record, name) for name in _COLUMNS}
        self._change("add", **fields, wanted=_wanted(record))

    def started(self, job_id: str, started: JobStarted) -> None:
        """Note what is known only once it has begun."""
        with self.database.writing() as connection:
            row = connection.execute(statements("jobs")["get"], {"job_id": job_id}).fetchone()
            if row is not None:
                placed = replace(_record(row), log_file=started.log_file, cwd=started.cwd)
                values = {"job_id": job_id, "via": started.via, "wanted": _wanted(placed)}
                connection.execute(statements("jobs")["started"], values)

    def note(self, job_id: str, seen: JobSeen) -> None:
        """Note what was seen of it."""
        self.note_all([(job_id, seen)])

    def note_all(self, sights: Iterable[tuple[str, JobSeen]]) -> None:
        """Note what was seen of several, in one transaction."""
        with self.database.writing() as connection:
            connection.executemany(statements("jobs")["note"], [_sight(job_id, seen) for job_id, seen in sights])

    def get(self, job_id: str) -> JobRecord | None:
        return next(iter(self._select("get", job_id=job_id)), None)

    def find(self, sandbox: str, session: str) -> JobRecord | None:
        """The newest of a session; of any sandbox where none is named."""
        return next(iter(self._select("find", sandbox=sandbox, session=session)), None)

    def list(self, sandbox: str | None = None, state: str | None = None, limit: int = 100) -> tuple[JobRecord, ...]:
        """Newest first."""
        return self._select("list", sandbox=sandbox, state=state, limit=limit)

    def of(self, job_ids: Iterable[str]) -> tuple[JobRecord, ...]:
        """Those with these ids."""
        return self._select("of", job_ids=json.dumps(list(job_ids)))

    def apps(self) -> tuple[JobRecord, ...]:
        """Those that are apps and have not been seen to end, newest first."""
        return self._select("apps")

    def remove(self, job_id: str) -> None:
        """As if it had never been."""
        self._change("remove", job_id=job_id)

    def prune(self, before: float) -> None:
        """Drop those that are older; never one that runs, as far as is known."""
        self._change("prune", before=before)

    def _change(self, name: str, **values: object) -> None:
        with self.database.writing() as connection:
            connection.execute(statements("jobs")[name], values)

    def _select(self, name: str, **values: object) -> tuple[JobRecord, ...]:
        with self.database.reading() as connection:
            return tuple(_record(row) for row in connection.execute(statements("jobs")[name], values).fetchall())


def _record(row: sqlite3.Row) -> JobRecord:
    wanted = json.loads(row["wanted"])
    plain = {name: row[name] for name in _COLUMNS} | {name: wanted[name] for name in _WANTED}
    app = wanted.get("app")
    return JobRecord(
        **plain, app=DeployOrder(sandbox=row["sandbox"], command=wanted["command"], **app) if app else None
    )


def _wanted(record: JobRecord) -> str:
    wanted = {name: getattr(record, name) for name in _WANTED}
    app = {"app": {name: getattr(record.app, name) for name in _APP}} if record.app else {}
    return json.dumps(wanted | app)


def _sight(job_id: str, seen: JobSeen) -> dict[str, object]:
    ended = 0.0
    if seen.state is JobState.ENDED:
        ended = seen.started + seen.seconds if seen.started else time.time()
    values = {"exit_code": seen.exit_code, "signal": seen.signal}
    return {"job_id": job_id, "state": seen.state.value, "ended": ended, **values}
