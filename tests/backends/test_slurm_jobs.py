"""Background jobs that are submitted to the queue of a real Slurm cluster."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.backends.link.jobs import read_queue
from remote_sandbox_mcp.backends.link.sandbox import OutpostSandbox
from remote_sandbox_mcp.backends.ssh.machine import open_machine
from remote_sandbox_mcp.core.commands.command import Environment
from remote_sandbox_mcp.core.errors import Unsupported
from remote_sandbox_mcp.core.jobs.job import (
    ArrayCounts,
    Fate,
    JobOrder,
    JobQuery,
    JobRefused,
    Jobs,
    JobSeen,
    JobState,
    JobWait,
    Submission,
)
from remote_sandbox_mcp.core.sandboxes.foreign import Fields
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from remote_sandbox_mcp.core.sandboxes.slurm import Cluster as ClusterSettings
from remote_sandbox_mcp.far.jobs import cluster as jobcluster
from remote_sandbox_mcp.far.jobs import fate as jobfate
from remote_sandbox_mcp.far.jobs import queue as jobqueue
from remote_sandbox_mcp.far.jobs import submit as jobsubmit
from remote_sandbox_mcp.far.jobs import tools as jobtools
from remote_sandbox_mcp.far.outpost import place
from remote_sandbox_mcp.far.outpost.place import Refused
from tests.backends.contract import JobContract, Opener
from tests.backends.contract.basics import eventually
from tests.support.jobs import clean
from tests.support.slurm import Cluster
from tests.support.sshd import wait_until

RATE_S = 0.5
MANY = 200
_names = (f"train{number}" for number in itertools.count())


def order(script: str, *words: str, **fields: Any) -> JobOrder:
    return JobOrder(session=next(_names), script=script, submission=Submission(words, RATE_S), **fields)


async def open_login(cluster: Cluster, folder: Path, rate_s: float = RATE_S, **fields: Any) -> OutpostSandbox:
    machine = replace(cluster.login.machine(**fields), slurm=ClusterSettings(rate_s=rate_s))
    sandbox = await open_machine(machine, folder / "known_hosts")
    assert isinstance(sandbox, OutpostSandbox)
    return sandbox


@pytest.fixture(scope="class")
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
    clean(slurm.login)


@pytest.fixture
def jobs(sandbox: OutpostSandbox) -> Jobs:
    return sandbox.jobs


async def look(jobs: Jobs, job_id: str, **fields: Any) -> JobSeen:
    (seen,) = await jobs.inspect([JobQuery(job_id=job_id, **fields)])
    return seen


async def test_a_job_goes_through_the_queue_to_its_end(slurm: Cluster, jobs: Jobs) -> None:
    wanted = order("echo out; hostname; echo $SLURM_JOB_ID; exit 3", "--nodelist=n2")
    started = await jobs.start(wanted)
    assert (started.via, started.recovered) == ("slurm", False)
    waited = await jobs.wait(JobQuery(job_id=started.job_id), JobWait(seconds=20))
    number = waited.seen.queue.number if waited.seen.queue else ""
    assert (waited.why, waited.seen.state, waited.seen.exit_code) == ("ended", JobState.ENDED, 3)
    assert waited.seen.log.decode() == f"out\nn2\n{number}\nEXIT_CODE=3\n"
    assert slurm.await_state(number, "FAILED")["ExitCode"] == "3:0"


async def test_a_running_job_is_stopped(slurm: Cluster, jobs: Jobs) -> None:
    job = (await jobs.start(order("echo begun; sleep 100"))).job_id
    await jobs.wait(JobQuery(job_id=job), JobWait(seconds=20, pattern="begun"))
    stopped = await jobs.stop(JobQuery(job_id=job))
    assert (stopped.state, stopped.ending) == (JobState.ENDED, "stopped")


async def test_a_pending_job_says_why_and_is_cancelled(slurm: Cluster, jobs: Jobs) -> None:
    job = (await jobs.start(order("sleep 100", "--begin=now+1hour"))).job_id
    seen = await eventually(lambda: look(jobs, job), lambda seen: bool(seen.queue and seen.queue.reason), "a reason")
    assert (seen.state, seen.queue and seen.queue.reason) == (JobState.PENDING, "BeginTime")
    stopped = await jobs.stop(JobQuery(job_id=job))
    assert (stopped.state, stopped.ending, stopped.exit_code) == (JobState.ENDED, "stopped", None)
    assert slurm.squeue() == {}


async def over(jobs: Jobs, job_id: str) -> JobSeen:
    """What is seen of a job when it is over."""
    waited = await jobs.wait(JobQuery(job_id=job_id), JobWait(seconds=60))
    assert waited.why == "ended", waited
    return waited.seen


async def until(jobs: Jobs, job_id: str, *states: JobState, seconds: float = 60.0) -> JobSeen:
    """What is seen of a job as soon as it is in one of these states."""
    deadline = asyncio.get_running_loop().time() + seconds
    while (seen := await look(jobs, job_id)).state not in states:
        assert asyncio.get_running_loop().time() < deadline, seen
        await asyncio.sleep(0.5)
    return seen


async def begun(jobs: Jobs, wanted: JobOrder) -> tuple[str, str]:
    """Start a job that prints "begun"; its id and its number in the queue."""
    await jobs.start(wanted)
    waited = await jobs.wait(JobQuery(job_id=wanted.job_id), JobWait(seconds=30, pattern="begun"))
    assert waited.why == "pattern", waited
    assert waited.seen.queue
    return wanted.job_id, waited.seen.queue.number


FOREVER = "echo begun; sleep 600"


async def test_each_fate_is_told_apart(slurm: Cluster, jobs: Jobs) -> None:
    on_n1, on_n2 = "--nodelist=n1", "--nodelist=n2"
    eat = "echo begun; exec python3 -c 'x = bytearray(600 << 20); import time; time.sleep(60)'"
    limited, preempted, cancelled, hungry, failed, requeued = [
        await begun(jobs, each)
        for each in (
            order(FOREVER, on_n2),
            order(FOREVER, on_n2, "--partition=low", "--cpus-per-task=2"),
            order(FOREVER, on_n2),
            order(eat, on_n1, "--mem=50M"),
            order(FOREVER, on_n1),
            order(FOREVER, on_n1),
        )
    ]
    # Controllers look at time limits every half minute.
    slurm.expire(limited[1])
    slurm.admin("scancel", cancelled[1])
    slurm.sbatch("true", "--partition=high", on_n2, "--cpus-per-task=3")
    slurm.admin("scontrol", "update", f"JobId={requeued[1]}", "Requeue=1")
    slurm.admin("scontrol", "requeue", requeued[1])
    gone, ended = JobState.GONE, JobState.ENDED
    seen = {
        name: await over(jobs, job)
        for name, (job, _) in {
            "hungry": hungry,
            "cancelled": cancelled,
            "preempted": preempted,
            "requeued": requeued,
        }.items()
    }
    slurm.crash("n1")
    seen |= {"failed": await over(jobs, failed[0]), "limited": await over(jobs, limited[0])}
    assert {name: (each.state, each.fate) for name, each in seen.items()} == {
        "hungry": (ended, Fate.OUT_OF_MEMORY),
        "cancelled": (ended, Fate.CANCELLED),
        "preempted": (gone, Fate.PREEMPTED),
        "requeued": (gone, Fate.REQUEUED),
        "failed": (gone, Fate.NODE_FAILED),
        "limited": (gone, Fate.TIME_LIMIT),
    }
    assert (await look(jobs, hungry[0])).fate is Fate.OUT_OF_MEMORY
    assert (seen["hungry"].ending, seen["cancelled"].ending) == ("out_of_memory", "cancelled")
    assert seen["failed"].reason == "its node n1 failed"


async def test_a_job_that_may_be_requeued_runs_again(slurm: Cluster, jobs: Jobs) -> None:
    wanted = order("echo begun ${SLURM_RESTART_COUNT:-0} $TOKEN; sleep 600", "--requeue", env={"TOKEN": "secret"})
    job, number = await begun(jobs, wanted)
    slurm.admin("scontrol", "requeue", number)
    waiting = await until(jobs, job, JobState.PENDING)
    assert waiting.queue
    assert waiting.queue.number == number
    waited = await jobs.wait(JobQuery(job_id=job), JobWait(seconds=60, pattern="begun 1 secret"))
    assert (waited.why, waited.seen.state) == ("pattern", JobState.RUNNING)
    assert waited.seen.queue
    assert waited.seen.queue.restarts == 1


async def test_a_job_without_a_submission_runs_on_the_login_node(slurm: Cluster, jobs: Jobs) -> None:
    here = JobOrder(session=next(_names), script="echo [$SLURM_JOB_ID]; exit 7")
    assert (await jobs.start(here)).via == "tmux"
    waited = await jobs.wait(JobQuery(job_id=here.job_id), JobWait(seconds=20))
    assert (waited.seen.exit_code, waited.seen.log, waited.seen.queue) == (7, b"[]\nEXIT_CODE=7\n", None)
    assert slurm.squeue() == {}


async def test_a_dependency_is_told(jobs: Jobs) -> None:
    _, number = await begun(jobs, order(FOREVER))
    after = (await jobs.start(order("true", f"--dependency=afterok:{number}"))).job_id
    seen = await eventually(lambda: look(jobs, after), lambda seen: bool(seen.queue and seen.queue.reason), "a reason")
    assert seen.queue
    assert (seen.state, seen.queue.reason) == (JobState.PENDING, "Dependency")
    assert seen.queue.dependency.startswith(f"afterok:{number}")


async def test_the_elements_of_an_array_are_counted_and_looked_at(jobs: Jobs) -> None:
    script = "id=$SLURM_ARRAY_TASK_ID; echo element $id; if [ $id -lt 2 ]; then sleep 600; fi; exit $id"
    job = (await jobs.start(order(script, "--array=0-4"))).job_id

    async def counts() -> JobSeen:
        return await look(jobs, job)

    seen = await eventually(
        counts,
        lambda seen: bool(seen.queue and seen.queue.array == ArrayCounts(running=2, ended=3, failed=3)),
        "three to have ended beside two that run",
    )
    third = await look(jobs, job, element="3")
    assert (third.state, third.exit_code, third.log) == (JobState.ENDED, 3, b"element 3\nEXIT_CODE=3\n")
    assert third.log_file == seen.log_file.replace(".log", "-3.log")
    one = await jobs.stop(JobQuery(job_id=job, element="1"))
    assert (one.state, one.ending) == (JobState.ENDED, "stopped")
    assert (await counts()).state is JobState.RUNNING
    whole = await jobs.stop(JobQuery(job_id=job))
    assert (whole.state, whole.ending) == (JobState.ENDED, "stopped")
    assert whole.queue
    assert whole.queue.array == ArrayCounts(ended=5, failed=5)


async def test_a_pending_array_is_cancelled_in_part_and_as_a_whole(jobs: Jobs) -> None:
    job = (await jobs.start(order("true", "--array=1-3", "--begin=now+1hour"))).job_id
    await jobs.stop(JobQuery(job_id=job, element="2"))
    rest = await look(jobs, job)
    assert (rest.state, rest.queue and rest.queue.array) == (
        JobState.PENDING,
        ArrayCounts(pending=2, ended=1, failed=1),
    )
    stopped = await jobs.stop(JobQuery(job_id=job))
    assert (stopped.state, stopped.ending) == (JobState.ENDED, "stopped")
    again, missing = [await look(jobs, job), await look(jobs, job, element="4")]
    assert (again.state, again.queue and again.queue.array) == (JobState.ENDED, ArrayCounts(ended=3, failed=3))
    assert (missing.state, missing.reason) == (JobState.MISSING, f"{missing.session} has no element 4")


async def test_an_array_has_ended_when_all_have(jobs: Jobs) -> None:
    job = (await jobs.start(order("exit $((SLURM_ARRAY_TASK_ID / 3))", "--array=1-3%2"))).job_id
    waited = await jobs.wait(JobQuery(job_id=job), JobWait(seconds=30))
    assert (waited.seen.state, waited.seen.exit_code, waited.seen.ending) == (JobState.ENDED, 1, "exited")


async def test_a_node_without_python_runs_the_same_job(slurm: Cluster, jobs: Jobs) -> None:
    script = 'echo begun $NAME $SLURM_JOB_ID; command -v python3; trap "echo saved; exit 5" TERM; sleep 600 & wait'
    wanted = order(script, "--partition=bare", env={"NAME": "it's"})
    job, number = await begun(jobs, wanted)
    with pytest.raises(Unsupported, match="no Python"):
        await jobs.send(JobQuery(job_id=job), text="x")
    stopped = await jobs.stop(JobQuery(job_id=job))
    assert (stopped.state, stopped.ending, stopped.exit_code) == (JobState.ENDED, "stopped", 5)
    assert stopped.log.decode() == f"begun it's {number}\nsaved\nEXIT_CODE=5\n"
    ended = (await jobs.start(order("exit 4", "--partition=bare"))).job_id
    waited = await jobs.wait(JobQuery(job_id=ended), JobWait(seconds=20))
    assert (waited.seen.state, waited.seen.exit_code) == (JobState.ENDED, 4)


async def test_a_signal_reaches_the_process_that_handles_it(slurm: Cluster, jobs: Jobs) -> None:
    program = "import signal, sys; signal.signal(signal.SIGUSR1, lambda *_: sys.exit(6))"
    waits = f"{program}; print('begun', flush=True); signal.pause()"
    job, number = await begun(jobs, order(f'python3 -c "{waits}"; echo "after $?"'))
    slurm.run("scancel", "--signal=USR1", "--batch", number)
    waited = await jobs.wait(JobQuery(job_id=job), JobWait(seconds=20))
    assert waited.seen.log == b"begun\nafter 6\nEXIT_CODE=0\n"


async def test_the_environment_is_the_callers_and_the_nodes(jobs: Jobs) -> None:
    node = "$CUDA_VISIBLE_DEVICES $SLURM_JOB_ID [$SSH_CONNECTION$TMUX]"
    script = f"echo $GIVEN {node} $(umask) $(tty >/dev/null && echo terminal)"
    wanted = order(script, "--gres=gpu:a100:2", env={"GIVEN": "a b", "CUDA_VISIBLE_DEVICES": "7"})
    await jobs.start(wanted)
    waited = await jobs.wait(JobQuery(job_id=wanted.job_id), JobWait(seconds=20))
    assert waited.seen.queue
    assert waited.seen.log.decode().splitlines()[0] == f"a b 0,1 {waited.seen.queue.number} [] 0022 terminal"


async def test_jobs_of_others_are_listed_looked_at_and_stopped(slurm: Cluster, jobs: Jobs) -> None:
    number = slurm.sbatch("echo hello; sleep 600", "--job-name=by hand")
    slurm.await_state(number, "RUNNING")
    name = f"slurm-{number}"
    listed = await eventually(jobs.list, lambda listed: any(each.foreign for each in listed), "the queue's answer")
    assert [(each.session, each.command) for each in listed if each.foreign] == [(name, "by hand")]
    (seen,) = await jobs.inspect([JobQuery(session=name)])
    assert (seen.state, seen.log, seen.via) == (JobState.RUNNING, b"hello\n", "slurm")
    stopped = await jobs.stop(JobQuery(session=name))
    assert (stopped.state, stopped.ending) == (JobState.ENDED, "stopped")
    assert slurm.state(number) == "CANCELLED"
    ended = slurm.sbatch("exit 3")
    other = JobQuery(session=f"slurm-{ended}")
    await eventually(
        lambda: jobs.inspect([other]), lambda seen: seen[0].state is not JobState.MISSING, "the next answer"
    )
    waited = await jobs.wait(other, JobWait(seconds=20))
    assert (waited.seen.state, waited.seen.exit_code, waited.seen.reason) == (JobState.ENDED, 3, "")
    (missing,) = await jobs.inspect([JobQuery(session="slurm-999999")])
    assert missing.state is JobState.MISSING


REFUSED = {
    "no such partition": (("--partition=nowhere",), "invalid partition"),
    "more than there is": (("--mem=900G",), "Memory specification can not be satisfied"),
    "no such node": (("--nodelist=nowhere",), "Invalid node name"),
}


@pytest.mark.parametrize(("words", "why"), REFUSED.values(), ids=REFUSED)
async def test_what_the_queue_refuses_is_said_and_leaves_nothing(
    slurm: Cluster, jobs: Jobs, words: tuple[str, ...], why: str
) -> None:
    wanted, logs = order("true", *words), slurm.login.home / ".codex_logs"
    # Earlier tests may have run on the same cluster.
    before = sorted(logs.rglob("*"))
    with pytest.raises(JobRefused, match=f"(?i)Slurm refused the job: .*{why}") as refused:
        await jobs.start(wanted)
    assert "\n" not in str(refused.value)
    assert (await look(jobs, wanted.job_id)).state is JobState.MISSING
    assert sorted(logs.rglob("*")) == before


# What goes wrong between us and the queue


def put_ahead(cluster: Cluster, **programs: str) -> str:
    """A Python for the outpost that finds these shell scripts ahead of Slurm's own programs; their calls are noted."""
    folder = cluster.login.home / "ahead"
    folder.mkdir()
    python = f'PATH={folder}:$PATH exec python3 "$@"'
    for name, text in {**programs, "python": python}.items():
        path = folder / name
        note = f'echo "$$" >>{folder}/{name}.calls'
        path.write_text(f"#!/bin/sh\n{note}\n{text}\n")
        path.chmod(0o755)
    for path in (folder, *folder.iterdir()):
        os.chown(path, cluster.login.uid, -1)
    return str(folder / "python")


