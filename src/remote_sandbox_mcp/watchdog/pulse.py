"""The watchdog and the database: its heartbeat, and whether another process has changed anything."""

from __future__ import annotations

import os
import time
from pathlib import Path

from ..store.database import STATE_FILE, Database
from ..store.watches import Watches


class Pulse:
    """A connection of its own, so that what SQLite calls a change is never the heartbeat."""

    def __init__(self, state: Path) -> None:
        self.file = state / STATE_FILE
        self._database = Database(self.file)
        self._watches = Watches(self._database)
        self._opened: object = None

    def beat(self) -> None:
        """Note that this process is alive. Raises ConfigError."""
        self._watches.beat(os.getpid(), time.time())

    def version(self) -> object:
        """Another value whenever another connection has written, or the file is another. Raises ConfigError."""
        if file_stamp(self.file) != self._opened:
            # Somebody has moved it away: what is open is not where the others write.
            self._database.close()
        with self._database.reading() as connection:
            version = int(connection.execute("PRAGMA data_version").fetchone()[0])
        self._opened = file_stamp(self.file)
        return self._opened, version

    def close(self) -> None:
        self._database.close()


def file_stamp(file: Path) -> object:
    """Which file is there, if any."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def change_stamp(*files: Path) -> object:
    """Another value when one of them was written, replaced, made or removed."""
    return tuple(_written(file) for file in files)


def _written(file: Path) -> object:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
