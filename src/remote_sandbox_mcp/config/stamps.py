"""States of files, by which a change is noticed."""

from __future__ import annotations

import os
from collections.abc import Iterable

# Identifies a state of each file; None for one that does not exist.
Stamp = dict[str, "tuple[int, int, int] | None"]


def stamp_of(paths: Iterable[str]) -> Stamp:
    return {path: _stamp(path) for path in paths}


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