def calls(cluster: Cluster, program: str) -> int:
    path = cluster.login.home / "ahead" / f"{program}.calls"
    return len(path.read_text().splitlines()) if path.exists() else 0


def kill_outposts(cluster: Cluster) -> None:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_ours = process.stat().st_uid == cluster.login.uid
            if is_ours and b"zlib.decompress" in (process / "cmdline").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)


async def test_many_are_submitted_at_once_and_the_queue_is_asked_once(slurm: Cluster, tmp_path: Path) -> None:
    python = put_ahead(slurm, squeue='exec /usr/bin/squeue "$@"')
    first = await open_login(slurm, tmp_path, python=python, rate_s=30.0)
    second = await open_login(slurm, tmp_path, python=python, rate_s=30.0)
    try:
        wanted = [order("true", "--begin=now+1hour") for _ in range(MANY)]
        await asyncio.gather(*(first.jobs.start(each) for each in wanted))
        looks = [JobQuery(job_id=each.job_id, lines=0) for each in wanted]
        seen = [*await first.jobs.inspect(looks), *await second.jobs.inspect(looks), *await second.jobs.list(MANY)]
        assert {each.state for each in seen} == {JobState.PENDING}
        assert len({each.queue.number for each in seen if each.queue}) == MANY
        assert calls(slurm, "squeue") <= 1
    finally:
        await first.close()
        await second.close()
        slurm.admin("scancel", f"--user={slurm.login.user}")
        clean(slurm.login)


