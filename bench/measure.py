"""Times taken in turns: whatever slows the machine down for a while slows every contestant down."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

# Does its work once and says how many seconds of it count.
Contestant = Callable[[], float]


@dataclass(frozen=True)
class Times:
    """Every time that was taken of one contestant, in seconds."""

    seconds: tuple[float, ...]

    @property
    def p50(self) -> float:
        return statistics.median(self.seconds)

    @property
    def p50_ms(self) -> float:
        return self.p50 * 1000

    @property
    def p99_ms(self) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1000

    @property
    def spread_ms(self) -> tuple[float, float]:
        """The tenth and the ninetieth percentile."""
        ordered = sorted(self.seconds)
        last = len(ordered) - 1
        return ordered[round(last * 0.1)] * 1000, ordered[round(last * 0.9)] * 1000


def timed(action: Callable[[], object]) -> Contestant:
    """All of an action counts."""

    def run() -> float:
        begun = time.perf_counter()
        action()
        return time.perf_counter() - begun

    return run


def in_turns(
    contestants: Mapping[str, Contestant], *, rounds: int, batch: int = 1, before: Callable[[], object] = lambda: None
) -> dict[str, Times]:
    """Let each do a batch, round after round, from the first to the last and back; `before` begins every round."""
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    order = list(contestants)
    for _ in range(rounds):
        before()
        for name in order:
            taken[name] += [contestants[name]() for _ in range(batch)]
        order.reverse()
    return {name: Times(tuple(seconds)) for name, seconds in taken.items()}
