"""Places of this computer that a person has allowed agents to use, beyond their project: kept until they end."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import paths
from .record import Record

# In it the keys are whole paths; those of one session come behind its name and a NUL byte, which no path contains.
ALLOWED = Record("allowed-folders.json")
# For how long the command line and the page allow a place by default, and the longest time that a form gives.
USUAL_S = 8 * 3600.0
# A person makes a few; more would slow down each decision.
MOST = 1000


@dataclass(frozen=True)
class Allowance:
    """A place that agents may read, and write to where `writing`: until a time, or always where that is None.

    Given for one `session` alone where that is named. `by` is where the person said so.
    """

    path: str
    writing: bool = True
    until: float | None = None
    session: str = ""
    by: str = "command line"

    @property
    def is_over(self) -> bool:
        return self.until is not None and self.until < time.time()

    @property
    def key(self) -> str:
        return f"{self.session}\0{self.path}" if self.session else self.path


def allowances(environ: Mapping[str, str] = os.environ) -> list[Allowance]:
    """List the allowances in force, of all sessions; not one whose place has become a link, which leads anywhere."""
    found = _in_force(ALLOWED.read(paths.state_path(environ)))
    return [it for it in found if os.path.realpath(it.path) == it.path]


def allow(allowance: Allowance, state_folder: Path) -> None:
    """Keep it, in place of an earlier one for the same path. Raises ConfigError."""

    def change(records: dict[str, Any]) -> None:
        kept = [*(it for it in _in_force(records) if it.key != allowance.key), allowance][-MOST:]
        records.clear()
        records.update({it.key: {"writing": it.writing, "until": it.until, "by": it.by} for it in kept})

    ALLOWED.change(state_folder, change)


def disallow(path: str, state_folder: Path) -> list[Allowance]:
    """Take back what was allowed of this place, and of places in it; returns that. Raises ConfigError."""
    gone: list[Allowance] = []

    def change(records: dict[str, Any]) -> None:
        gone.extend(it for it in _in_force(records) if f"{it.path}/".startswith(f"{path.rstrip('/')}/"))
        for it in gone:
            records.pop(it.key, None)

    ALLOWED.change(state_folder, change)
    return gone


def _in_force(records: Mapping[str, Any]) -> list[Allowance]:
    found = (_read(key, value) for key, value in records.items() if isinstance(value, dict))
    return [it for it in found if it is not None and not it.is_over]


def _read(key: str, value: Mapping[str, Any]) -> Allowance | None:
    session, _, path = key.rpartition("\0")
    until, by = value.get("until"), value.get("by")
    is_sound = os.path.isabs(path) and (until is None or isinstance(until, (int, float)))
    return Allowance(path, value.get("writing") is True, until, session, str(by or "")) if is_sound else None
