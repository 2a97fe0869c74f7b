"""Files of ours: written whole, for their owner alone; and the states of any files, by which a change is noticed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

# Identifies a state of each file; None for one that does not exist.
Fingerprint = dict[str, "tuple[int, int, int] | None"]


def write_private(file: Path, text: str, *, is_synced: bool = False) -> None:
    """Put a file in place of an earlier one, whole or not at all; `is_synced`: also if the computer stops now.

    Raises OSError.
    """
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        fresh.unlink(missing_ok=True)
        with open(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8") as opened:
            opened.write(text)
            opened.flush()
            if is_synced:
                os.fsync(opened.fileno())
        fresh.replace(file)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def fingerprint_of(paths: Iterable[str]) -> Fingerprint:
    return {path: _fingerprint(path) for path in paths}


def _fingerprint(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
