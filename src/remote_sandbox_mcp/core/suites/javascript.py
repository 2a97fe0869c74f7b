"""JavaScript's runners: jest's JSON, the JUnit XML of node and vitest, and what they and mocha print."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from ..texts.text import counted
from .junit import BadReport, XmlCase, XmlReport
from .reading import ID_CHARS, Case, Reading, Verdict, failures_of, seconds_of, tally

_STATES = {"passed": Verdict.PASSED, "failed": Verdict.FAILED}
_JEST = re.compile(r"^Tests: {1,9}(?:([^\n]{1,300}), )?(\d{1,9}) total$", re.MULTILINE)
_JEST_BLOCK = re.compile(r"^  ● (.+)\n((?:\n|    .*\n)*)", re.MULTILINE)
_VITEST = re.compile(r"^ {1,20}Tests  ([^\n]{1,300}?) ?\((\d{1,9})\)$", re.MULTILINE)
_VITEST_ERRORS = re.compile(r"^ +Errors  (\d{1,9}) errors?$", re.MULTILINE)
_VITEST_BLOCK = re.compile(r"^ ?FAIL  (.+)\n((?:(?! ?FAIL  |⎯).*\n)*)", re.MULTILINE)
_MOCHA = re.compile(r"^  (\d{1,9}) (passing|pending|failing)\b", re.MULTILINE)
_MOCHA_BLOCK = re.compile(r"^  \d{1,9}\) ", re.MULTILINE)
_NODE = re.compile(r"^(?:ℹ|#) (tests|pass|fail|cancelled|skipped|todo) (\d{1,9})$", re.MULTILINE)
_NODE_BLOCK = re.compile(
    r"^test at (.+):(\d{1,9}):\d+\n✖ (.+) \([\d.]+ms\)( # (?:TODO|SKIP).*)?\n((?:  .*\n|\n)*)", re.MULTILINE
)


# What they write


def read_jest(data: bytes) -> Reading:
    """jest --json. Raises BadReport."""
    try:
        report = json.loads(data)
        cases = [case for result in report["testResults"] for case in _jest_cases(result)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise BadReport("it is not the JSON of jest") from problem
    return tally("jest", cases, problem=_unloaded(sum(case.verdict is Verdict.ERROR for case in cases)))


def _jest_cases(result: dict[str, Any]) -> Iterator[Case]:
    file, tests = str(result["name"]), result["assertionResults"]
    if not tests and result["status"] == "failed":
        yield Case(file, Verdict.ERROR, message=str(result.get("message", "")), file=file)
    for test in tests:
        message = "\n".join(map(str, test.get("failureMessages") or ()))
        line = (test.get("location") or {}).get("line")
        yield Case(
            str(test["fullName"]),
            _STATES.get(test["status"], Verdict.SKIPPED),
            seconds_of(str(test.get("duration"))) / 1000,
            message,
            file,
            line if isinstance(line, int) else 0,
        )


def read_vitest(report: XmlReport, text: str) -> Reading:
    """Read vitest's JUnit XML. It lists tests that never ran as passed, so the counts come from the printed output."""
    reading = tally("vitest", map(_vitest_case, report.cases), ended=report.whole)
    printed = read_vitest_text(text)
    if printed is None:
        return replace(reading, problem=_unloaded(reading.errors))
    if (printed.passed, printed.failed) != (reading.passed, reading.failed):
        reading = replace(reading, passed=printed.passed, failed=printed.failed, skipped=printed.skipped)
    return replace(reading, ended=reading.ended and printed.ended, problem=printed.problem)


def _vitest_case(case: XmlCase) -> Case:
    # A file that could not be loaded is reported as one case with the file's name.
    broken = case.name == case.classname
    verdict = Verdict.ERROR if broken and case.verdict is Verdict.FAILED else case.verdict
    name = case.name if broken else f"{case.classname} > {case.name}"
    return Case(name, verdict, case.seconds, case.text, case.classname)


def read_node(report: XmlReport) -> Reading:
    """The names of suites and tests; `--test-name-pattern` takes the last of them."""
    broken = sum(map(_is_unloaded, report.cases))
    return tally("node", map(_node_case, report.cases), ended=report.whole, problem=_unloaded(broken))


def _is_unloaded(case: XmlCase) -> bool:
    return case.verdict is Verdict.FAILED and case.message == "test failed" and "exitCode: " in case.body


