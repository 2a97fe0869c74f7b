"""The same on SSH machines, with Python and without."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from remote_sandbox_mcp.backends.ssh.machine import open_machine
from remote_sandbox_mcp.core.commands.command import Command, Completed, Running
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from remote_sandbox_mcp.core.suites.report import TestReport
from remote_sandbox_mcp.services.suites.service import results_of, run_tests
from tests.support.sshd import Fleet

CASES = 30_000
MANY = f"""{{
echo '<testsuite>'
i=0; while [ $i -lt {CASES} ]; do
echo "<testcase classname='a.long.package.name.SomeTest' name='a test with a long name, number $i' time='0.001'/>"
i=$((i + 1)); done
echo '</testsuite>'
}} >out/junit.xml"""


@pytest.fixture(params=[True, False], ids=["with Python", "without Python"])
async def machine(request: pytest.FixtureRequest, fleet: Fleet, tmp_path: Path) -> AsyncIterator[Sandbox]:
    sshd = fleet.machine(python=request.param)
    sandbox = await open_machine(sshd.machine(), tmp_path / "known_hosts")
    yield sandbox
    await sandbox.close()
    sshd.reset()


async def listed(machine: Sandbox) -> str:
    # Other tests have folders there, too.
    seen = await machine.run(Command("find /tmp -maxdepth 1 -name 'rsmcp-tests-*' -user $(id -u) 2>/dev/null"))
    assert isinstance(seen, Completed)
    return seen.stdout.head.decode()


async def test_a_runner_is_found_and_run(machine: Sandbox) -> None:
    await machine.write("project/Makefile", b"test:\n\t@echo 1..2; echo ok 1 - a; echo not ok 2 - b; exit 1\n")
    before = await listed(machine)
    report = await run_tests(machine, path="project")
    assert isinstance(report, TestReport)
    assert (report.runner, report.command, report.passed, report.failed) == ("tap", "make test", 1, 1)
    assert report.complete
    assert await listed(machine) == before


async def test_a_large_report_is_brought_whole(machine: Sandbox) -> None:
    report = await run_tests(machine, command=f"mkdir -p out; {MANY}")
    assert isinstance(report, TestReport)
    assert (report.passed, report.problem, report.complete) == (CASES, "", True)
    assert report.source == "JUnit XML that it wrote: out/junit.xml"


async def test_tests_that_outlast_their_caller_are_reported_later(machine: Sandbox) -> None:
    command = "until [ -e go ]; do sleep 0.05; done; echo '=== 2 passed in 0.1s ==='"
    seen = await run_tests(machine, command=command, patience_s=1)
    assert isinstance(seen, Running)
    await machine.write("go", b"")
    await machine.run(Command(command, run_id=seen.run_id))
    report = await results_of(machine, seen.run_id)
    assert isinstance(report, TestReport)
    assert (report.passed, report.complete) == (2, True)
