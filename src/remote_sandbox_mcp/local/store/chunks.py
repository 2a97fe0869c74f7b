"""A cache of file indexes by key: bounded in size, shared by all processes; failures never reach the caller."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path

from ...core.errors import ConfigError
from .database import Database, statements
from .library import sqlite3
from .trouble import DAMAGED

CHUNKS_FILE = "chunks.db"
MOST_BYTES = 256 << 20
# Uses are noted this many at a time: a write for each would cost more than the cache saves.
MOST_TOUCHED = 1000


class Chunks:
    """Blobs by key; beyond `most_bytes` the least recently used are dropped. A damaged file is an empty cache."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self._database = Database(folder / CHUNKS_FILE, "migrations_chunks")
        self._most_bytes = most_bytes
        self._touched: dict[bytes, int] = {}
        self._turn = threading.Lock()

    def get(self, key: bytes) -> bytes | None:
        """The piece, if it is there; never raises."""
        with self._turn:
            try:
                return self._get(key)
            except ConfigError as problem:
                self._give_up(problem)
                return None

    def put(self, key: bytes, blob: bytes) -> None:
        """Keep a piece, if it can be kept; never raises."""
        with self._turn:
            try:
                self._put(key, blob)
            except ConfigError as problem:
                self._give_up(problem)

    def close(self) -> None:
        """Write the times of use, and close the file."""
        with self._turn:
            if self._touched:
                with suppress(ConfigError), self._database.writing() as connection:
                    self._note_uses(connection)
            self._database.close()

    def _get(self, key: bytes) -> bytes | None:
        with self._database.reading() as connection:
            row = connection.execute(statements("chunks")["get"], {"key": key}).fetchone()
        if row is None:
            return None
        self._touched[key] = time.time_ns()
        if len(self._touched) >= MOST_TOUCHED:
            with self._database.writing() as connection:
                self._note_uses(connection)
        blob: bytes = row["blob"]
        return blob

    def _put(self, key: bytes, blob: bytes) -> None:
        size = len(key) + len(blob)
        if size > self._most_bytes:
            return
        with self._database.writing() as connection:
            values = {"key": key, "blob": blob, "bytes": size, "used": time.time_ns()}
            connection.execute(statements("chunks")["put"], values)
            excess = connection.execute(statements("chunks")["total"]).fetchone()[0] - self._most_bytes
            if excess > 0:
                self._note_uses(connection)
                _drop_oldest(connection, excess)

    def _note_uses(self, connection: sqlite3.Connection) -> None:
        uses = [{"key": key, "used": used} for key, used in self._touched.items()]
        connection.executemany(statements("chunks")["touch"], uses)
        self._touched.clear()

    def _give_up(self, problem: ConfigError) -> None:
        """Start over where SQLite calls the file damaged; a file that is busy, full or not ours is left alone."""
        if problem.reason == DAMAGED:
            with suppress(OSError):
                self._database.discard()


def _drop_oldest(connection: sqlite3.Connection, excess: int) -> None:
    while excess > 0:
        for row in connection.execute(statements("chunks")["oldest"]).fetchall():
            connection.execute(statements("chunks")["remove"], {"key": row["key"]})
            excess -= row["bytes"]
            if excess <= 0:
                return
