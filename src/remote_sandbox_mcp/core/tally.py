"""Counts of tool calls, by tool and outcome, and how long they took."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict

BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 300.0)


class Tally:
    """Counts of one process. `took` has for each tool how many calls kept which bound, and the last one none."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.took = defaultdict[str, list[int]](lambda: [0] * (len(BOUNDS_S) + 1))
        self.seconds = defaultdict[str, float](float)

    def add(self, tool: str, outcome: str, seconds: float) -> None:
        self.calls[tool, outcome] += 1
        self.took[tool][bisect_left(BOUNDS_S, seconds)] += 1
        self.seconds[tool] += seconds
