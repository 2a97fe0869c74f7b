"""The report of a test run, which claims no more than the output and the exit code show."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..commands.command import Completed, Ending
from ..texts.text import counted, last_line
from . import golang, javascript, python_pytest, python_unittest, rust_cargo, tap
from .junit import BadReport, parse_junit, read_junit
from .reading import Reading, coverage_in, joined, shortened, shown_log
from .suite import GIVEN, Suite, TestReport

_SIGNALS = {
    4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 13: "SIGPIPE", 15: "SIGTERM",
}  # fmt: skip
_EXITS = {
    ("pytest", 3): "pytest itself failed (its exit code 3)",
    ("pytest", 4): "pytest did not accept its arguments or settings (its exit code 4)",
}
# These start other runners, which print their own names.
_STARTERS = (GIVEN, "make", "npm")
# How each is called in a command, by words that stand in one line in this order, and who reads what it prints.
_KNOWN: tuple[tuple[tuple[str, ...], Reader], ...] = (
    (("pytest|py.test",), python_pytest.read_text),
    (("unittest",), python_unittest.read_text),
    (("cargo", "test|t"), rust_cargo.read_text),
    (("go", "test", "-json"), golang.read_json),
    (("go", "test"), golang.read_text),
    (("vitest",), javascript.read_vitest_text),
    (("jest",), javascript.read_jest_text),
    (("mocha",), javascript.read_mocha_text),
    (("node", "--test"), javascript.read_node_text),
    (("prove|tap|bats",), tap.read_text),
)
# A word with what may belong to it: `my-pytest` is not pytest, and neither is `pytest-like`.
_WORD = re.compile(r"[\w.-]+")


@dataclass(frozen=True)
class Evidence:
    """Evidence of a run: its output as text, the report that we asked for, and files that it wrote.

    `notes` say which parts could not be fetched.
    """

    text: str = ""
    report: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def make_report(suite: Suite, end: Completed, evidence: Evidence) -> TestReport:
    """Turn counts and exit code into a verdict; the only place that decides whether tests passed."""
    reading, source, refused = _read(suite, evidence)
    unrun = _unrun(suite, evidence.text)
    problems = [*unrun, *_ending(suite, end, reading), *_results(end, reading), *refused, *evidence.notes]
    result = reading or Reading(runner=suite.runner, ended=False)
    sound = (
        result.ended and not result.problem and result.total > 0 and not refused and not evidence.notes and not unrun
    )
    return TestReport(
        runner=result.runner if suite.runner in _STARTERS else suite.runner,
        command=suite.shown,
        passed=result.passed,
        failed=result.failed,
        skipped=result.skipped,
        errors=result.errors,
        duration=round(end.seconds, 3),
        failures=result.failures,
        slowest=result.slowest,
        coverage=coverage_in(evidence.text, evidence.files),
        exit_code=end.exit_code,
        log=shown_log(suite.runner, end.stdout, evidence.text),
        stderr=shortened(end.stderr),
        complete=sound and end.ending is Ending.EXITED and not _crashed(end, reading),
        problem="; ".join(dict.fromkeys(problems)),
        source=source,
        others=suite.others,
        lent=suite.lent,
    )


def _unrun(suite: Suite, text: str) -> list[str]:
    """Tests of the folder that the counts do not cover, even if the runner reports success."""
    unseen = python_unittest.unseen(text, suite.expects)
    found = (
        [f"no test of {', '.join(unseen[:5])} was run: unittest found none; use pytest, or check it"] if unseen else []
    )
    return [*filter(None, (suite.problem,)), *found]


# What the results say


def _read(suite: Suite, evidence: Evidence) -> tuple[Reading | None, str, list[str]]:
    """The best reading, its source, and what was rejected on the way."""
    refused = []
    if evidence.report:
        try:
            return _own(suite.runner, evidence), f"the report that {suite.runner} wrote", []
        except BadReport as problem:
            refused.append(f"the report that {suite.runner} wrote was not used: {problem}")
    written, names, bad = _written(evidence.files)
    printed = _printed(suite, evidence.text)
    if written and (printed is None or written.total >= printed.total):
        return written, names, refused + bad
    return printed, f"what it printed, as {printed.runner} writes it" if printed else "", refused + bad


def _own(runner: str, evidence: Evidence) -> Reading:
    if runner == "jest":
        return javascript.read_jest(evidence.report)
    report = parse_junit(evidence.report)
    if runner == "pytest":
        return python_pytest.read_report(report, evidence.text)
    if runner == "vitest":
        return javascript.read_vitest(report, evidence.text)
    return javascript.read_node(report) if runner == "node" else read_junit(report, runner)


def _printed(suite: Suite, text: str) -> Reading | None:
    if suite.runner == "go":
        return golang.read_json(text) or golang.read_text(text)
    readers = {
        "pytest": python_pytest.read_text, "unittest": python_unittest.read_text, "cargo": rust_cargo.read_text,
        "vitest": javascript.read_vitest_text, "jest": javascript.read_jest_text,
    }  # fmt: skip
    return readers[suite.runner](text) if suite.runner in readers else recognise(text, suite.shown)


def _written(files: Mapping[str, bytes]) -> tuple[Reading | None, str, list[str]]:
    """JUnit files that the command wrote itself, together; their names; and what was refused."""
    readings, names, bad = [], [], []
    for path, data in files.items():
        if path.endswith(".xml") and not path.endswith("coverage.xml"):
            try:
                readings.append(read_junit(parse_junit(data)))
                names.append(path)
            except BadReport as problem:
                # Any file may be called report.xml; only one that is made to do harm is worth a word.
                bad += [] if problem.is_foreign else [f"{path} was not used: {problem}"]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    source = f"JUnit XML that it wrote: {', '.join(names[:3])}{more}"
    return joined(readings) if readings else None, source, bad


# What the ending says


def _crashed(end: Completed, reading: Reading | None) -> bool:
    """Ended by a signal. mocha's exit code is the number of its failures, so a high one alone says nothing."""
    failures = reading is not None and reading.ended and bool(reading.failed or reading.errors)
    return end.ending is Ending.EXITED and end.exit_code - 128 in _SIGNALS and not failures


