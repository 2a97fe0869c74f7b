"""Background jobs that are submitted to the queue of a real Slurm cluster."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.backends.outpost.sandbox import OutpostSandbox
from remote_sandbox_mcp.backends.ssh.machine import open_machine
from remote_sandbox_mcp.core.command import Environment
from remote_sandbox_mcp.core.job import (
    JobLook,
    JobOrder,
    Jobs,
    JobSeen,
    JobState,
    JobWait,
    Submission,
)
from remote_sandbox_mcp.core.sandbox import Sandbox
from remote_sandbox_mcp.core.slurm import Cluster as ClusterSettings
from tests.backends.contract import JobContract, Opener
from tests.backends.contract.basics import eventually
from tests.support.slurm import Cluster

RATE_S = 0.5
_names = (f"train{number}" for number in itertools.count())


def order(script: str, *words: str, **fields: Any) -> JobOrder:
    return JobOrder(session=next(_names), script=script, submission=Submission(words, RATE_S), **fields)


async def open_login(cluster: Cluster, folder: Path, **fields: Any) -> OutpostSandbox:
    machine = replace(cluster.login.machine(**fields), slurm=ClusterSettings(rate_s=RATE_S))
    sandbox = await open_machine(machine, folder / "known_hosts")
    assert isinstance(sandbox, OutpostSandbox)
    return sandbox


@pytest.fixture(scope="module")
def opener(shared_slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opener]:
    folder = tmp_path_factory.mktemp("state")

    async def open_it(environment: Environment) -> Sandbox:
        return await open_login(shared_slurm, folder, environment=environment)

    yield open_it
    shared_slurm.reset()


class TestSubmitted(JobContract):
    """Jobs in a queue keep the contract of all jobs."""

    submission = Submission((), RATE_S)


@pytest.fixture
async def sandbox(slurm: Cluster, tmp_path: Path) -> AsyncIterator[OutpostSandbox]:
    sandbox = await open_login(slurm, tmp_path)
    yield sandbox
    await sandbox.close()


@pytest.fixture
def jobs(sandbox: OutpostSandbox) -> Jobs:
    return sandbox.jobs


async def look(jobs: Jobs, job_id: str, **fields: Any) -> JobSeen:
    (seen,) = await jobs.look([JobLook(job_id=job_id, **fields)])
    return seen


async def test_a_job_goes_through_the_queue_to_its_end(slurm: Cluster, jobs: Jobs) -> None:
    wanted = order("echo out; hostname; echo $SLURM_JOB_ID; exit 3", "--nodelist=n2")
    started = await jobs.start(wanted)
    assert (started.via, started.recovered) == ("slurm", False)
    waited = await jobs.wait(JobLook(job_id=started.job_id), JobWait(seconds=20))
    number = waited.seen.queue.number if waited.seen.queue else ""
    assert (waited.why, waited.seen.state, waited.seen.exit_code) == ("ended", JobState.ENDED, 3)
    assert waited.seen.log.decode() == f"out\nn2\n{number}\nEXIT_CODE=3\n"
    assert slurm.await_state(number, "FAILED")["ExitCode"] == "3:0"


async def test_a_running_job_is_stopped(slurm: Cluster, jobs: Jobs) -> None:
    job = (await jobs.start(order("echo begun; sleep 100"))).job_id
    await jobs.wait(JobLook(job_id=job), JobWait(seconds=20, pattern="begun"))
    stopped = await jobs.stop(JobLook(job_id=job))
    assert (stopped.state, stopped.ending) == (JobState.ENDED, "stopped")


async def test_a_pending_job_says_why_and_is_cancelled(slurm: Cluster, jobs: Jobs) -> None:
    job = (await jobs.start(order("sleep 100", "--begin=now+1hour"))).job_id
    seen = await eventually(lambda: look(jobs, job), lambda seen: bool(seen.queue and seen.queue.reason), "a reason")
    assert (seen.state, seen.queue and seen.queue.reason) == (JobState.PENDING, "BeginTime")
    stopped = await jobs.stop(JobLook(job_id=job))
    assert (stopped.state, stopped.ending, stopped.exit_code) == (JobState.ENDED, "stopped", None)
    assert slurm.squeue() == {}
