"""A file beside the database that exists while any disposable sandbox lives, so that a check needs no database."""

from __future__ import annotations

# No imports on purpose: every start asks, and few go on to load the rest.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

STATE_FILE = "state.db"


def mark_in(folder: Path) -> Path:
    """The mark of a state folder."""
    return mark_of(folder / STATE_FILE)


def mark_of(database_file: Path) -> Path:
    return database_file.with_suffix(".disposables")