async def test_an_answer_of_sbatch_that_is_lost_is_found_in_the_queue(slurm: Cluster, tmp_path: Path) -> None:
    slow = '/usr/bin/sbatch "$@" >/dev/null; touch ~/submitted; sleep 2'
    sandbox = await open_login(slurm, tmp_path, python=put_ahead(slurm, sbatch=slow))
    try:
        wanted = order(FOREVER)
        starting = asyncio.create_task(sandbox.jobs.start(wanted))
        await asyncio.to_thread(wait_until, (slurm.login.home / "submitted").exists, what="sbatch")
        kill_outposts(slurm)
        started = await starting
        assert (started.recovered, len(slurm.squeue()), calls(slurm, "sbatch")) == (True, 1, 1)
        assert (await until(sandbox.jobs, wanted.job_id, JobState.RUNNING)).queue
    finally:
        await sandbox.close()
        clean(slurm.login)


async def test_jobs_need_no_outpost(slurm: Cluster, jobs: Jobs) -> None:
    ready = slurm.login.home / "go"
    pending = order("true", "--begin=now+1hour")
    await jobs.start(pending)
    running, _ = await begun(jobs, order(FOREVER))
    ending, number = await begun(jobs, order(f"echo begun; until [ -e {ready} ]; do sleep 0.1; done; exit 9"))
    kill_outposts(slurm)
    ready.touch()
    slurm.await_state(number, "FAILED")
    states = [(await look(jobs, job)).state for job in (pending.job_id, running, ending)]
    assert states == [JobState.PENDING, JobState.RUNNING, JobState.ENDED]
    assert (await look(jobs, ending)).exit_code == 9


