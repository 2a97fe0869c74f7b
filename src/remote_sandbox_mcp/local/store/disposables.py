"""Rows of disposable sandboxes: counted, named and taken over by any number of processes at once."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, replace
from typing import Any

from ...core.sandboxes.disposable import Disposable, Limits
from .database import Database, Rows
from .library import sqlite3
from .mark import mark_of

CREATING, RUNNING, PAUSED, ENDING, EXPIRED, GONE = "creating", "running", "paused", "ending", "expired", "gone"
# Ended by itself, as its provider reports.
ENDED = "ended"
OVER = (GONE, EXPIRED, ENDED)
# Reasons for which a row cannot be added.
NAME_TAKEN, FULL = "name", "full"
# How long we remember what became of an ended sandbox.
REMEMBERED_S = 7 * 86400.0
_PLAIN = ("id", "name", "provider", "key", "status", "created", "expires")
_DETAIL = ("image", "network", "notes")


@dataclass(frozen=True)
class Owner:
    """A process by pid and start time, which distinguishes it from a later one with the same pid."""

    pid: int = 0
    birth: str = ""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A disposable sandbox as its row has it, with what we need to look after it."""

    disposable: Disposable
    # How long it lives from each renewal on; 0: until it is deleted.
    timeout_s: float = 0.0
    # Image for which it is kept ready; empty: it is in use.
    pool: str = ""
    owner: Owner = Owner()
    # May be in the future while a run is active.
    idle_since: float = 0.0
    ended: float = 0.0
    why: str = ""
    # Configuration under which it was made; empty for rows of earlier versions.
    configuration: str = ""

    @property
    def id(self) -> str:
        return self.disposable.id


