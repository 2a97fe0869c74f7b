"""Disposable sandboxes as rows: counted, named and taken by any number of processes at once."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..core.disposable import Disposable, Limits
from .database import Database, statements
from .mark import mark_of

if TYPE_CHECKING:
    import sqlite3

CREATING, RUNNING, PAUSED, ENDING, EXPIRED, GONE = "creating", "running", "paused", "ending", "expired", "gone"
# By itself, as its provider says.
ENDED = "ended"
OVER = (GONE, EXPIRED, ENDED)
# Why one cannot be written down.
NAME_TAKEN, FULL = "name", "full"
# How long it can be said what became of one.
REMEMBERED_S = 7 * 86400.0
_PLAIN = ("id", "name", "provider", "key", "status", "created", "expires")
_DETAIL = ("image", "network", "notes")


@dataclass(frozen=True)
class Owner:
    """A process by its number and its birth, which tells it from a later one with the same number."""

    pid: int = 0
    birth: str = ""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A disposable as its row says, with what we need to look after it."""

    disposable: Disposable
    # How long it lives from each renewal on; 0: until it is deleted.
    timeout_s: float = 0.0
    # For what it is kept ready; empty: somebody has it.
    pool: str = ""
    owner: Owner = Owner()
    # Lies ahead where something runs in it until then.
    idle_since: float = 0.0
    ended: float = 0.0
    why: str = ""
    # Under which it was made; empty: before that was noted.
    configuration: str = ""

    @property
    def id(self) -> str:
        return self.disposable.id


class DisposableRows:
    """The rows. Each call is one short transaction; an end, once written, stays. Raises ConfigError."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._mark = mark_of(database.file)

    def is_empty(self) -> bool:
        """Whether none lives."""
        return not self._mark.exists()

    def exists(self) -> bool:
        """Whether anything was ever written down."""
        return self.database.file.exists()

    def version(self) -> int:
        """Another number after each change that another process, or another part of this one, has made to the file."""
        with self.database.reading() as connection:
            return int(connection.execute("PRAGMA data_version").fetchone()[0])

    def reserve(self, kept: Kept, most: int) -> str:
        """Write a new one down, if its name is free and there are fewer than `most`; else the reason."""
        with self.database.writing() as connection:
            refusal = _refusal(connection, kept, most)
            if not refusal:
                self._add(connection, kept)
            return refusal

    def add_ready(self, kept: Kept) -> None:
        """Write down one that is kept ready: it counts only among its own."""
        with self.database.writing() as connection:
            self._add(connection, kept)

    def take(self, wanted: Kept, most: int) -> Kept | None:
        """One of this owner's ready ones as `wanted`, if the name is free and there are fewer than `most`."""
        with self.database.writing() as connection:
            fields = _fields(wanted)
            row = _execute(connection, "ready", **fields).fetchone()
            if row is None or _refusal(connection, wanted, most):
                return None
            values = {"name": fields["name"], "timeout_s": wanted.timeout_s, "now": wanted.idle_since}
            _execute(connection, "take", id=row["id"], **values)
            return _kept(_execute(connection, "get", id=row["id"]).fetchone())

    def made(self, disposable: Disposable) -> bool:
        """Note what it has become; false where somebody has ended it meanwhile."""
        values = {name: getattr(disposable, name) for name in ("id", "key", "created", "expires")}
        return self._change("made", **values, detail=_detail(disposable))

    def get(self, disposable_id: str) -> Kept | None:
        return next(iter(self._select("get", id=disposable_id)), None)

    def find(self, name: str, configuration: str = "") -> Kept | None:
        """By id or name: one that lives, else the last that did. Only those of a configuration, if one is given."""
        # A caller's word for it may be no text.
        word = name.encode("utf-8", "backslashreplace").decode()
        return next(iter(self._select("find", name=word, configuration=configuration)), None)

    def living(self) -> tuple[Kept, ...]:
        """All that may exist, oldest first."""
        return self._select("living")

    def note_status(self, disposable_id: str, status: str) -> None:
        self._change("status", id=disposable_id, status=status)

    def note_ending(self, disposable_id: str, key: str) -> None:
        """It is to be ended, by what its provider calls it."""
        self._change("ending", id=disposable_id, key=key)

    def extend(self, disposable_id: str, expires: float) -> Kept | None:
        """See to it that it lives until then, as far as we know; the row as it was before."""
        with self.database.writing() as connection:
            row = _execute(connection, "get", id=disposable_id).fetchone()
            if row is not None and 0 < row["expires"] < expires:
                _execute(connection, "expires", id=disposable_id, expires=expires)
            return _kept(row) if row else None

    def take_back(self, before: Kept, expires: float) -> None:
        """It was not renewed until then after all; another's renewal since stays."""
        self._change("take_back", id=before.id, expires=expires, before=before.disposable.expires)

    def note_expires(self, disposable_id: str, expires: float) -> None:
        self._change("expires", id=disposable_id, expires=expires)

    def renewed(self, disposable_id: str, expires: float, timeout_s: float) -> None:
        """As somebody has ordered it: from now on each renewal is as long as this one."""
        self._change("renewed", id=disposable_id, expires=expires, timeout_s=timeout_s)

    def touch(self, disposable_id: str, at: float) -> None:
        """Note that it was used until then."""
        self._change("touch", id=disposable_id, at=at)

    def claim(self, kept: Kept, owner: Owner, status: str, why: str = "") -> Kept | None:
        """Take it over as it was read; nothing where it was used, renewed, taken or ended meanwhile."""
        values = _fields(kept) | {"new_pid": owner.pid, "new_birth": owner.birth, "status": status, "why": why}
        if not self._change("claim", **values):
            return None
        return replace(kept, owner=owner, why=why, disposable=replace(kept.disposable, status=status))

    def end(self, disposable_id: str, status: str, why: str, now: float) -> bool:
        """Note the end; false where it was over already."""
        ended = self._change("end", id=disposable_id, status=status, why=why, now=now)
        self._change("prune", before=now - REMEMBERED_S)
        self._settle()
        return ended

    def remove(self, disposable_id: str) -> None:
        """As if it had never been."""
        self._change("remove", id=disposable_id)
        self._settle()

    def _add(self, connection: sqlite3.Connection, kept: Kept) -> None:
        self._mark.touch(mode=0o600)
        _execute(connection, "add", **_fields(kept))

    def _settle(self) -> None:
        # In a transaction of its own: whoever adds one makes the mark in another, before or after.
        with self.database.writing() as connection:
            if _execute(connection, "living").fetchone() is None:
                self._mark.unlink(missing_ok=True)

    def _change(self, statement: str, **values: object) -> bool:
        with self.database.writing() as connection:
            return _execute(connection, statement, **values).rowcount > 0

    def _select(self, statement: str, **values: object) -> tuple[Kept, ...]:
        with self.database.reading() as connection:
            return tuple(_kept(row) for row in _execute(connection, statement, **values).fetchall())