async def test_a_controller_that_is_away_is_told_with_the_last_state(slurm: Cluster, jobs: Jobs) -> None:
    ready = slurm.login.home / "go"
    job, _ = await begun(jobs, order(f"echo begun; until [ -e {ready} ]; do sleep 0.1; done"))
    waiting = (await jobs.start(order("true", "--begin=now+1hour"))).job_id
    await until(jobs, waiting, JobState.PENDING)
    slurm.stop_controller()
    seen = await eventually(
        lambda: look(jobs, waiting), lambda seen: bool(seen.queue and seen.queue.trouble), "trouble"
    )
    assert (seen.state, seen.queue and seen.queue.age_s > 0) == (JobState.PENDING, True)
    assert seen.queue
    assert (await look(jobs, job)).state is JobState.RUNNING
    ready.touch()
    assert (await jobs.wait(JobQuery(job_id=job), JobWait(seconds=20))).seen.exit_code == 0
    with pytest.raises(JobRefused, match="Unable to contact slurm controller"):
        await jobs.start(order("true"))
    slurm.start_controller()
    seen = await eventually(
        lambda: look(jobs, waiting), lambda seen: bool(seen.queue and not seen.queue.trouble), "an answer"
    )
    assert seen.state is JobState.PENDING


async def test_a_job_belongs_to_every_login_node_of_its_cluster(slurm: Cluster, jobs: Jobs) -> None:
    wanted = order(FOREVER)
    job, _ = await begun(jobs, wanted)
    path = records(slurm, job) / "order"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "node": "login2", "host": "login2", "machine": "x", "boot": "y"}))
    seen = [await look(jobs, job), *await jobs.inspect([JobQuery(session=wanted.session)]), *await jobs.list()]
    assert [(each.job_id, each.state) for each in seen] == [(job, JobState.RUNNING)] * 3
    assert (await jobs.start(wanted)).recovered
    own = path.read_text()
    path.write_text(json.dumps({**record, "slurm": {**record["slurm"], "cluster": "other"}}))
    elsewhere = await look(jobs, job)
    assert (elsewhere.state, elsewhere.reason) == (
        JobState.MISSING,
        "it was submitted to the Slurm cluster other, so ask there",
    )
    path.write_text(own)
    assert (await jobs.stop(JobQuery(job_id=job))).ending == "stopped"


