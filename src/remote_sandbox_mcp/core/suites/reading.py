"""Reading of a runner's output by a parser: counts, failures, places in the source, coverage."""

from __future__ import annotations

import heapq
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice
from typing import Any

from ..commands.command import Excerpt
from ..texts.text import harmless
from .suite import MOST_FAILURES, MOST_SLOWEST, TestFailure, Timing

MESSAGE_CHARS = 2000
ID_CHARS = 500
LONGEST_S = 1e8
# Fields of a Reading, and of the report that is made of it.
COUNTS = ("passed", "failed", "skipped", "errors")
# A message begins with what was expected and ends with where.
_HEAD, _TAIL = 1300, 600
_TOTAL = re.compile(r"^TOTAL[ \t]+\d+[ \t]+\d+(?:[ \t]+\d+[ \t]+\d+)?[ \t]+(\d+(?:\.\d+)?)%", re.MULTILINE)
_GO_TOTAL = re.compile(r"^total:\s+\(statements\)\s+([\d.]+)%", re.MULTILINE)
_GO = re.compile(r"(?:^|\t|\")coverage: ([\d.]+)% of statements", re.MULTILINE)
_TABLE = re.compile(r"^All files +\| +([\d.]+) \| +[\d.]+ \| +[\d.]+ \| +([\d.]+) \|", re.MULTILINE)
_TARPAULIN = re.compile(r"^([\d.]+)% coverage, \d+/\d+ lines covered", re.MULTILINE)
_COBERTURA = re.compile(rb"<coverage\b[^<>]*?\bline-rate=\"([\d.]+)\"")
LOG_BYTES = 20_000
# Paths that are not the project's: the runner's, the language's or an installed package's.
_FOREIGN = re.compile(
    r"(?:^|/)(?:node_modules|site-packages|dist-packages|rustc|\.cargo|lib/python[\d.]+)/"
    r"|^<|^node:|/unittest/|^/rustc/|/src/(?:testing|runtime)/"
)
_JVM = r"(?:java|jdk|kotlin|scala|org\.(?:junit|opentest4j|testng|hamcrest|assertj|gradle|apache\.maven))\."
# Bounded length: the text comes from the tests, and a hostile one could otherwise make the search very slow.
_NAME = r"[^\s:()\"']{1,300}"
_LINE = r"(\d{1,7})"
# With the index of the right match: a Python traceback ends with the deepest frame, others begin with it.
_PATTERNS = (
    (re.compile(rf"^({_NAME}\.py):{_LINE}: ", re.MULTILINE), -1),
    (re.compile(rf'^[ \t]*File "([^"\n]+)", line {_LINE}', re.MULTILINE), -1),
    (re.compile(rf"panicked at (?:'[^\n]*', )?({_NAME}\.rs):{_LINE}"), 0),
    (re.compile(rf"❯ (?:\S+ )?({_NAME}\.\w+):{_LINE}:\d"), 0),
    (re.compile(rf"(?:\(|at )(?:file://)?({_NAME}\.[cm]?[jt]sx?):{_LINE}:\d"), 0),
    (re.compile(rf"^[ \t]*at (?!{_JVM})[\w.$/]+\((\w+\.(?:java|kt|groovy|scala)):{_LINE}\)", re.MULTILINE), 0),
    (re.compile(rf"({_NAME}\.(?:go|rs)):{_LINE}"), 0),
    # Where the test itself is, in node's TAP.
    (re.compile(rf"^[ \t]*location: '(.+):{_LINE}:\d+'$", re.MULTILINE), 0),
)


class Verdict(str, Enum):
    """Verdict on one test. An error is a test that could not be run: its set-up, its import, its build."""

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
    """Select the failed cases, as the report has them: the first few, bounded and harmless."""
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
    counts: dict[str, Any] = {name: sum(getattr(reading, name) for reading in readings) for name in COUNTS}
    return Reading(
        runner="+".join(runners),
        **counts,
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


def coverage_in(text: str, files: Mapping[str, bytes]) -> float | None:
    """Coverage from files that the run wrote, else from its output; None where neither has a single number."""
    for path, data in files.items():
        found = _in_file(path.rpartition("/")[2], data)
        if found is not None:
            return found
    return _in_text(text)


def _in_text(text: str) -> float | None:
    for pattern in (_TOTAL, _GO_TOTAL, _TABLE, _TARPAULIN):
        if found := pattern.findall(text):
            last = found[-1]
            return _percent(last if isinstance(last, str) else last[-1])
    # Each package reports its own percentage without its size, so several cannot be added up.
    shares = _GO.findall(text)
    return _percent(shares[0]) if len(shares) == 1 else None


def _in_file(name: str, data: bytes) -> float | None:
    if name == "coverage-summary.json":
        try:
            return _percent(str(json.loads(data)["total"]["lines"]["pct"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
    if name == "lcov.info":
        lines = sum(map(int, re.findall(rb"^LF:(\d{1,9})", data, re.MULTILINE)))
        hit = sum(map(int, re.findall(rb"^LH:(\d{1,9})", data, re.MULTILINE)))
        return round(100 * hit / lines, 2) if lines else None
    if name == "coverage.xml" and (match := _COBERTURA.search(data[:4096])):
        return _percent(match.group(1).decode(), 100)
    return None


def _percent(text: str, factor: float = 1) -> float | None:
    try:
        value = round(float(text) * factor, 2)
    except ValueError:
        return None
    return value if 0 <= value <= 100 else None


def shown_log(runner: str, log: Excerpt, text: str) -> Excerpt:
    """The log for people: of go's JSON events, what the tests printed."""
    if runner != "go":
        return shortened(log)
    lines = "".join(map(_printed, text.splitlines())).encode()
    return shortened(replace(log, head=lines, tail=b"", total=len(lines)))


def _printed(line: str) -> str:
    try:
        event = json.loads(line) if line.startswith('{"') else None
    except (ValueError, RecursionError):
        event = None
    return str(event.get("Output", "")) if isinstance(event, dict) and "Action" in event else f"{line}\n"


def shortened(log: Excerpt) -> Excerpt:
    """At most LOG_BYTES of each end."""
    if len(log.head) + len(log.tail) <= 2 * LOG_BYTES:
        return log
    printed = log.tail if log.omitted else log.head + log.tail
    return replace(log, head=log.head[:LOG_BYTES], tail=printed[-LOG_BYTES:])


def place_in(text: str, file: str = "") -> tuple[str, int]:
    """The file and line that a failure's text points at, in `file` where that is known; ("", 0) for none."""
    for pattern, which in _PATTERNS:
        found = [(name, int(line)) for name, line in pattern.findall(text) if not _FOREIGN.search(name)]
        # The test's own file is the best place.
        own = [(file, line) for name, line in found if file and (name.endswith(file) or file.endswith(name))]
        if at := own or found:
            return at[which]
    return "", 0
