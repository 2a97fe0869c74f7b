"""Result of a test suite: counts, failures with their places, and whether the counts are complete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..commands.command import Excerpt

MOST_FAILURES = 50
MOST_SLOWEST = 5
_NOTHING = Excerpt()


@dataclass(frozen=True)
class TestFailure:
    """A test that failed or could not be run. `id` is what the runner calls it; `line` is 0 where it is not known."""

    # pytest takes every class whose name begins with Test for one of its own.
    __test__: ClassVar[bool] = False

    id: str
    message: str = ""
    file: str = ""
    line: int = 0


@dataclass(frozen=True)
class Timing:
    """Duration of one test."""

    id: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class TestReport:
    """One run of a suite. Zero counts with a `problem` mean that the result is unknown.

    `complete` says that the run came to its end and that the counts cover all of it. `failures` holds the first
    MOST_FAILURES of `failed + errors`. `log` and `stderr` are both ends of what was printed, with the file on the
    machine that has all of it; runners that we start ourselves print everything to `log`.
    """

    __test__: ClassVar[bool] = False

    runner: str
    command: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    errors: int = 0
    duration: float = 0.0
    failures: tuple[TestFailure, ...] = ()
    slowest: tuple[Timing, ...] = ()
    coverage: float | None = None
    exit_code: int = 0
    log: Excerpt = _NOTHING
    stderr: Excerpt = _NOTHING
    complete: bool = True
    problem: str = ""
    # What the counts were read from, so that they can be checked.
    source: str = ""
    # Other runners that also fit the folder.
    others: tuple[str, ...] = ()
    # That the server brought the runner (pytest) along, and where it is.
    lent: str = ""

    @property
    def failures_left_out(self) -> int:
        return max(0, self.failed + self.errors - len(self.failures))