async def test_a_job_in_place_of_another_is_submitted_as_that_one_was(slurm: Cluster, jobs: Jobs) -> None:
    first = order(FOREVER, "--partition=low", "--nodelist=n2")
    job, _ = await begun(jobs, first)
    later = replace(first, job_id=f"{job}-r1", instead_of=job, submission=None)
    with pytest.raises(JobRefused) as refused:
        await jobs.start(later)
    assert refused.value.reason == "running"
    slurm.sbatch("true", "--partition=high", "--nodelist=n2", "--exclusive")
    assert (await over(jobs, job)).fate is Fate.PREEMPTED
    assert (await jobs.start(later)).via == "slurm"
    waited = await jobs.wait(JobQuery(job_id=later.job_id), JobWait(seconds=30, pattern="begun"))
    assert waited.seen.queue
    assert slurm.job(waited.seen.queue.number)["Partition"] == "low"


def records(cluster: Cluster, job_id: str) -> Path:
    (folder,) = cluster.login.home.glob(f".local/state/remote-sandbox/jobs/slurm-*/{job_id}")
    return folder


def submitted_long_ago(cluster: Cluster, job_id: str) -> None:
    path = records(cluster, job_id) / "slurm"
    path.write_text(json.dumps({**json.loads(path.read_text()), "submitted": 1.0}))