def _node_case(case: XmlCase) -> Case:
    broken = _is_unloaded(case)
    # Bounded here: a suite's long name is repeated in each of its tests.
    name = " > ".join((*case.suites, case.name))[: ID_CHARS + 1]
    file = case.file or (case.name if broken else "")
    return Case(name, Verdict.ERROR if broken else case.verdict, case.seconds, case.text, file, case.line)


def _unloaded(files: int) -> str:
    return f"{files} test file{'s' * (files > 1)} could not be loaded or broke off" if files else ""


# What they print


def read_jest_text(text: str) -> Reading | None:
    if not (summaries := _JEST.findall(text)):
        return None
    counts = _numbers(words for words, _ in summaries)
    blocks = _JEST_BLOCK.findall(text)
    unloaded = sum(title == "Test suite failed to run" for title, _ in blocks)
    cases = (Case(title, Verdict.FAILED, message=body) for title, body in blocks)
    return Reading(
        runner="jest", passed=counts.get("passed", 0), failed=counts.get("failed", 0),
        skipped=counts.get("skipped", 0) + counts.get("todo", 0), errors=unloaded, failures=failures_of(cases),
        problem=_unloaded(unloaded),
    )  # fmt: skip


def read_vitest_text(text: str) -> Reading | None:
    if not (summaries := _VITEST.findall(text)):
        return None
    counts = _numbers(words for words, _ in summaries)
    blocks = _VITEST_BLOCK.findall(text)
    cases = (Case(title.split(" [ ")[0], Verdict.FAILED, message=body) for title, body in blocks)
    unloaded = sum(" [ " in title for title, _ in blocks)
    skipped = counts.get("skipped", 0) + counts.get("todo", 0)
    unrun = sum(int(total) for _, total in summaries) - skipped - counts.get("passed", 0) - counts.get("failed", 0)
    return Reading(
        runner="vitest", passed=counts.get("passed", 0), failed=counts.get("failed", 0), skipped=skipped,
        errors=unloaded, failures=failures_of(cases), ended=unrun <= 0, problem=_broken(text, unrun, unloaded),
    )  # fmt: skip


def _broken(text: str, unrun: int, unloaded: int) -> str:
    unhandled = sum(map(int, _VITEST_ERRORS.findall(text)))
    problems = (
        f"vitest caught {unhandled} unhandled error{'s' * (unhandled > 1)}" if unhandled else "",
        f"{counted(unrun, 'test')} {'was' if unrun == 1 else 'were'} not run" if unrun > 0 else "",
        _unloaded(unloaded),
    )
    return "; ".join(filter(None, problems))


def read_mocha_text(text: str) -> Reading | None:
    counts = _numbers(f"{number} {word}" for number, word in _MOCHA.findall(text))
    if "passing" not in counts:
        return None
    blocks = _MOCHA_BLOCK.split(text[text.rfind(" passing") :])[1:]
    return Reading(
        runner="mocha", passed=counts["passing"], failed=counts.get("failing", 0), skipped=counts.get("pending", 0),
        failures=failures_of(map(_mocha_case, blocks)),
    )  # fmt: skip


def _mocha_case(block: str) -> Case:
    """The titles of suites and test stand on lines of their own; a colon ends the last."""
    title, _, body = block.partition(":\n")
    return Case(" ".join(title.split()), Verdict.FAILED, message=body)


def read_node_text(text: str) -> Reading | None:
    """Parse the output of node's spec reporter; its TAP is read as TAP."""
    counts = _numbers(f"{number} {word}" for word, number in _NODE.findall(text))
    if not {"tests", "pass", "fail"} <= counts.keys():
        return None
    cases = (
        Case(name, Verdict.FAILED, message=body, file=file, line=int(line))
        for file, line, name, directive, body in _NODE_BLOCK.findall(text)
        if not directive
    )
    return Reading(
        runner="node", passed=counts["pass"], failed=counts["fail"] + counts.get("cancelled", 0),
        skipped=counts.get("skipped", 0) + counts.get("todo", 0), failures=failures_of(cases),
    )  # fmt: skip


def _numbers(texts: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for text in texts:
        for number, word in re.findall(r"(\d{1,9}) (\w+)", text):
            counts[word] = counts.get(word, 0) + int(number)
    return counts
