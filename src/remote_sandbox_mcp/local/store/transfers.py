"""Rows of transfers: any process can add, read and end them, and request a cancellation."""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass

from ...core.sync.transfer import Headway, Order, Outcome
from .database import Rows
from .keeping import fields_of
from .library import sqlite3

# Ids are this and eight hexadecimal digits.
PREFIX = "tr-"
MOST_DIGITS = 10
QUEUED, RUNNING, COMPLETED, FAILED, CANCELLED = "queued", "running", "completed", "failed", "cancelled"


def number_of(task_id: str) -> int:
    """The id as callers see it: a number, as programs expect that were written for earlier versions."""
    return int(task_id.removeprefix(PREFIX), 16)


def id_of(given: int | str) -> str:
    """The id that a caller means by a number, or by the id itself, as earlier versions returned it."""
    text = str(given)
    return f"{PREFIX}{int(text):08x}" if text.isdecimal() and len(text) <= MOST_DIGITS else text


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """A transfer as its row says. `pid` runs it or ran it last; times are seconds since the epoch, 0 for not yet."""

    id: str
    order: Order
    status: str
    log_file: str
    created: float
    updated: float
    started: float = 0.0
    ended: float = 0.0
    headway: Headway | None = None
    outcome: Outcome | None = None
    # Why it failed, and the code of that error as core/errors.py has it.
    error: str = ""
    code: str = ""
    pid: int = 0
    cancel_requested: bool = False
    # Identifies the configuration under which it began; a machine's name means the same only there.
    configuration: str = ""

    @property
    def number(self) -> int:
        return number_of(self.id)

    @property
    def is_over(self) -> bool:
        return self.status not in (QUEUED, RUNNING)


@dataclass(frozen=True)
class TransferEnd:
    """End of a transfer."""

    status: str
    outcome: Outcome | None = None
    error: str = ""
    code: str = ""


class Ledger(Rows[Transfer]):
    """The rows; an end, once written, stays."""

    name = "transfers"

    def add(self, transfer: Transfer) -> None:
        fields = {name: getattr(transfer, name) for name in ("id", "status", "pid", "log_file")}
        times = {name: getattr(transfer, name) for name in ("created", "started", "updated")}
        # Inside the JSON, not a column: earlier versions, which may run beside this one, ignore what they do not know.
        wanted = dataclasses.asdict(transfer.order) | {"configuration": transfer.configuration}
        self._change("add", **fields, **times, wanted=json.dumps(wanted))

    def get(self, task_id: str) -> Transfer | None:
        return self._first("get", id=task_id)

    def latest(self, limit: int) -> tuple[Transfer, ...]:
        """Newest first."""
        return self._select("latest", limit=limit)

    def unfinished(self, configuration: str) -> tuple[Transfer, ...]:
        """List the transfers begun under this configuration that are not over, the oldest first."""
        return self._select("unfinished", configuration=configuration)

    def untouched_since(self, before: float) -> tuple[Transfer, ...]:
        """The hundred oldest that have not changed since."""
        return self._select("untouched_since", before=before)

    def take(self, task_id: str, pid: int) -> Transfer | None:
        """Record which process runs it from now on; None if it is over or unknown."""
        return self.get(task_id) if self._change("take", id=task_id, pid=pid, now=time.time()) else None

    def note(self, task_id: str, pid: int, headway: Headway) -> None:
        """Record its progress; ignored if another process runs it by now."""
        self._change("note", id=task_id, pid=pid, headway=_to_json(headway), now=time.time())

    def is_unwanted(self, task_id: str) -> bool:
        """Whether a cancellation was requested."""
        return any(row[0] for row in self._found("wish", id=task_id))

    def ask_to_cancel(self, task_id: str) -> None:
        self._change("ask_to_cancel", id=task_id, now=time.time())

    def end(self, task_id: str, end: TransferEnd, headway: Headway | None = None) -> bool:
        """Record its end; false if it was over already."""
        error = self._keeper.stored(end.error)
        values = {"status": end.status, "outcome": _to_json(end.outcome), "error": error, "code": end.code}
        return self._change("end", id=task_id, headway=_to_json(headway), now=time.time(), **values)

    def remove(self, task_id: str) -> None:
        self._change("remove", id=task_id)

    def _read(self, row: sqlite3.Row) -> Transfer:
        fields = {name: row[name] for name in row.keys() if name != "wanted"}  # noqa: SIM118
        headway, outcome = (json.loads(fields[name] or "null") for name in ("headway", "outcome"))
        wanted = json.loads(row["wanted"])
        return Transfer(
            **{
                **fields,
                "order": Order.from_json(fields_of(Order, wanted)),
                "configuration": wanted.get("configuration", ""),
                "headway": Headway(**fields_of(Headway, headway)) if headway else None,
                "outcome": Outcome.from_json(fields_of(Outcome, outcome)) if outcome else None,
                "cancel_requested": bool(fields["cancel_requested"]),
            }
        )


def _to_json(value: Headway | Outcome | None) -> str | None:
    return None if value is None else json.dumps(dataclasses.asdict(value))
