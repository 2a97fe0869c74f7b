"""What a parser understood of a runner's output, bounded, and how several readings become one."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice

from ..output import harmless
from ..test_report import MOST_FAILURES, MOST_SLOWEST, TestFailure, Timing
from .places import place_in

MESSAGE_CHARS = 2000
ID_CHARS = 500
LONGEST_S = 1e8
# The beginning of a message says what was expected; its end, where.
_HEAD, _TAIL = 1300, 600


class Verdict(str, Enum):
    """How one test ended. An error is a test that could not be run: its set-up, its import, its build."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    ERROR = "error"


@dataclass(frozen=True)
class Case:
    """One test and its verdict, before anything is bounded.

    `file` and `line` are where the test itself is, where that is known; its message may tell of a better place.
    """

    id: str
    verdict: Verdict
    seconds: float = 0.0
    message: str = ""
    file: str = ""
    line: int = 0


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Counts and failures as one output tells them.

    `ended` is false where the runner's own last word is missing; `problem` is what the output says went wrong beside
    the tests.
    """

    runner: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    errors: int = 0
    failures: tuple[TestFailure, ...] = ()
    slowest: tuple[Timing, ...] = ()
    ended: bool = True
    problem: str = ""

    @property
    def total(self) -> int:
        return self.passed + self.failed + self.skipped + self.errors


def tally(runner: str, cases: Iterable[Case], *, ended: bool = True, problem: str = "") -> Reading:
    """Count cases and keep the first failures and the slowest."""
    listed = list(cases)
    counts = Counter(case.verdict for case in listed)
    timed = heapq.nlargest(
        MOST_SLOWEST, (case for case in listed if 0 < case.seconds < LONGEST_S), key=lambda case: case.seconds
    )
    return Reading(
        runner=runner,
        passed=counts[Verdict.PASSED],
        failed=counts[Verdict.FAILED],
        skipped=counts[Verdict.SKIPPED],
        errors=counts[Verdict.ERROR],
        failures=failures_of(listed),
        slowest=tuple(Timing(bounded(case.id, ID_CHARS), round(case.seconds, 3)) for case in timed),
        ended=ended,
        problem=problem,
    )


def failures_of(cases: Iterable[Case]) -> tuple[TestFailure, ...]:
    """Those that failed, as the report has them: the first few, bounded and harmless."""
    bad = (case for case in cases if case.verdict in (Verdict.FAILED, Verdict.ERROR))
    return tuple(map(_failure, islice(bad, MOST_FAILURES)))


def _failure(case: Case) -> TestFailure:
    message, file = bounded(case.message), bounded(case.file, ID_CHARS)
    at, line = place_in(message, file)
    return TestFailure(bounded(case.id, ID_CHARS), message, at or file, line if at else case.line)


def joined(readings: Sequence[Reading]) -> Reading:
    """Several runners' results as one."""
    runners = dict.fromkeys(reading.runner for reading in readings)
    slowest = heapq.nlargest(MOST_SLOWEST, (one for r in readings for one in r.slowest), key=lambda one: one.seconds)
    return Reading(
        runner="+".join(runners),
        passed=sum(reading.passed for reading in readings),
        failed=sum(reading.failed for reading in readings),
        skipped=sum(reading.skipped for reading in readings),
        errors=sum(reading.errors for reading in readings),
        failures=tuple(failure for reading in readings for failure in reading.failures)[:MOST_FAILURES],
        slowest=tuple(slowest),
        ended=all(reading.ended for reading in readings),
        problem="; ".join(dict.fromkeys(reading.problem for reading in readings if reading.problem)),
    )


def bounded(text: str, limit: int = MESSAGE_CHARS) -> str:
    """Text for a reader: no terminal escapes, not longer than `limit`, cut in the middle."""
    clean = harmless(text.encode("utf-8", "replace")).strip()
    if len(clean) <= limit:
        return clean
    if limit < MESSAGE_CHARS:
        return clean[: limit - 1] + "…"
    return f"{clean[:_HEAD]}\n[... {len(clean) - _HEAD - _TAIL} characters left out ...]\n{clean[-_TAIL:]}"


def seconds_of(text: str) -> float:
    """A duration as XML has it; some producers write 1,234.5 and some write nothing."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return 0.0
    return value if 0 <= value < LONGEST_S else 0.0
