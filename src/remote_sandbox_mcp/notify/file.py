"""Every event as a JSON file that its owner alone may read; the oldest of too many are removed."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..core.watch import Event, Unsent, Watch
from . import messages

MOST_FILES = 1000

_NAME = re.compile(r"([0-9]+)-[a-z_]+\.json")


def keep(folder: Path, watch: Watch, event: Event) -> Path:
    """Write an event's file, whole or not at all. Raises Unsent."""
    path = folder / f"{event.id}-{event.type.value}.json"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(path, f"{messages.encode(messages.as_json(watch, event))}\n")
        _prune(folder)
    except OSError as error:
        raise Unsent(f"unable to write {path}: {error.strerror or error}", passing=True) from None
    return path


def _write(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    try:
        with open(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def _prune(folder: Path) -> None:
    with os.scandir(folder) as entries:
        found = [entry for entry in entries if _NAME.fullmatch(entry.name)]
    # By age and not by number: with a new database, numbers begin again.
    for entry in sorted(found, key=_age)[: max(0, len(found) - MOST_FILES)]:
        Path(entry.path).unlink(missing_ok=True)


def _age(entry: os.DirEntry[str]) -> tuple[int, int]:
    number = int(entry.name.partition("-")[0])
    try:
        return entry.stat(follow_symlinks=False).st_mtime_ns, number
    except FileNotFoundError:
        return 0, number