async def test_what_the_queue_has_forgotten_is_asked_of_the_accounting_once(
    slurm_with_accounting: Cluster, tmp_path: Path
) -> None:
    cluster = slurm_with_accounting
    forgetful = 'if [ -e ~/forgotten ]; then exit 0; fi; exec /usr/bin/squeue "$@"'
    python = put_ahead(cluster, squeue=forgetful, sacct='exec /usr/bin/sacct "$@"')
    sandbox = await open_login(cluster, tmp_path, python=python)
    jobs = sandbox.jobs
    try:
        cancelled, number = await begun(jobs, order(FOREVER))
        killed, killed_number = await begun(jobs, order(FOREVER))
        cluster.admin("scancel", number)
        os.kill(json.loads((records(cluster, killed) / "begun").read_text())["keeper"], signal.SIGKILL)
        for each, state in ((number, "CANCELLED by 0"), (killed_number, "FAILED")):
            said = partial(cluster.run, "sacct", "-nXPo", "State", "-j", each)
            await asyncio.to_thread(wait_until, lambda: said().strip() == state, what=state, seconds=20)  # noqa: B023
        (cluster.login.home / "forgotten").touch()
        for job in (cancelled, killed):
            submitted_long_ago(cluster, job)
        first = await eventually(lambda: look(jobs, cancelled), lambda seen: seen.is_over, "the queue's next answer")
        second = await look(jobs, killed)
        assert (first.fate, first.ending, first.reason) == (
            Fate.CANCELLED,
            "cancelled",
            "it was cancelled by an administrator",
        )
        assert (second.state, second.exit_code, second.reason) == (JobState.ENDED, 137, "its keeper noted no end")
        assert calls(cluster, "sacct") == 1
    finally:
        await sandbox.close()
        clean(cluster.login)


async def test_without_accounting_slurms_own_words_in_its_output_tell_a_fate(slurm: Cluster, tmp_path: Path) -> None:
    forgetful = 'if [ -e ~/forgotten ]; then exit 0; fi; exec /usr/bin/squeue "$@"'
    sandbox = await open_login(slurm, tmp_path, python=put_ahead(slurm, squeue=forgetful))
    jobs = sandbox.jobs
    try:
        preempted, number = await begun(jobs, order(FOREVER, "--partition=low", "--nodelist=n2"))
        slurm.sbatch("true", "--partition=high", "--nodelist=n2", "--exclusive")
        (slurm.login.home / "forgotten").touch()
        slurm.await_state(number, "PREEMPTED")
        submitted_long_ago(slurm, preempted)
        assert (await over(jobs, preempted)).fate is Fate.PREEMPTED
    finally:
        await sandbox.close()
        clean(slurm.login)


# Programs of Slurm's that hang, fail or print nonsense


def row_of(number: str, job: str, element: str, comment: str, name: str = "train", command: str = "/x") -> str:
    """What squeue prints of a pending job."""
    known = ["(Priority)", "1794865309", "N/A", "main", "n[1-2]", "(null)", "2026-11-16T21:45:36"]
    return "\x1f".join([number, job, element, "PENDING", *known, command, comment, name])