class DisposableRows(Rows[Kept]):
    """The rows; an end, once written, stays."""

    name = "disposables"

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._mark = mark_of(database.file)

    def is_empty(self) -> bool:
        """Whether none lives."""
        return not self._mark.exists()

    def reserve(self, kept: Kept, most: int) -> str:
        """Add a new one, if its name is free and there are fewer than `most`; else return the reason."""
        with self.database.writing() as connection:
            if not (refusal := self._refusal(connection, kept, most)):
                self._add(connection, kept)
            return refusal

    def add_ready(self, kept: Kept) -> None:
        """Add one that is kept ready; it does not count against the limit."""
        with self.database.writing() as connection:
            self._add(connection, kept)

    def take(self, wanted: Kept, most: int) -> Kept | None:
        """Turn one of this owner's ready sandboxes into `wanted`, if its name is free and fewer than `most` exist."""
        with self.database.writing() as connection:
            fields = _fields(wanted)
            row = self._execute(connection, "ready", **fields).fetchone()
            if row is None or self._refusal(connection, wanted, most):
                return None
            values = {"name": fields["name"], "timeout_s": wanted.timeout_s, "now": wanted.idle_since}
            self._execute(connection, "take", id=row["id"], **values)
            return self._read(self._execute(connection, "get", id=row["id"]).fetchone())

    def made(self, disposable: Disposable) -> bool:
        """Record the sandbox as made; false if it was deleted meanwhile."""
        values = {name: getattr(disposable, name) for name in ("id", "key", "status", "created", "expires")}
        return self._change("made", **values, detail=_detail(disposable))

    def get(self, disposable_id: str) -> Kept | None:
        return self._first("get", id=disposable_id)

    def find(self, name: str, configuration: str = "") -> Kept | None:
        """Find by id or name: a live one, else the latest. Only those of the configuration, if one is given."""
        # A caller's text may hold surrogates, which SQLite does not take.
        word = name.encode("utf-8", "backslashreplace").decode()
        return self._first("find", name=word, configuration=configuration)

    def living(self) -> tuple[Kept, ...]:
        """List the sandboxes that may exist, oldest first."""
        return self._select("living")

    def note_status(self, disposable_id: str, status: str) -> None:
        self._change("status", id=disposable_id, status=status)

    def note_started(self, disposable_id: str, expires: float, now: float) -> None:
        """Record that one that was pending runs: from now on it lives, and is idle."""
        self._change("started", id=disposable_id, expires=expires, now=now)

    def note_ending(self, disposable_id: str, key: str) -> None:
        """Record that it is to be deleted, with its provider's id."""
        self._change("ending", id=disposable_id, key=key)

    def extend(self, disposable_id: str, expires: float) -> Kept | None:
        """Record a later expiry before the provider is asked; returns the row as it was."""
        with self.database.writing() as connection:
            row = self._execute(connection, "get", id=disposable_id).fetchone()
            if row is not None and 0 < row["expires"] < expires:
                self._execute(connection, "expires", id=disposable_id, expires=expires)
            return self._read(row) if row else None

    def take_back(self, before: Kept, expires: float) -> None:
        """Undo `extend` after a failed renewal, unless another renewal came meanwhile."""
        self._change("take_back", id=before.id, expires=expires, before=before.disposable.expires)

    def note_expires(self, disposable_id: str, expires: float) -> None:
        self._change("expires", id=disposable_id, expires=expires)

    def renewed(self, disposable_id: str, expires: float, timeout_s: float) -> None:
        """Record an ordered renewal: from now on each renewal is as long as this one."""
        self._change("renewed", id=disposable_id, expires=expires, timeout_s=timeout_s)

    def touch(self, disposable_id: str, at: float) -> None:
        """Record that it was used until then."""
        self._change("touch", id=disposable_id, at=at)

    def claim(self, kept: Kept, owner: Owner, status: str, why: str = "") -> Kept | None:
        """Take it over as it was read; None if it was used, renewed, taken or ended meanwhile."""
        values = _fields(kept) | {"new_pid": owner.pid, "new_birth": owner.birth, "status": status, "why": why}
        if not self._change("claim", **values):
            return None
        name = kept.disposable.name if kept.disposable.key or status != ENDING else ""
        return replace(kept, owner=owner, why=why, disposable=replace(kept.disposable, status=status, name=name))

    def end(self, disposable_id: str, status: str, why: str, now: float) -> bool:
        """Record its end; false if it had ended already."""
        ended = self._change("end", id=disposable_id, status=status, why=self._keeper.stored(why), now=now)
        self._change("prune", before=now - REMEMBERED_S)
        self._settle()
        return ended

    def remove(self, disposable_id: str) -> None:
        """Remove the row."""
        self._change("remove", id=disposable_id)
        self._settle()

    def _add(self, connection: sqlite3.Connection, kept: Kept) -> None:
        self._mark.touch(mode=0o600)
        self._execute(connection, "add", **_fields(kept))

    def _settle(self) -> None:
        # A transaction of its own: a process that adds a row makes the mark in another, before or after.
        with self.database.writing() as connection:
            if self._execute(connection, "living").fetchone() is None:
                self._mark.unlink(missing_ok=True)

    def _refusal(self, connection: sqlite3.Connection, kept: Kept, most: int) -> str:
        name = kept.disposable.name
        if name and self._execute(connection, "clash", name=name, configuration=kept.configuration).fetchone():
            return NAME_TAKEN
        return FULL if self._execute(connection, "count").fetchone()[0] >= most else ""

    def _read(self, row: sqlite3.Row) -> Kept:
        detail = json.loads(row["detail"])
        fields: dict[str, Any] = {name: row[name] for name in _PLAIN}
        limits, notes = Limits.recorded(detail["limits"]), tuple(detail["notes"])
        disposable = Disposable(**fields, image=detail["image"], network=detail["network"], notes=notes, limits=limits)
        plain = {name: row[name] for name in ("timeout_s", "pool", "idle_since", "ended", "why", "configuration")}
        return Kept(disposable=disposable, owner=Owner(row["owner_pid"], row["owner_birth"]), **plain)


def _fields(kept: Kept) -> dict[str, object]:
    it = kept.disposable
    fields = {name: getattr(it, name) for name in _PLAIN}
    owner = {"owner_pid": kept.owner.pid, "owner_birth": kept.owner.birth}
    times = {"timeout_s": kept.timeout_s, "idle_since": kept.idle_since}
    return {**fields, **owner, **times, "pool": kept.pool, "configuration": kept.configuration, "detail": _detail(it)}


def _detail(it: Disposable) -> str:
    # JSON, because it can also store names that are not valid UTF-8.
    return json.dumps({name: getattr(it, name) for name in _DETAIL} | {"limits": dataclasses.asdict(it.limits)})
