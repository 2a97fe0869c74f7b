"""Rows of jobs that wait for a place; what each of them runs is in a file of its own until it starts."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .database import Database, Rows, statements
from .keeping import Keeper, TrueTexts
from .library import sqlite3

WAITING, REFUSED, STOPPED = "waiting", "refused", "stopped"
# The folder of what is run, beside the database.
ORDERS = "waiting"
_COLUMNS = ("id", "job_id", "session", "configuration", "priority", "created", "state", "tried", "reason", "ended")


@dataclass(frozen=True, kw_only=True)
class WaitingJob:
    """A job that waits, or that ended without a start. `shown` has its command as it may be shown, and what it needs.

    `tried` is the machine on which a start was begun: until that one says otherwise, it may run there.
    """

    job_id: str
    session: str
    created: float
    priority: int = 0
    id: int = 0
    configuration: str = ""
    shown: Mapping[str, Any] = field(default_factory=dict)
    state: str = WAITING
    tried: str = ""
    reason: str = ""
    ended: float = 0.0

    @property
    def is_open(self) -> bool:
        return self.state == WAITING

    @property
    def places(self) -> tuple[str, ...]:
        """The machines on which it may start, as its caller named them."""
        return tuple(self.shown.get("places", ()))

    @property
    def label(self) -> str:
        """Text for where it waits for a place, in the column where others have the name of their machine."""
        return ",".join(self.places)


class WaitingRows(Rows[WaitingJob]):
    """The rows."""

    name = "waiting"

    def __init__(self, database: Database, keeper: Keeper | None = None) -> None:
        super().__init__(database, keeper)
        self._orders = TrueTexts(database.file.with_name(ORDERS))

    def add(self, job: WaitingJob, order: Mapping[str, Any]) -> None:
        """Add a job at the end of its priority, with all that is needed to start it."""
        shown = dict(job.shown) | {"command": self._keeper.command(str(job.shown.get("command", "")))}
        values = {"wanted": json.dumps(shown), "configuration": self._keeper.configuration, "reason": job.reason}
        values |= {name: getattr(job, name) for name in ("job_id", "session", "priority", "created")}
        with self.database.writing() as connection:
            added = self._execute(connection, "add", **values)
            if added.rowcount:
                self._orders.put(added.lastrowid or 0, order)

    def order(self, job: WaitingJob) -> dict[str, Any]:
        """Read all that is needed to start it; empty where it is gone."""
        return self._orders.get(job.id)

    def open(self) -> tuple[WaitingJob, ...]:
        """List those that wait, the first first."""
        return self._select("open")

    def ended(self, limit: int = 100) -> tuple[WaitingJob, ...]:
        """List those that ended without a start, the newest first."""
        return self._select("ended", limit=limit)

    def find(self, session: str) -> WaitingJob | None:
        """The one of that name that waits, else the last that ended without a start."""
        return self._first("find", session=session)

    def get(self, job_id: str) -> WaitingJob | None:
        return self._first("get", job_id=job_id)

    def try_on(self, job: WaitingJob, place: str) -> bool:
        """Record that it is about to be started there; False where it does not wait any more, or may run elsewhere."""
        return self._change("try", job_id=job.job_id, place=place)

    def give_up(self, job: WaitingJob) -> None:
        """Record that the machine has not started it, so that another may be tried."""
        self._change("give_up", job_id=job.job_id)

    def explain(self, reasons: Mapping[str, str]) -> None:
        """Record why they still wait."""
        rows = [{"job_id": job_id, "reason": self._keeper.stored(reason)} for job_id, reason in reasons.items()]
        if rows:
            with self.database.writing() as connection:
                connection.executemany(statements("waiting")["explain"], rows)

    def end(self, job: WaitingJob, state: str, reason: str) -> bool:
        """Let it wait no more; False where a start of it was begun, or it has ended."""
        kept = self._keeper.stored(reason)
        if not self._change("end", job_id=job.job_id, state=state, reason=kept, now=time.time()):
            return False
        self._orders.drop(job.id)
        return True

    def put_ahead(self, job: WaitingJob, priority: int) -> bool:
        return self._change("raise", job_id=job.job_id, priority=priority)

    def remove(self, job: WaitingJob) -> None:
        """Remove one that has started: now it is a job as any other."""
        self._change("remove", job_id=job.job_id)
        self._orders.drop(job.id)

    def by_configuration(self) -> Mapping[str, object]:
        """Configurations under which jobs wait, each with a value that changes when one comes, leaves or is raised."""
        return {row[0]: tuple(row) for row in self._found("by_configuration")}

    def freed(self, since: float) -> Mapping[str, float]:
        """Machines on which jobs of ours have ended since, with the last end of each."""
        return {row["sandbox"]: row["ended"] for row in self._found("freed", since=since)}

    def prune(self, before: float) -> None:
        """Drop those that ended before."""
        self._change("prune", before=before)

    def _read(self, row: sqlite3.Row) -> WaitingJob:
        shown = json.loads(row["wanted"])
        if not self._keeper.may_read(row["configuration"]):
            shown["command"] = ""
        return WaitingJob(shown=shown, **{name: row[name] for name in _COLUMNS})
