"""What a report claims: never more than the ending, the counts and the files allow."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.values import succeeded

from remote_sandbox_mcp.core.commands.command import Completed, Ending, Excerpt
from remote_sandbox_mcp.core.suites.reading import LOG_BYTES, coverage_in
from remote_sandbox_mcp.core.suites.suite import GIVEN, Suite, TestReport
from remote_sandbox_mcp.core.suites.verdict import Evidence, make_report, recognise
from remote_sandbox_mcp.core.texts.text import harmless

DATA = Path(__file__).with_name("data") / "runners"
PYTEST = Suite("pytest", ("python3", "-m", "pytest"))
JUNIT = b'<testsuite name="x"><testcase name="a"/><testcase name="b">%s</testcase></testsuite>'
GOOD, BAD = JUNIT % b"", JUNIT % b"<failure>no</failure>"


def data(name: str) -> bytes:
    return (DATA / name).read_bytes()


def text(name: str) -> str:
    return harmless(data(name))


def report(
    suite: Suite = PYTEST, *, exit_code: int = 0, ending: Ending = Ending.EXITED, printed: str = "", **evidence: object
) -> TestReport:
    log = Excerpt(printed.encode(), total=len(printed.encode()))
    end = Completed("run-0123456789abcdef", exit_code, ending, stdout=log, seconds=12.0)
    return make_report(suite, end, Evidence(printed, **evidence))  # type: ignore[arg-type]


def given(command: str = "make test") -> Suite:
    return Suite(GIVEN, command=command)


def test_a_suite_that_passes_succeeded() -> None:
    seen = report(report=GOOD)
    assert (seen.passed, seen.problem, seen.complete, succeeded(seen)) == (2, "", True, True)
    assert (seen.runner, seen.command, seen.duration) == ("pytest", "python3 -m pytest", 12.0)
    assert seen.source == "the report that pytest wrote"


def test_failing_tests_are_not_a_problem_of_the_run() -> None:
    seen = report(report=BAD, exit_code=1)
    assert (seen.passed, seen.failed, seen.problem, seen.complete, succeeded(seen)) == (1, 1, "", True, False)


CRASHES = [
    pytest.param(
        {"exit_code": 1, "printed": "Traceback\nImportError: no\n"},
        "no test results were recognised",
        id="did not start",
    ),
    pytest.param(
        {"exit_code": 139, "printed": text("pytest-crash.txt")},
        "ended by SIGSEGV (exit code 139); 2 tests had ended",
        id="segfault",
    ),
    pytest.param({"exit_code": 137}, "SIGKILL, often for want of memory (exit code 137)", id="out of memory"),
    pytest.param(
        {"exit_code": 127, "printed": "sh: pytest: not found"},
        "could not be run (exit code 127): sh: pytest: not found",
        id="no command",
    ),
    pytest.param(
        {"exit_code": 143, "ending": Ending.TIMED_OUT}, "it was ended after 12 s, its time limit", id="time limit"
    ),
    pytest.param({"exit_code": 143, "ending": Ending.STOPPED}, "it was stopped before its end", id="stopped"),
    pytest.param(
        {"exit_code": 3, "printed": "INTERNALERROR> KeyError: 1"},
        "pytest itself failed (its exit code 3): INTERNALERROR> KeyError: 1",
        id="internal error",
    ),
    pytest.param(
        {"exit_code": 4, "printed": "ERROR: no such option"},
        "did not accept its arguments or settings (its exit code 4): ERROR: no such option",
        id="usage",
    ),
    pytest.param(
        {"exit_code": 5, "printed": text("pytest-none.txt"), "report": data("pytest-none.xml")},
        "no tests were found",
        id="no tests",
    ),
    pytest.param({"exit_code": 0, "report": b"<testsuite/>"}, "no tests were found", id="no tests and content with it"),
    pytest.param(
        {"exit_code": 2, "printed": text("pytest-broken.txt"), "report": data("pytest-broken.xml")},
        "could not be collected were not run",
        id="collection",
    ),
    pytest.param(
        {"exit_code": 1, "printed": "===== test session starts =====\n"},
        "it ended before any test did",
        id="before any test",
    ),
    pytest.param({"exit_code": 0, "report": GOOD[:60]}, "its results break off", id="half a report"),
    pytest.param(
        {
            "exit_code": 1,
            "report": b"<!DOCTYPE x [<!ENTITY a 'b'>]><testsuite/>",
            "printed": "== 1 passed in 0.1s ==\n",
        },
        "was not used: it declares XML entities",
        id="hostile report",
    ),
    pytest.param(
        {"report": GOOD, "notes": ("report was read only in part: it is too large",)},
        "read only in part",
        id="huge report",
    ),
]


@pytest.mark.parametrize(("how", "problem"), CRASHES)
def test_a_run_that_did_not_come_to_its_end_never_looks_like_success(how: dict[str, object], problem: str) -> None:
    seen = report(**how)  # type: ignore[arg-type]
    assert problem in seen.problem
    assert not seen.complete
    assert not succeeded(seen)


def test_tests_that_ended_before_the_time_limit_are_counted() -> None:
    seen = report(ending=Ending.TIMED_OUT, exit_code=143, printed="===== test session starts =====\na.py ..F\n")
    assert (seen.passed, seen.failed, seen.complete) == (2, 1, False)
    assert "; 3 tests had ended by then" in seen.problem


@pytest.mark.parametrize(
    ("exit_code", "xml", "problem"),
    [
        pytest.param(1, GOOD, "it ended with exit code 1 although no test failed: Coverage failure", id="fails anyhow"),
        pytest.param(0, BAD, "its exit code is 0 although 1 test failed", id="hides it"),
    ],
)
def test_an_exit_code_that_contradicts_the_counts_is_reported(exit_code: int, xml: bytes, problem: str) -> None:
    seen = report(report=xml, exit_code=exit_code, printed="Coverage failure\n")
    assert seen.problem == problem
    assert seen.complete
    assert not succeeded(seen)


def test_an_exit_code_that_counts_failures_is_no_crash() -> None:
    printed = "\n  0 passing (1s)\n  137 failing\n\n  1) a:\n     Error: no\n"
    seen = report(given("mocha"), exit_code=137, printed=printed)
    assert (seen.runner, seen.failed, seen.problem, seen.complete) == ("mocha", 137, "", True)


GIVEN_COMMANDS = [
    pytest.param("pytest -q", "pytest-q.txt", "pytest", (4, 5, 2, 2), id="pytest"),
    pytest.param("make test", "pytest.txt", "pytest", (4, 5, 2, 2), id="pytest inside make"),
    pytest.param("make test", "unittest.txt", "unittest", (2, 4, 2, 3), id="unittest"),
    pytest.param("make test", "cargo.txt", "cargo", (3, 3, 1, 0), id="cargo"),
    pytest.param("make test", "go-v.txt", "go", (2, 2, 1, 1), id="go"),
    pytest.param("make test", "go.jsonl", "go", (2, 2, 1, 1), id="go events"),
    pytest.param("npm test", "jest.txt", "jest", (2, 2, 2, 1), id="jest"),
    pytest.param("npm test", "vitest.txt", "vitest", (2, 2, 2, 1), id="vitest"),
    pytest.param("npm test", "mocha.txt", "mocha", (2, 2, 1, 0), id="mocha"),
    pytest.param("npm test", "node.txt", "node", (4, 3, 2, 0), id="node"),
    pytest.param("npm test", "node-tap.txt", "tap", (3, 3, 2, 0), id="TAP"),
]


@pytest.mark.parametrize(("command", "name", "runner", "expected"), GIVEN_COMMANDS)
def test_what_a_given_command_printed_is_recognised(
    command: str, name: str, runner: str, expected: tuple[int, ...]
) -> None:
    seen = report(given(command), exit_code=1, printed=text(name))
    assert (seen.runner, seen.command) == (runner, command)
    assert (seen.passed, seen.failed, seen.skipped, seen.errors) == expected
    assert seen.source == f"what it printed, as {runner} writes it"


def test_several_runners_of_one_command_are_added_up() -> None:
    reading = recognise(text("pytest-v.txt") + text("cargo.txt"), "make test")
    assert reading is not None
    assert (reading.runner, reading.passed, reading.failed) == ("pytest+cargo", 6, 4)


def test_a_runner_that_a_test_only_quotes_is_not_counted() -> None:
    reading = recognise(text("cargo.txt") + text("pytest-v.txt"), "python -m pytest")
    assert reading is not None
    assert (reading.runner, reading.passed, reading.failed) == ("pytest", 3, 1)


def test_junit_files_that_a_command_wrote_are_added_up() -> None:
    files = {
        "target/surefire-reports/TEST-a.xml": data("surefire.xml"),
        "build/junit.xml": BAD,
        "report.xml": b"<html/>",
    }
    seen = report(given("mvn test"), exit_code=1, printed="[ERROR] Tests run: 5\n", files=files)
    assert (seen.passed, seen.failed, seen.skipped, seen.errors) == (3, 2, 1, 1)
    assert seen.source == "JUnit XML that it wrote: target/surefire-reports/TEST-a.xml, build/junit.xml"
    assert seen.complete


def test_junit_files_with_fewer_tests_than_printed_count_as_incomplete() -> None:
    seen = report(given("make test"), exit_code=1, printed=text("pytest.txt"), files={"junit.xml": GOOD})
    assert (seen.passed, seen.failed) == (4, 5)


def test_a_hostile_result_file_is_reported_and_not_read() -> None:
    hostile = b"<!DOCTYPE x [<!ENTITY a 'b'>]><testsuite/>"
    seen = report(given(), files={"junit.xml": GOOD, "junit-2.xml": hostile})
    assert seen.passed == 2
    assert seen.problem == "junit-2.xml was not used: it declares XML entities, which no test report needs"
    assert not seen.complete


def test_a_command_that_prints_nothing_known_claims_nothing() -> None:
    seen = report(given(), exit_code=0, printed="all good\n")
    assert (seen.passed, seen.failed, seen.complete, succeeded(seen)) == (0, 0, False, False)
    assert seen.problem == "no test results were recognised in what it printed; it ended with exit code 0"


COVERAGE = [
    pytest.param("Name  Stmts   Miss  Cover\nTOTAL     100     20    80%\n", {}, 80.0, id="pytest-cov"),
    pytest.param("TOTAL     100     20     10     2    78.5%   \n", {}, 78.5, id="with branches"),
    pytest.param(text("go-v.txt"), {}, 50.0, id="go"),
    pytest.param(text("go-v.txt") * 2, {}, None, id="several packages of go"),
    pytest.param("total:\t(statements)\t81.2%\n", {}, 81.2, id="go tool cover"),
    pytest.param(text("jest.txt"), {}, 100.0, id="jest"),
    pytest.param(text("vitest-coverage.txt"), {}, 50.0, id="vitest"),
    pytest.param(
        "", {"coverage.xml": b'<?xml version="1.0"?>\n<coverage version="7" line-rate="0.9125">'}, 91.25, id="Cobertura"
    ),
    pytest.param("", {"a/lcov.info": b"SF:a\nLF:3\nLH:1\nend_of_record\nSF:b\nLF:1\nLH:1\n"}, 50.0, id="lcov"),
    pytest.param("", {"coverage/coverage-summary.json": b'{"total": {"lines": {"pct": 66.66}}}'}, 66.66, id="istanbul"),
    pytest.param(
        "", {"coverage-summary.json": b'{"total": []}', "lcov.info": b"", "coverage.xml": b"<x/>"}, None, id="odd files"
    ),
    pytest.param("TOTAL 1 2 999%\nno coverage\n", {}, None, id="not a share"),
]


@pytest.mark.parametrize(("printed", "files", "expected"), COVERAGE)
def test_coverage(printed: str, files: dict[str, bytes], expected: float | None) -> None:
    assert coverage_in(printed, files) == expected


def test_the_log_keeps_both_ends() -> None:
    printed = "".join(f"line {n}\n" for n in range(20_000))
    seen = report(report=GOOD, printed=printed)
    assert seen.log.head.startswith(b"line 0\n")
    assert seen.log.tail.endswith(b"line 19999\n")
    assert len(seen.log.head) == len(seen.log.tail) == LOG_BYTES
    assert seen.log.total == len(printed)


def test_the_log_of_go_is_what_its_tests_printed() -> None:
    seen = report(Suite("go", ("go", "test", "-json")), exit_code=1, printed=text("go.jsonl"))
    assert b"--- FAIL: TestFails (0.00s)\n" in seen.log.head
    assert b'"Action"' not in seen.log.head
