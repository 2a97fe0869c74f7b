"""The same on SSH machines, with Python and without."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from remote_sandbox_mcp.backends.ssh.machine import open_machine
from remote_sandbox_mcp.config.schema import Settings
from remote_sandbox_mcp.core.commands.command import Command, Completed, Running
from remote_sandbox_mcp.core.jobs.cards import CardRequest
from remote_sandbox_mcp.core.jobs.job import JobQuery, NoCards
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from remote_sandbox_mcp.core.suites.suite import TestReport
from remote_sandbox_mcp.services.fleet import Fleet as FleetOfMembers
from remote_sandbox_mcp.services.fleet import Member
from remote_sandbox_mcp.services.jobs.service import JobService
from remote_sandbox_mcp.services.suites.service import SuiteService, results_of, run_tests
from tests.support.cards import StandInCards, stand_in_cards
from tests.support.sshd import Fleet, Sshd
from tests.support.waiting import eventually

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


SEES = "echo sees $CUDA_VISIBLE_DEVICES; until [ -e go ]; do sleep 0.05; done; echo '=== 1 passed in 0.1s ==='"


@pytest.fixture(params=[True, False], ids=["with Python", "without Python"])
def cards(request: pytest.FixtureRequest, fleet: Fleet) -> Iterator[tuple[Sshd, StandInCards]]:
    """A machine with one card."""
    sshd = fleet.machine(python=request.param)
    with stand_in_cards(fleet.folder / f"cards-{os.urandom(4).hex()}", 1) as cards:
        (sshd.home / ".bashrc").write_text(f"PATH={cards.bin}:$PATH; export PATH\n")
        yield sshd, cards
    sshd.reset()


async def test_tests_have_cards_of_their_own_until_they_end(cards: tuple[Sshd, StandInCards], tmp_path: Path) -> None:
    machine = await open_machine(cards[0].machine(), tmp_path / "known_hosts")

    async def opened() -> Sandbox:
        return machine

    fleet_of_one = FleetOfMembers([Member("gpu1", lambda: machine.description, opened)])
    jobs = JobService(fleet_of_one, Settings(), None)
    suites = SuiteService(fleet_of_one, jobs)
    try:
        seen = await suites.run_tests("gpu1", command=SEES, patience_s=5, cards=CardRequest(1))
        assert isinstance(seen, Running)
        with pytest.raises(NoCards, match=f"gpu1: 1 of 1 leased by .* until tests-{seen.run_id} ends"):
            await suites.run_tests("gpu1", command="true", cards=CardRequest(1))
        await machine.write("go", b"")
        await machine.run(Command(SEES, run_id=seen.run_id))
        report = await suites.results_of("gpu1", seen.run_id)
        assert isinstance(report, TestReport)
        assert (report.passed, f"sees {cards[1].uuids[0]}" in report.log.head.decode()) == (1, True)

        async def is_free() -> bool:
            (held,) = await machine.jobs.inspect([JobQuery(session=f"tests-{seen.run_id}")])
            return held.is_over

        await eventually(is_free, bool, "the end of the lease")
        report = await suites.run_tests("gpu1", command=SEES, cards=CardRequest(1))
        assert isinstance(report, TestReport)
        assert report.passed == 1
    finally:
        await jobs.close()
        await machine.close()
