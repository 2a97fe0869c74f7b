"""Checks a database file, and repairs one that is damaged: a copy is kept, and what can be read is saved."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from .database import Database, one_at_a_time
from .library import sqlite3
from .trouble import StateError, ends, explain

SUFFIXES = ("", "-wal", "-shm")


@dataclass(frozen=True)
class Repaired:
    """The copy of the damaged file, and how many rows of each table were saved; no copy where all was well."""

    copy: Path | None = None
    rows: Mapping[str, int] = field(default_factory=dict)


def find_trouble(file: Path) -> StateError | None:
    """Find out why a state file cannot be used: write to it, and read it as a whole. None if all is well."""
    database = Database(file)
    try:
        with database.writing() as connection:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            connection.execute(f"PRAGMA user_version = {version:d}")
        with database.reading() as connection:
            # A heading may stand above what was found.
            found = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0]).splitlines()[-1]
        return None if found == "ok" else explain(file, sqlite3.DatabaseError(f"malformed: {found}"))
    except StateError as problem:
        return problem
    finally:
        database.close()


def repair(file: Path) -> Repaired:
    """Put a sound file in the place of a damaged one. Nobody else may use it meanwhile. Raises StateError, OSError."""
    with one_at_a_time(file.with_suffix(".lock")):
        copy = file.with_name(f"{file.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
        for suffix in SUFFIXES:
            with suppress(FileNotFoundError):
                shutil.copy2(f"{file}{suffix}", f"{copy}{suffix}")
                os.chmod(f"{copy}{suffix}", 0o600)
    fresh = file.with_name(f"{file.name}.repaired")
    database = Database(fresh)
    database.discard()
    with database.writing() as connection:
        rows = _salvage(copy, connection)
    database.close()
    with one_at_a_time(file.with_suffix(".lock")):
        for suffix in SUFFIXES[1:]:
            Path(f"{file}{suffix}").unlink(missing_ok=True)
            Path(f"{fresh}{suffix}").unlink(missing_ok=True)
        os.replace(fresh, file)
    fresh.with_suffix(".lock").unlink(missing_ok=True)
    ends(file)
    return Repaired(copy, rows)


def _salvage(damaged: Path, into: sqlite3.Connection) -> dict[str, int]:
    """Copy all rows that can be read into the tables that this version knows; how many of each."""
    tables = [row[0] for row in into.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()]
    saved = {}
    with closing(sqlite3.connect(damaged, isolation_level=None)) as source:
        source.row_factory = sqlite3.Row
        for table in (name for name in tables if not name.startswith("sqlite_")):
            saved[table] = sum(_put(into, table, row) for row in _rows(source, table))
    return {table: count for table, count in saved.items() if count}


def _rows(source: sqlite3.Connection, table: str) -> Iterator[sqlite3.Row]:
    """The rows of a table up to the damaged page, and those behind it."""
    for order in ("ASC", "DESC"):
        with suppress(sqlite3.Error):
            yield from source.execute(f'SELECT * FROM "{table}" ORDER BY rowid {order}')
            return


def _put(into: sqlite3.Connection, table: str, row: sqlite3.Row) -> int:
    """Insert one row; one that is there already, or no longer fits, is skipped."""
    known = {column[1] for column in into.execute(f'PRAGMA table_info("{table}")').fetchall()}
    names = [name for name in row.keys() if name in known]  # noqa: SIM118
    columns, marks = ", ".join(f'"{name}"' for name in names), ", ".join("?" * len(names))
    with suppress(sqlite3.Error):
        order = f'INSERT OR IGNORE INTO "{table}" ({columns}) VALUES ({marks})'
        return into.execute(order, [row[name] for name in names]).rowcount
    return 0
