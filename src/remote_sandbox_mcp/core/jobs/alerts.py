"""Alerts of a job that runs: after which spans its owner is told, and how a caller gives them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .. import check
from ..errors import BadArgument

ALERTS = ("gpu_idle", "silent", "run_for", "stop")
LONGEST_SPAN_S = 366 * 86400.0
_AMOUNT = r"(\d{1,9}(?:\.\d{1,3})?)"
_SPAN = re.compile(rf"(?:{_AMOUNT}d)?(?:{_AMOUNT}h)?(?:{_AMOUNT}m(?:in)?)?(?:{_AMOUNT}s?)?", re.ASCII)


@dataclass(frozen=True)
class Alerts:
    """Spans after which a running job is reported, in seconds; 0 for never.

    `gpu_idle_s`: it has held GPUs and not used them. `silent_s`: it has printed nothing. `run_for_s`: the caller said
    that it ends then; this is told a little before, and with `stop` it is stopped then.
    """

    gpu_idle_s: float = 0.0
    silent_s: float = 0.0
    run_for_s: float = 0.0
    stop: bool = False


NO_ALERTS = Alerts()


def read_alerts(given: Mapping[str, object], usual: Alerts = NO_ALERTS) -> Alerts:
    """Alerts as a caller gives them. Raises BadArgument."""
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key not in ALERTS:
            raise BadArgument(f"alerts has an unknown key {key[:40]!r}; it takes: {', '.join(ALERTS)}")
        if key == "stop":
            if not isinstance(value, bool):
                raise BadArgument("alerts: stop must be true or false")
            values[key] = value
        else:
            values[f"{key}_s"] = read_span(f"alerts: {key}", value)
    alerts = replace(usual, **values)
    if alerts.stop and not alerts.run_for_s:
        raise BadArgument('alerts: stop needs the time after which it is stopped, such as run_for="8h"')
    return alerts


def with_run_for(given: Mapping[str, object], run_for: object) -> tuple[dict[str, object], float]:
    """Alerts with the time that a job is given, which others see in its lease as well, and that time in seconds."""
    alerts = {**given, **({"run_for": run_for} if run_for else {})}
    return alerts, read_span("run_for", alerts.get("run_for", 0))


def read_span(name: str, value: object) -> float:
    """A span of time in seconds, at most a year. Raises BadArgument."""
    text = str(value).replace(" ", "") if isinstance(value, (str, int, float)) and not isinstance(value, bool) else ""
    found = _SPAN.fullmatch(text)
    if not found or not text:
        raise BadArgument(f'{name} must be a span of time such as "30m", "8h" or "2d" (a number is seconds)')
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    total = days * 86400 + hours * 3600 + minutes * 60 + seconds
    check.in_range(name, total, 0, LONGEST_SPAN_S)
    return total
