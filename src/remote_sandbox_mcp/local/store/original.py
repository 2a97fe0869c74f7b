"""The database of the original program (0.x): read whole; rows that were taken over are marked, and no more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.errors import ConfigError
from .library import sqlite3

FILE = "watchdog.sqlite3"
# The status of a watch that is ours now: the original's watchdog looks after active ones alone.
IMPORTED = "imported"
# Our tables with numbers that people know, and the original's.
_NUMBERED = {"watches": "watches", "events": "watch_events"}

Row = Mapping[str, Any]


@dataclass(frozen=True)
class OriginalRows:
    """All rows, oldest first; and when its watchdog last gave a sign of life, in seconds since the epoch."""

    watches: tuple[Row, ...] = ()
    events: tuple[Row, ...] = ()
    transfers: tuple[Row, ...] = ()
    heartbeat: float = 0.0


def read_rows(file: Path) -> OriginalRows:
    """Raises ConfigError where it is damaged."""
    with _opened(file) as connection:
        found = [str(row[0]) for row in connection.execute("PRAGMA quick_check(1)")]
        if found != ["ok"]:
            raise ConfigError(_damaged(file, found[0]))
        tables = {str(row[0]) for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}

        def rows(table: str) -> tuple[Row, ...]:
            # The tables of earlier versions have fewer columns, so none is named here.
            chosen = connection.execute(f"SELECT * FROM {table} ORDER BY id") if table in tables else ()
            return tuple(dict(row) for row in chosen)

        beats = connection.execute("SELECT updated_ts FROM daemon_meta") if "daemon_meta" in tables else ()
        heartbeat = max((float(row[0]) for row in beats), default=0.0)
        return OriginalRows(rows("watches"), rows("watch_events"), rows("transfer_tasks"), heartbeat)


def change(file: Path, statuses: Mapping[int, str]) -> None:
    """Set the status of watches. Raises ConfigError."""
    with _opened(file) as connection, connection:
        for number, status in statuses.items():
            connection.execute("UPDATE watches SET status = ?, next_check_ts = 0 WHERE id = ?", (status, number))


def reserve_numbers(connection: sqlite3.Connection, folder: Path) -> None:
    """Begin after the original's numbers in a new database of ours: watch 7 goes on to mean what it has meant."""
    if not (folder / FILE).is_file():
        return
    with suppress(sqlite3.Error, ConfigError), _opened(folder / FILE) as source:
        for ours, theirs in _NUMBERED.items():
            highest = source.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (theirs,)).fetchone()
            if highest:
                connection.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (ours, int(highest[0])))


def parsed(row: Row, column: str) -> dict[str, Any]:
    """An object that a column has as JSON; empty where it has none."""
    import json

    with suppress(ValueError, RecursionError, TypeError):
        value = json.loads(row.get(column) or "{}")
        return value if isinstance(value, dict) else {}
    return {}


@contextmanager
def _opened(file: Path) -> Iterator[sqlite3.Connection]:
    """Raises ConfigError."""
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=rw", uri=True, timeout=5.0)) as connection:
            connection.row_factory = sqlite3.Row
            yield connection
    except sqlite3.OperationalError as error:
        raise ConfigError(f"unable to use {file}: {error}; is another program writing to it? Try again.") from None
    except sqlite3.DatabaseError as error:
        raise ConfigError(_damaged(file, str(error))) from None


def _damaged(file: Path, why: str) -> str:
    return f"{file} is damaged ({why}), so nothing of it is taken over; sqlite3 {file} .recover may save it."
