"""Decisions of the user, in a small JSON file of the state folder that only its owner can write."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..core.errors import ConfigError

# How long to wait for another process that changes the record.
TURN_S = 10.0


class Record:
    """Decisions by a key, mostly a path."""

    def __init__(self, name: str) -> None:
        self._name = name

    def read(self, state_folder: Path) -> Mapping[str, Any]:
        """Read all decisions; none where others could have written the file. Cheap: it is read after a change."""
        file = str(state_folder / self._name)
        try:
            facts = os.stat(file)
        except OSError:
            return {}
        # The time of the last change of its mode or owner counts, too.
        return _read(file, (facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns))

    def change(self, state_folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
        """Change it, with no other process changing it meanwhile. Raises ConfigError."""
        from ..local.processes.locks import Lock

        try:
            lock = Lock.take(state_folder / f"{self._name}.lock", TURN_S)
        except BlockingIOError:
            raise ConfigError(f"another process is changing {state_folder / self._name}; try again.") from None
        try:
            records = {**self.read(state_folder)}
            change(records)
            if records != self.read(state_folder):
                self._write(state_folder, records)
        finally:
            lock.release()

    def _write(self, state_folder: Path, records: Mapping[str, Any]) -> None:
        from ..local.files import write_private

        file = state_folder / self._name
        try:
            write_private(file, json.dumps(records, indent=1))
        except OSError as error:
            raise ConfigError(f"unable to write {file}: {error.strerror or error}.") from error


@lru_cache(maxsize=16)
def _read(file: str, _state: tuple[int, ...]) -> Mapping[str, Any]:
    try:
        with open(file, "rb") as opened:
            facts = os.fstat(opened.fileno())
            # Otherwise another user could decide in this user's name.
            if facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
                return {}
            records = json.loads(opened.read())
    except (OSError, ValueError, RecursionError):
        return {}
    return records if isinstance(records, dict) else {}