def _ending(suite: Suite, end: Completed, reading: Reading | None) -> list[str]:
    so_far = f"; {counted(reading.total, 'test')} had ended by then" if reading and reading.total else ""
    if end.ending is Ending.TIMED_OUT:
        return [f"it was ended after {end.seconds:.0f} s, its time limit{so_far}"]
    if end.ending is Ending.STOPPED:
        return [f"it was stopped before its end{so_far}"]
    if _crashed(end, reading):
        name = _SIGNALS[end.exit_code - 128]
        why = ", often for want of memory" if name == "SIGKILL" else ""
        return [f"the runner crashed: it was ended by {name}{why} (exit code {end.exit_code}){so_far}"]
    if end.exit_code in (126, 127) and not (reading and reading.total):
        return [f"the command could not be run (exit code {end.exit_code}): {_said(end)}"]
    found = _EXITS.get((suite.runner, end.exit_code))
    return [f"{found}: {_said(end)}"] if found else []


def _results(end: Completed, reading: Reading | None) -> list[str]:
    if reading is None:
        return [f"no test results were recognised in what it printed; it ended with exit code {end.exit_code}"]
    problems = [reading.problem] if reading.problem else []
    bad = reading.failed + reading.errors
    if not problems and end.ending is Ending.EXITED:
        problems += _silence(reading)
    if end.exit_code != 0 and not bad and not problems and end.ending is Ending.EXITED:
        problems.append(f"it ended with exit code {end.exit_code} although no test failed: {_said(end)}")
    if end.exit_code == 0 and bad:
        problems.append(f"its exit code is 0 although {counted(bad, 'test')} failed")
    return problems


def _silence(reading: Reading) -> list[str]:
    if not reading.total:
        return ["no tests were found" if reading.ended else "it ended before any test did"]
    return [] if reading.ended else ["its results break off before their end"]


def _said(end: Completed) -> str:
    printed = (end.stderr.head + end.stderr.tail, end.stdout.head + end.stdout.tail)
    return next(filter(None, map(last_line, printed)), "it said nothing")


Reader = Callable[[str], "Reading | None"]


def recognise(text: str, command: str = "") -> Reading | None:
    """One reading of all that was recognised; of the runner that the command names, where it names one.

    A failing test may quote the output of another runner: what the command says it runs is believed first.
    """
    lines = [[word.rstrip(".") for word in _WORD.findall(line)] for line in command.split("\n")]
    named = [reader for names, reader in _KNOWN if any(_has_in_order(line, names) for line in lines)]
    return _read_as(named, text) or _read_as([reader for _, reader in _KNOWN], text)


def _has_in_order(words: list[str], names: tuple[str, ...]) -> bool:
    rest = iter(words)
    return all(any(word in name.split("|") for word in rest) for name in names)


def _read_as(readers: list[Reader], text: str) -> Reading | None:
    readings = {reader: reading for reader in readers if (reading := reader(text)) is not None}
    if tap.read_text in readings:
        # node's TAP ends with the same counts again; the lines tell more.
        readings.pop(javascript.read_node_text, None)
    if golang.read_json in readings:
        readings.pop(golang.read_text, None)
    found = [reading for reading in readings.values() if reading.total] or list(readings.values())[:1]
    return joined(found) if found else None