def install(folder: Path, **programs: str) -> None:
    for name, text in programs.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\necho >>{folder}/{name}.calls\n{text}\n")
        path.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of Slurm's programs of a login node that is this process, with short patience."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(place, "candidates", lambda: [os.fsencode(tmp_path / "base")])
    monkeypatch.setattr(jobqueue, "LEARNED_NAME", ["test"])
    # A program that hangs is ended with all that descends from its caller: here that would be the tests' daemons, too.
    monkeypatch.setattr(jobtools, "descendants", lambda root, group: [])
    for module, name in ((jobsubmit, "SBATCH_S"), (jobqueue, "SQUEUE_S"), (jobfate, "SQUEUE_S")):
        monkeypatch.setattr(module, name, 0.3)
    return folder


Prepared = tuple[bytes, dict[str, Any]]


@pytest.fixture
def prepared(programs: Path, tmp_path: Path) -> Prepared:
    """A job's folder, ready to be submitted, and its order."""
    slurm = jobsubmit.submission_of({"words": ["--signal=USR1@60"]})
    record = {"id": "job-0123456789", "session": "train", "cwd": "/", "log": "/tmp/x", "ordered": 0.0, "slurm": slurm}
    folder = tmp_path / "job-0123456789"
    folder.mkdir()
    (folder / "order").write_text(json.dumps(record))
    return os.fsencode(folder), record


HANGS, FAILS = "exec sleep 5", "echo 'x: error: away' >&2; exit 1"
KNOWS = f"echo '{row_of('41', '41', 'N/A', 'rsmcp:job-0123456789')}'"
TROUBLE = {
    "hangs, and was not heard": (HANGS, "exit 0", "slurm", "sbatch did not answer within"),
    "hangs, and the queue is away": (HANGS, FAILS, "unsure", "it may be submitted or not"),
    "hangs, and so does the queue": (HANGS, HANGS, "unsure", "it may be submitted or not"),
    "was cut off, and not heard": ("echo Socket timed out; exit 1", "exit 0", "slurm", "the queue does not have it"),
    "refuses with nonsense": ("printf 'sbatch: error: \\033[31mred\\n\\001two'; exit 1", "exit 0", "slurm", "two"),
    "says nothing": ("exit 1", "exit 0", "slurm", "it did not say why"),
}


@pytest.mark.parametrize(("sbatch", "squeue", "reason", "why"), TROUBLE.values(), ids=TROUBLE)
def test_an_sbatch_that_does_not_answer_is_told_as_what_it_is(
    programs: Path, prepared: Prepared, sbatch: str, squeue: str, reason: str, why: str
) -> None:
    install(programs, sbatch=sbatch, squeue=squeue)
    with pytest.raises(Refused) as refused:
        jobcluster.SlurmCluster(10.0).submit(*prepared)
    assert refused.value.reason == reason
    assert why in str(refused.value)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("known_by", ["comment", "script"])
def test_a_job_whose_sbatch_hung_is_found_and_not_submitted_again(
    programs: Path, prepared: Prepared, known_by: str
) -> None:
    # Some sites write comments of their own.
    row = row_of("41", "41", "N/A", "the site's", command=f"{os.fsdecode(prepared[0])}/script")
    install(programs, sbatch=HANGS, squeue=KNOWS if known_by == "comment" else f'echo "{row}"')
    for _ in range(2):
        cluster = jobcluster.SlurmCluster(10.0)
        cluster.submit(*prepared)
        assert cluster.number_of(prepared[0]) == "41"
    assert (programs / "sbatch.calls").read_text() == "\n"


@pytest.mark.parametrize("squeue", [HANGS, FAILS, "head -c 300000 /dev/urandom"], ids=["hangs", "fails", "rubbish"])
def test_a_queue_that_makes_no_sense_is_not_asked_at_once_again(
    programs: Path, prepared: Prepared, squeue: str
) -> None:
    install(programs, sbatch="echo 41", squeue=squeue)
    jobcluster.SlurmCluster(10.0).submit(*prepared)
    seen = [jobcluster.SlurmCluster(10.0).state(*prepared) for _ in range(3)]
    assert [each["state"] for each in seen] == ["pending"] * 3
    assert bool(seen[0]["queue"]["trouble"]) == (squeue in (HANGS, FAILS))
    assert (programs / "squeue.calls").read_text() == "\n"


def test_a_job_that_ends_while_the_queue_is_asked_has_ended(programs: Path, prepared: Prepared) -> None:
    end = {"exit": 3, "signal": "", "ending": "exited", "ended": 1.0, "survivors": []}
    noted = f"echo '{json.dumps(end)}' >{os.fsdecode(prepared[0])}/end"
    install(programs, sbatch="echo 41", squeue=f"{noted}; {FAILS}")
    jobcluster.SlurmCluster(10.0).submit(*prepared)
    seen = jobcluster.SlurmCluster(10.0).state(*prepared)
    assert (seen["state"], seen["exit"], seen["queue"]["number"]) == ("ended", 3, "41")


