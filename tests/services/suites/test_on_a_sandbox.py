"""Real runners in the embedded sandbox."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from remote_sandbox_mcp.backends.link.sandbox import OutpostSandbox
from remote_sandbox_mcp.core.commands.command import Command, Completed, Running
from remote_sandbox_mcp.core.errors import NotStarted, SandboxError
from remote_sandbox_mcp.core.sandboxes.files import Span
from remote_sandbox_mcp.core.suites.reading import LOG_BYTES
from remote_sandbox_mcp.core.suites.suite import Loan, TestReport
from remote_sandbox_mcp.services.suites import loan
from remote_sandbox_mcp.services.suites.service import results_of, run_tests
from tests.support.means import folders_inside
from tests.support.pace import Deadline
from tests.support.values import succeeded

from .conftest import Put

TWO_TESTS = "def test_a():\n    pass\n\n\ndef test_b():\n    assert 1 == 2\n"
UNITTEST = """import unittest

class Sums(unittest.TestCase):
    def test_a(self):
        pass

    def test_b(self):
        self.assertEqual(1, 2)
"""
DEADLINE_S = 20.0
LENT = ".local/share/remote-sandbox/pytest.pyz"


async def reported(sandbox: OutpostSandbox, *, command: str = "", path: str = "", timeout_s: float = 60) -> TestReport:
    report = await run_tests(sandbox, command=command, path=path, timeout_s=timeout_s)
    assert isinstance(report, TestReport)
    return report


def counts(report: TestReport) -> tuple[int, int, int, int]:
    return report.passed, report.failed, report.skipped, report.errors


def left_behind(home: Path) -> list[str]:
    return [path.name for path in (home.parent / "tmp").glob("rsmcp-*")]


@pytest.mark.usefixtures("with_pytest")
async def test_pytest_is_found_and_run(sandbox: OutpostSandbox, put: Put, home: Path) -> None:
    put({"project/tests/test_x.py": TWO_TESTS, "project/pyproject.toml": "[tool.pytest.ini_options]\naddopts = '-q'\n"})
    report = await reported(sandbox, path="project")
    assert report.runner == "pytest"
    assert f"-m pytest --junitxml={folders_inside(home.parent)[1]}/rsmcp-tests-run-" in report.command
    assert counts(report) == (1, 1, 0, 0)
    assert (report.complete, report.problem, report.exit_code, succeeded(report)) == (True, "", 1, False)
    (failure,) = report.failures
    assert (failure.id, failure.file, failure.line) == ("tests/test_x.py::test_b", "tests/test_x.py", 6)
    assert "assert 1 == 2" in failure.message
    assert b"1 failed, 1 passed" in report.log.head
    assert 0 < report.duration < DEADLINE_S
    assert left_behind(home) == []


@pytest.mark.usefixtures("with_pytest")
async def test_an_id_runs_that_test_again(sandbox: OutpostSandbox, put: Put) -> None:
    text = (
        "import pytest\n\n@pytest.mark.parametrize('x', ['a b', 'c::d', \"e'f\"])\ndef test_x(x):\n    assert not x\n"
    )
    put({"sub/test_x.py": text, "pyproject.toml": "[tool.pytest.ini_options]\n"})
    first = await reported(sandbox, path="sub")
    assert first.failed == 3
    for failure in first.failures:
        again = await reported(sandbox, path="sub", command=f'python3 -m pytest "{failure.id}"')
        assert counts(again) == (0, 1, 0, 0)
        assert again.failures[0].id == failure.id


BROKEN = [
    pytest.param("import nothing_like_this\n", (0, 0, 0, 1), "could not be collected", id="import"),
    pytest.param("x = 1\n", (0, 0, 0, 0), "no tests were found", id="no tests"),
    pytest.param(
        "import os\ndef test_a(): pass\ndef test_b(): os.kill(os.getpid(), 11)\n",
        (1, 0, 0, 0),
        "SIGSEGV",
        id="segfault",
    ),
    pytest.param("import os\ndef test_a(): os.kill(os.getpid(), 9)\n", (0, 0, 0, 0), "SIGKILL", id="killed"),
    pytest.param("import os\ndef test_a(): os._exit(0)\n", (0, 0, 0, 0), "ended before any test did", id="silent exit"),
]


@pytest.mark.parametrize(("text", "expected", "problem"), BROKEN)
@pytest.mark.usefixtures("with_pytest")
async def test_a_broken_run_is_told(
    sandbox: OutpostSandbox, put: Put, home: Path, text: str, expected: tuple[int, ...], problem: str
) -> None:
    put({"test_x.py": text})
    report = await reported(sandbox)
    assert counts(report) == expected
    assert problem in report.problem
    assert not report.complete
    assert left_behind(home) == []


@pytest.mark.usefixtures("with_pytest")
async def test_tests_that_ended_before_the_time_limit_are_counted(
    sandbox: OutpostSandbox, put: Put, home: Path
) -> None:
    put({"test_x.py": "import time\ndef test_a(): pass\ndef test_b(): time.sleep(600)\n"})
    report = await reported(sandbox, timeout_s=4)
    assert counts(report) == (1, 0, 0, 0)
    assert report.problem == "it was ended after 4 s, its time limit; 1 test had ended by then"
    assert not report.complete
    assert left_behind(home) == []


async def test_unittest_serves_where_pytest_is_not(sandbox: OutpostSandbox, put: Put) -> None:
    put({"tests/test_x.py": UNITTEST})
    report = await reported(sandbox)
    assert (report.runner, report.command) == ("unittest", "python3 -m unittest discover -v -s tests")
    assert counts(report) == (1, 1, 0, 0)
    assert report.failures[0].id == "test_x.Sums.test_b"
    assert report.failures[0].line == 8
    assert report.complete


PASSING = "import unittest\n\nclass T(unittest.TestCase):\n    def test_a(self):\n        pass\n"
FAILING = "def test_b():\n    assert 1 == 2\n"


@pytest.fixture
def nothing_to_lend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loan, "find_loan", lambda: None)


@pytest.mark.usefixtures("nothing_to_lend")
async def test_unittest_does_not_pass_for_tests_that_only_pytest_runs(sandbox: OutpostSandbox, put: Put) -> None:
    put({"test_a.py": PASSING, "test_b.py": FAILING, "package.json": '{"devDependencies": {"vitest": "3"}}'})
    report = await reported(sandbox)
    assert (report.runner, succeeded(report), report.complete) == ("unittest", False, False)
    assert "pytest was not run: only pytest runs test_b.py, but python3 there cannot import it" in report.problem
    assert "install pytest beside remote-sandbox-mcp" in report.problem
    assert set(report.others) >= {"pytest", "vitest"}
    assert counts(report) == (1, 0, 0, 0)


@pytest.mark.usefixtures("nothing_to_lend")
async def test_tests_that_only_pytest_runs_are_refused_without_it(
    sandbox: OutpostSandbox, put: Put, home: Path
) -> None:
    put({"test_b.py": FAILING, "Cargo.toml": ""})
    with pytest.raises(SandboxError, match=r"only pytest runs test_b\.py, but python3 there cannot import it"):
        await run_tests(sandbox)
    assert left_behind(home) == []


async def test_a_file_of_which_unittest_runs_nothing_is_told(sandbox: OutpostSandbox, put: Put) -> None:
    put({"test_a.py": PASSING, "base.py": "class Base: pass\n"})
    put({"test_b.py": "from base import Base\nclass TestB(Base):\n    def test_b(self):\n        assert 1 == 2\n"})
    report = await reported(sandbox)
    assert (report.runner, counts(report), report.complete) == ("unittest", (1, 0, 0, 0), False)
    assert "no test of test_b was run" in report.problem


async def test_pytest_is_lent_where_there_is_none(sandbox: OutpostSandbox, put: Put, home: Path) -> None:
    lent = f"{folders_inside(home.parent)[0]}/{LENT}"
    put({"p/test_a.py": PASSING, "p/sub/test_b.py": FAILING, "p/packaging.py": "mine = True\n"})
    put({"p/test_c.py": "import packaging\n\ndef test_own_modules_come_first():\n    assert packaging.mine\n"})
    report = await reported(sandbox, path="p")
    assert (report.runner, counts(report), report.problem) == ("pytest", (2, 1, 0, 0), "")
    assert report.failures[0].id == "sub/test_b.py::test_b"
    assert f"was lent by the server, because python3 there has none; it is {lent}" in report.lent
    again = await reported(sandbox, path="p", command=f"python3 {lent} -q sub/test_b.py::test_b")
    assert (again.runner, counts(again)) == ("pytest", (0, 1, 0, 0))
    assert left_behind(home) == []


async def test_a_pytest_that_is_too_new_is_not_lent(
    sandbox: OutpostSandbox, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loan, "find_loan", lambda: Loan("99.0", (3, 99)))
    put({"test_b.py": FAILING})
    with pytest.raises(SandboxError, match=r"use an image with a newer Python \(pytest 99\.0, .* needs Python 3\.99"):
        await run_tests(sandbox)


async def test_a_pytest_that_cannot_be_put_there_is_told(sandbox: OutpostSandbox, put: Put) -> None:
    put({"p/test_b.py": FAILING, ".local": ""})
    with pytest.raises(SandboxError, match=r"cannot import it: it could not be lent either \(.*\.local"):
        await run_tests(sandbox, path="p")


@pytest.mark.skipif(not shutil.which("node"), reason="node is not installed")
async def test_node_is_found_and_run(sandbox: OutpostSandbox, put: Put, home: Path) -> None:
    text = "const test = require('node:test');\nconst assert = require('node:assert');\n"
    text += "test('a', () => {});\ntest('b', () => {\n  assert.equal(1, 2);\n});\ntest.skip('c', () => {});\n"
    put({"package.json": '{"scripts": {"test": "node --test test/*.js"}}', "test/x.test.js": text})
    report = await reported(sandbox)
    assert report.runner == "node"
    assert counts(report) == (1, 1, 1, 0)
    assert (report.failures[0].id, report.failures[0].line) == ("b", 5)
    assert report.failures[0].file.endswith("test/x.test.js")
    assert report.complete
    assert left_behind(home) == []


@pytest.mark.usefixtures("with_pytest")
async def test_make_is_the_last_resort(sandbox: OutpostSandbox, put: Put) -> None:
    put({"Makefile": "test:\n\tcd sub && python3 -m pytest\n", "sub/test_x.py": TWO_TESTS})
    report = await reported(sandbox)
    assert (report.runner, report.command) == ("pytest", "make test")
    assert counts(report) == (1, 1, 0, 0)
    assert report.source == "what it printed, as pytest writes it"


@pytest.mark.usefixtures("with_pytest")
async def test_junit_files_of_a_command_are_read_if_they_are_its_own(sandbox: OutpostSandbox, put: Put) -> None:
    stale = '<testsuite><testcase name="old"><failure/></testcase></testsuite>'
    put({"test_x.py": TWO_TESTS, "build/TEST-old.xml": stale})
    report = await reported(sandbox, command="python3 -m pytest -qq --no-summary --junitxml=out/junit.xml >/dev/null")
    assert counts(report) == (1, 1, 0, 0)
    assert report.source == "JUnit XML that it wrote: out/junit.xml"
    assert report.command.startswith("python3 -m pytest -qq")


async def test_files_that_lead_elsewhere_are_not_read(sandbox: OutpostSandbox, put: Put) -> None:
    put({"x": "<testsuite><testcase name='a'/></testsuite>"})
    report = await reported(sandbox, command="ln -s x junit.xml; mkfifo junit-2.xml; touch x")
    assert counts(report) == (0, 0, 0, 0)
    assert "no test results were recognised" in report.problem


async def test_coverage_that_was_measured_is_told(sandbox: OutpostSandbox) -> None:
    command = "echo '<coverage line-rate=\"0.5\">' >coverage.xml; echo '=== 1 passed in 0.1s ==='"
    report = await reported(sandbox, command=command)
    assert (report.coverage, report.passed, report.complete) == (50.0, 1, True)


@pytest.mark.usefixtures("with_pytest")
@pytest.mark.parametrize("name", ["a b", "it's", "größe", "-x", "$(touch pwned)"])
async def test_folders_may_have_any_name(sandbox: OutpostSandbox, put: Put, home: Path, name: str) -> None:
    put({f"{name}/test_x.py": TWO_TESTS})
    assert counts(await reported(sandbox, path=f"~/{name}")) == (1, 1, 0, 0)
    assert not list(home.rglob("pwned"))


REFUSED = [
    pytest.param("nothing", "unable to enter nothing: No such file or directory", id="missing"),
    pytest.param("file.txt", "unable to enter file.txt: Not a directory", id="a file"),
    pytest.param("empty", "there is nothing in it that tells of tests; give another path", id="empty"),
    pytest.param("closed", "the folder cannot be read", id="unreadable"),
    pytest.param("locked", "unable to enter locked: Permission denied", id="locked"),
]


@pytest.mark.parametrize(("path", "why"), REFUSED)
async def test_a_folder_that_cannot_be_tested_is_told_in_one_sentence(
    sandbox: OutpostSandbox, put: Put, home: Path, path: str, why: str
) -> None:
    put({"file.txt": ""})
    (home / "empty").mkdir(mode=0o755)
    # They belong to whoever runs the tests; the sandbox is that user, or another one where that is root.
    (home / "closed").mkdir(mode=0o111)
    (home / "locked").mkdir(mode=0o000)
    with pytest.raises(SandboxError) as refusal:
        await run_tests(sandbox, path=path)
    assert why in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert left_behind(home) == []


async def ended(sandbox: OutpostSandbox, run_id: str) -> TestReport:
    deadline = Deadline(DEADLINE_S)
    while isinstance(seen := await results_of(sandbox, run_id), Running):
        assert not deadline.has_passed()
        await asyncio.sleep(0.05)
    return seen


@pytest.mark.usefixtures("with_pytest")
async def test_tests_that_outlast_their_caller_are_reported_later(
    sandbox: OutpostSandbox, put: Put, home: Path
) -> None:
    put({"test_x.py": "import os, time\ndef test_a():\n    while not os.path.exists('go'): time.sleep(0.01)\n"})
    seen = await run_tests(sandbox, patience_s=1)
    assert isinstance(seen, Running)
    assert isinstance(await results_of(sandbox, seen.run_id), Running)
    put({"go": ""})
    report = await ended(sandbox, seen.run_id)
    assert (report.runner, counts(report), report.complete) == ("pytest", (1, 0, 0, 0), True)
    assert left_behind(home) == []
    with pytest.raises(SandboxError, match=r"the tests of run-.* are lost|has no test results"):
        await results_of(sandbox, seen.run_id)


async def test_a_given_command_that_outlasts_its_caller_is_reported_later(sandbox: OutpostSandbox, put: Put) -> None:
    command = "until [ -e go ]; do sleep 0.02; done; echo '=== 2 passed in 0.1s ==='"
    seen = await run_tests(sandbox, command=command, patience_s=1)
    assert isinstance(seen, Running)
    put({"go": ""})
    report = await ended(sandbox, seen.run_id)
    assert (report.runner, report.command, report.passed) == ("pytest", command, 2)


async def test_a_run_that_was_no_test_has_no_results(sandbox: OutpostSandbox) -> None:
    seen = await sandbox.run(Command("echo hello"))
    with pytest.raises(SandboxError, match="has no test results: it ran no tests"):
        await results_of(sandbox, seen.run_id)
    with pytest.raises(SandboxError, match="is not a handle"):
        await results_of(sandbox, "x; rm -rf /")


async def test_all_of_a_long_output_is_read_and_both_ends_are_shown(sandbox: OutpostSandbox, put: Put) -> None:
    noise = "    def test_{n}(self): print('x' * 400)\n"
    put(
        {
            "test_x.py": "import unittest\nclass T(unittest.TestCase):\n"
            + "".join(noise.format(n=n) for n in range(3000))
        }
    )
    report = await reported(sandbox, command="python3 -m unittest -v 2>&1 | cat; exit 0")
    assert counts(report) == (3000, 0, 0, 0)
    assert report.problem == ""
    assert len(report.log.head) == len(report.log.tail) == LOG_BYTES
    assert report.log.total > 1_000_000
    assert (await sandbox.read(report.log.file, Span(limit=10))).size == report.log.total


async def test_a_cancelled_call_stops_the_tests(sandbox: OutpostSandbox, home: Path) -> None:
    call = asyncio.create_task(run_tests(sandbox, command="echo $$ >pid; exec sleep 600"))
    deadline = Deadline(DEADLINE_S)
    while not (home / "pid").exists() or not (home / "pid").read_text():
        assert not deadline.has_passed()
        await asyncio.sleep(0.02)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    pid = (home / "pid").read_text().strip()
    gone = Command(f"while kill -0 {pid} 2>/dev/null; do sleep 0.02; done", timeout_s=DEADLINE_S)
    seen = await sandbox.run(gone)
    assert isinstance(seen, Completed)
    assert seen.exit_code == 0


async def test_a_command_that_cannot_start_leaves_nothing(sandbox: OutpostSandbox, home: Path) -> None:
    with pytest.raises(NotStarted):
        await run_tests(sandbox, command="true", path="nowhere")
    report = await reported(sandbox, command="no-such-runner --all")
    assert "could not be run (exit code 127)" in report.problem
    assert left_behind(home) == []
