"""Background jobs on SSH machines without Python, on a real sshd: lines that break, keepers that die, restarts."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from remote_sandbox_mcp.backends.ssh.connection import LoginGate
from remote_sandbox_mcp.backends.ssh.machine import PLAIN, describe
from remote_sandbox_mcp.backends.ssh.plain import PlainSandbox
from remote_sandbox_mcp.core.jobs.job import JobQuery, JobRefused, JobState, JobWait
from tests.support.jobs import FOREVER, begin, clean, has_printed, look, order, run
from tests.support.line import Line
from tests.support.sshd import Fleet, Sshd, wait_until
from tests.support.waiting import eventually

NODE_IN_PATH = "#!/bin/sh\necho another-node\n"


@pytest.fixture(scope="module")
def shared(fleet: Fleet) -> Sshd:
    return fleet.machine("bare", python=False, tmux=False)


@pytest.fixture
def bare(shared: Sshd) -> Sshd:
    clean(shared)
    return shared


def sandbox_of(sshd: Sshd, folder: Path, port: int = 0) -> PlainSandbox:
    machine = sshd.machine(port=port or sshd.port, connect_timeout_s=2.0)
    return PlainSandbox(describe(machine, PLAIN), machine.environment, LoginGate(machine, folder / "known_hosts"))


@pytest.fixture
async def sandbox(bare: Sshd, tmp_path: Path) -> AsyncIterator[PlainSandbox]:
    sandbox = sandbox_of(bare, tmp_path)
    yield sandbox
    await sandbox.close()
    clean(bare)


def folder_of(sshd: Sshd, job_id: str) -> Path:
    (folder,) = (sshd.home / ".local/state/remote-sandbox/shell").glob(f"*/{job_id}")
    return folder


def record(sshd: Sshd, job_id: str) -> list[str]:
    return (folder_of(sshd, job_id) / "pid").read_text().split()


def kill_keeper(sshd: Sshd, job_id: str) -> None:
    os.kill(int(record(sshd, job_id)[2]), signal.SIGKILL)


def kill_all_of(sshd: Sshd, job_id: str) -> None:
    kill_keeper(sshd, job_id)
    os.killpg(int(record(sshd, job_id)[0]), signal.SIGKILL)


async def test_a_job_outlives_its_line_and_its_end_is_known(bare: Sshd, sandbox: PlainSandbox, tmp_path: Path) -> None:
    assert sandbox.description.capabilities.survives_disconnect
    started = await begin(sandbox.jobs, "echo begun; while ! [ -e go ]; do sleep 0.05; done; exit 7")
    await has_printed(sandbox.jobs, started.job_id)
    await sandbox.close()
    bare.kill_sessions()
    (bare.home / "go").touch()
    other = sandbox_of(bare, tmp_path)
    waited = await other.jobs.wait(JobQuery(session="train"), JobWait(seconds=15))
    assert (waited.why, waited.seen.exit_code, waited.seen.log) == ("ended", 7, b"begun\nEXIT_CODE=7\n")
    await other.close()


@pytest.mark.parametrize("delay_s", [0.0, 0.02, 0.05, 0.1])
async def test_a_cut_at_any_moment_starts_a_job_once(bare: Sshd, tmp_path: Path, delay_s: float) -> None:
    async with Line(bare.port) as line:
        sandbox = sandbox_of(bare, tmp_path, line.port)
        await sandbox.open()
        starting = asyncio.ensure_future(begin(sandbox.jobs, "echo ran >> count; sleep 60"))
        await asyncio.sleep(delay_s)
        line.cut()
        started = await starting
        await eventually(lambda: asyncio.to_thread((bare.home / "count").exists), bool, "the job")
        assert (await look(sandbox.jobs, started.job_id)).is_running
        assert (bare.home / "count").read_text() == "ran\n"
        await sandbox.close()


async def test_a_job_of_another_boot_is_interrupted_by_the_restart(bare: Sshd, sandbox: PlainSandbox) -> None:
    job = (await begin(sandbox.jobs)).job_id
    words = record(bare, job)
    kill_all_of(bare, job)
    change(folder_of(bare, job) / "pid", " ".join([*words[:5], "another-boot/1"]))
    ordered = folder_of(bare, job) / "order"
    # Before the machine was started, as it must have been.
    change(ordered, "ordered 1 1\n" + ordered.read_text().partition("\n")[2])
    seen = await look(sandbox.jobs, job)
    assert (seen.state, seen.rebooted, seen.reason) == (JobState.GONE, True, "the machine was restarted")


def change(file: Path, text: str) -> None:
    """Written in place, so that it stays its user's."""
    file.write_text(text + "\n")


async def test_a_job_of_a_copy_of_the_machine_is_not_taken_for_one_that_a_restart_ended(
    bare: Sshd, sandbox: PlainSandbox
) -> None:
    """The same name and the same home, but another boot id, and ordered after this machine was started."""
    wanted = order(FOREVER)
    await sandbox.jobs.start(wanted)
    words = record(bare, wanted.job_id)
    change(folder_of(bare, wanted.job_id) / "pid", " ".join([*words[:5], "another-boot/1"]))
    seen = await look(sandbox.jobs, wanted.job_id)
    assert (seen.state, seen.rebooted) == (JobState.MISSING, False)
    assert "another machine that has the same home folder" in seen.reason
    assert (await sandbox.jobs.start(wanted)).recovered


async def test_machines_that_share_a_home_have_their_own_jobs(
    bare: Sshd, sandbox: PlainSandbox, tmp_path: Path
) -> None:
    started = await begin(sandbox.jobs)
    (bare.home / "bin").mkdir()
    (bare.home / "bin/uname").write_text(NODE_IN_PATH)
    (bare.home / "bin/uname").chmod(0o755)
    (bare.home / ".bashrc").write_text(f"PATH={bare.home}/bin:$PATH\n")
    other = sandbox_of(bare, tmp_path)
    assert await other.jobs.list() == []
    seen = await look(other.jobs, started.job_id)
    assert (seen.state, seen.rebooted) == (JobState.MISSING, False)
    # The name is free there.
    there = await begin(other.jobs)
    assert [each.job_id for each in await other.jobs.list()] == [there.job_id]
    (bare.home / ".bashrc").write_text("")
    assert [each.job_id for each in await sandbox.jobs.list()] == [started.job_id]
    await other.close()


async def test_a_refused_job_leaves_nothing(bare: Sshd, sandbox: PlainSandbox) -> None:
    with pytest.raises(JobRefused, match="has a syntax error"):
        await begin(sandbox.jobs, "echo 'a")
    with pytest.raises(JobRefused, match="unable to enter /none"):
        await begin(sandbox.jobs, "#" * 200_000, cwd="/none")
    assert await sandbox.jobs.list() == []
    await asyncio.to_thread(wait_until, lambda: bare.processes() == {}, what="the end of all processes")


async def test_a_job_can_be_interrupted(sandbox: PlainSandbox) -> None:
    """Below anything that a shell starts with & interrupts would be ignored for ever."""
    seen = await run(sandbox.jobs, "grep SigIgn /proc/self/status; trap 'exit 5' INT; kill -INT $$; sleep 9")
    assert int(seen.log.split()[1], 16) & 0b110 == 0
    assert seen.exit_code == 5
