"""Progress of a job, read from its checkpoint."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# A name for what is done, and names for all of it.
_PAIRS = (
    ("step", "total", "total_steps", "max_steps", "steps", "num_steps"),
    ("global_step", "total", "total_steps", "max_steps", "steps"),
    ("iteration", "total", "iterations", "max_iterations", "total_iterations"),
    ("iter", "total", "iters", "max_iters"),
    ("epoch", "epochs", "total_epochs", "max_epochs", "num_epochs"),
    ("batch", "batches", "total_batches"),
    ("done", "total"),
    ("current", "total"),
    ("completed", "total"),
)
_SHARES = ("percent", "pct", "percentage", "progress", "progress_pct")
# Only the end of a long text is read, and only so many digits: a search through any number of them takes seconds.
_LONGEST_TEXT = 2000
_PAIR = re.compile(r"(\d[\d,_]{0,18})\s{0,20}(?:/|of)\s{0,20}(\d[\d,_]{0,18})")
_PERCENT = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s{0,20}%")


@dataclass(frozen=True)
class JobProgress:
    """The finished share, and the same in words."""

    share: float
    words: str


def progress_of(value: Any, text: str = "") -> JobProgress | None:
    """The progress in a checkpoint's JSON value or, where there is none, in its text."""
    if value is None:
        value = parsed(text)
    if isinstance(value, Mapping):
        return _of_mapping(value)
    if _is_number(value):
        return _of_share("percent", float(value))
    return _of_text(text[-_LONGEST_TEXT:])


def parsed(text: str) -> Any:
    """The JSON value of a text; None where it is none."""
    try:
        return json.loads(text) if len(text) <= 1 << 16 else None
    except (ValueError, RecursionError):
        return None


def _of_mapping(value: Mapping[str, Any]) -> JobProgress | None:
    for name, *totals in _PAIRS:
        done = _number(value.get(name))
        total = next((found for each in totals if (found := _number(value.get(each))) and found > 0), None)
        if total and done is not None:
            return _of_pair(done, total, f"{name} ")
    name = next((each for each in _SHARES if _is_number(value.get(each))), "")
    return _of_share(name, float(value[name])) if name else None


def _of_text(text: str) -> JobProgress | None:
    if pair := _PAIR.search(text):
        done, total = (float(re.sub("[,_]", "", digits)) for digits in pair.groups())
        if total > 0:
            return _of_pair(done, total)
    found = _PERCENT.search(text)
    return _of_share("percent", float(found[1])) if found else None


def _of_pair(done: float, total: float, name: str = "") -> JobProgress:
    return JobProgress(round(min(1.0, max(0.0, done / total)), 4), f"{name}{_amount(done)} / {_amount(total)}")


def _of_share(name: str, value: float) -> JobProgress:
    """0 to 1 is a share, unless the name says percent."""
    part = value if value <= 1 and not name.startswith("per") and "pct" not in name else value / 100
    part = min(1.0, max(0.0, part))
    return JobProgress(round(part, 4), f"{round(100 * part)}%")


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}".rstrip("0")


def _number(value: Any) -> float | None:
    """A job writes its checkpoint itself: numbers may be texts, and texts anything."""
    if isinstance(value, str) and len(value) <= 30:
        try:
            value = float(value)
        except ValueError:
            return None
    return float(value) if _is_number(value) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18 and math.isfinite(value)