def test_a_machine_without_sbatch_says_so(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobqueue, "LEARNED_NAME", [])
    monkeypatch.setattr(jobqueue, "SLURM_FOLDERS", ())
    monkeypatch.setenv("PATH", str(programs))
    with pytest.raises(Refused, match="sbatch is not found on this machine"):
        jobsubmit.submission_of({"words": []})


# Foreign text


RUBBISH = "slurm_load_jobs error\n1\x1f2\n;rm\x1f" + "\x1f" * 20 + "\n" + "x" * 100000 + "\n"
ROW = row_of("7_1", "7", "1", "rsmcp:job-1 x", "a\x1fb")


def test_only_rows_are_taken_from_what_squeue_prints() -> None:
    (row,) = jobqueue.read_rows(RUBBISH + ROW + "\n" + RUBBISH)
    assert (row["number"], row["job"], row["element"], row["state"]) == ("7_1", "7", "1", "PENDING")
    assert (row["start"], row["end"], row["dependency"], row["name"]) == (1794865309.0, 0.0, "", "a\x1fb")
    assert row["submitted"] > 1e9


ARRAYS = {
    "0-3%2": ["0", "1", "2", "3"],
    "1,5,7-8": ["1", "5", "7", "8"],
    "0-9:4": ["0", "4", "8"],
    "x,2": ["2"],
    "": [],
}


@pytest.mark.parametrize(("spec", "elements"), ARRAYS.items(), ids=ARRAYS)
def test_the_elements_of_an_array_are_read(spec: str, elements: list[str]) -> None:
    assert jobcluster.array_elements(spec) == elements


KEYS = {"C-c": b"\x03", "M-x": b"\x1bx", "Enter": b"\r", "F5": b"\x1b[15~", "Up": b"\x1b[A", "-": b"-", "S-Tab": b"\t"}


@pytest.mark.parametrize(("key", "data"), KEYS.items(), ids=KEYS)
def test_keys_are_sent_as_a_terminal_sends_them(key: str, data: bytes) -> None:
    assert jobcluster.key_bytes(key) == data


QUEUE: dict[str, Any] = {
    "number": "7", "state": "PENDING", "reason": "Priority", "start": 1.0, "end": 0.0, "partition": "", "nodes": "",
    "dependency": "", "restarts": 0, "array": None, "age": 0.0, "trouble": "",
}  # fmt: skip
LIES: dict[str, dict[str, Any]] = {
    "no number": {"number": 7},
    "a list for a word": {"reason": ["x"]},
    "a time that is none": {"start": float("nan")},
    "counts below nothing": {"array": {"pending": -1, "running": 0, "ended": 0, "failed": 0, "gone": 0}},
    "counts missing": {"array": {}},
    "too large": {"restarts": 1 << 70},
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_what_makes_no_sense_is_no_queue(lie: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"not|missing|nothing"):
        read_queue(Fields({**QUEUE, **lie}))


def test_what_the_queue_says_is_harmless_to_show() -> None:
    seen = read_queue(Fields({**QUEUE, "reason": "\x1b[31mred\x07\u202e" + "x" * 10_000}))
    assert seen.reason.startswith("red")
    assert seen.reason.isprintable()
    assert len(seen.reason) <= 300


# The script, as the documentation shows it


SHOWN: dict[str, Any] = {
    "session": "train", "umask": 0o22, "cwd": "/home/alice/run", "shell": ["/usr/bin/bash", "-c"],
    "log": "/home/alice/run/.codex_logs/train.log",
    "slurm": {
        "words": ["--cpus-per-task=8", "--gres=gpu:a100:2", "--partition=gpu", "--signal=B:USR1@120", "--time=4:00:00"],
        "requeue": False,
    },
}  # fmt: skip
SHOWN_FOLDER = b"/home/alice/.local/state/remote-sandbox/jobs/slurm-hal/job-3f9c0d5e7a1b2c4d"


def test_the_documentation_shows_the_script_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    script = jobsubmit.batch_script(SHOWN_FOLDER, SHOWN).decode()
    page = Path(__file__).parents[2] / "docs/slurm.md"
    assert f"```sh\n{script}```" in page.read_text()


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="needs shellcheck")
def test_the_script_is_plain_shell(tmp_path: Path) -> None:
    path = tmp_path / "script"
    odd = {**SHOWN, "cwd": "/it's here", "log": "/a b/c%d.log"}
    path.write_bytes(jobsubmit.batch_script(SHOWN_FOLDER, odd))
    done = subprocess.run(["shellcheck", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