def _execute(connection: sqlite3.Connection, statement: str, **values: object) -> sqlite3.Cursor:
    return connection.execute(statements("disposables")[statement], values)


def _refusal(connection: sqlite3.Connection, kept: Kept, most: int) -> str:
    name = kept.disposable.name
    if name and _execute(connection, "clash", name=name, configuration=kept.configuration).fetchone():
        return NAME_TAKEN
    return FULL if _execute(connection, "count").fetchone()[0] >= most else ""


def _fields(kept: Kept) -> dict[str, object]:
    it = kept.disposable
    fields = {name: getattr(it, name) for name in _PLAIN}
    owner = {"owner_pid": kept.owner.pid, "owner_birth": kept.owner.birth}
    times = {"timeout_s": kept.timeout_s, "idle_since": kept.idle_since}
    return {**fields, **owner, **times, "pool": kept.pool, "configuration": kept.configuration, "detail": _detail(it)}


def _detail(it: Disposable) -> str:
    # As JSON, which also keeps names that are no text.
    return json.dumps({name: getattr(it, name) for name in _DETAIL} | {"limits": dataclasses.asdict(it.limits)})


def _kept(row: sqlite3.Row) -> Kept:
    detail = json.loads(row["detail"])
    limits = {field.name: detail["limits"].get(field.name, field.default) for field in dataclasses.fields(Limits)}
    known: dict[str, Any] = {name: row[name] for name in _PLAIN}
    disposable = Disposable(
        **known,
        image=detail["image"],
        network=detail["network"],
        notes=tuple(detail["notes"]),
        limits=Limits(**{**limits, "told": tuple(limits["told"])}),
    )
    plain = {name: row[name] for name in ("timeout_s", "pool", "idle_since", "ended", "why", "configuration")}
    return Kept(disposable=disposable, owner=Owner(row["owner_pid"], row["owner_birth"]), **plain)
