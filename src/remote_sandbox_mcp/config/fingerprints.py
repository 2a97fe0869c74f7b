"""States of files, by which a change is noticed."""

from __future__ import annotations

import os
from collections.abc import Iterable

# Identifies a state of each file; None for one that does not exist.
Fingerprint = dict[str, "tuple[int, int, int] | None"]


def fingerprint_of(paths: Iterable[str]) -> Fingerprint:
    return {path: _fingerprint(path) for path in paths}


def _fingerprint(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
