"""The watchdog and real jobs: what is killed is resumed, what ended is not, and a person's own restart is respected."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from remote_sandbox_mcp.core.jobs.job import JobStarted
from remote_sandbox_mcp.core.jobs.watch import Policy, Status
from tests.support.jobs import FOREVER, begin, has_printed, in_thread, jobs_on, not_running
from tests.support.sshd import Fleet, Sshd
from tests.support.watched import POLICY, Scene


@pytest.fixture(scope="module")
def user(fleet: Fleet) -> Sshd:
    return fleet.machine("watched")


@pytest.fixture
async def scene(user: Sshd, tmp_path: Path) -> AsyncIterator[Scene]:
    async with jobs_on(user) as (_, sandbox):
        scene = Scene(tmp_path, sandbox)
        yield scene
        scene.database.close()


async def test_a_session_started_again_by_a_person_is_left_to_them(scene: Scene, user: Sshd) -> None:
    jobs = scene.sandbox.jobs
    started = await begin(jobs, FOREVER)
    scene.watch(started, policy=Policy(notify_local=False))
    await in_thread(user, "tmux kill-session -t =train")
    await not_running(jobs, started.job_id)
    assert (await scene.tick()).last_state == "interrupted"
    again = await begin(jobs, "until test -e go; do sleep 0.05; done", log_file="another.log")
    assert (await scene.tick()).job_id == again.job_id
    await in_thread(user, "touch go")
    await not_running(jobs, again.job_id)
    assert (await scene.tick()).status is Status.COMPLETED
    assert scene.told == ["interrupted", "running_restored", "completed"]


async def test_a_session_that_is_not_ours_is_resumed_as_ours(scene: Scene, user: Sshd) -> None:
    await in_thread(user, "tmux new-session -d -s theirs 'echo half > log; exec sleep 1000'")
    theirs = JobStarted(job_id="", session="theirs", log_file=f"{user.home}/log", cwd=str(user.home), via="tmux")
    scene.watch(theirs)
    assert (await scene.tick()).last_state == "running"
    await in_thread(user, "echo half > log; tmux kill-session -t =theirs")
    resumed = await scene.tick()
    assert resumed.job_id == "job-watch-00000001-0-r1"
    await has_printed(scene.sandbox.jobs, resumed.job_id, b"again 7\n")
    await in_thread(user, "touch go")
    await not_running(scene.sandbox.jobs, resumed.job_id)
    assert (await scene.tick()).last_exit_code == 3
    assert scene.told == ["interrupted", "resume_started", "completed"]


async def test_a_resume_that_cannot_begin_is_told_with_its_reason(scene: Scene, user: Sshd) -> None:
    jobs = scene.sandbox.jobs
    started = await begin(jobs, FOREVER)
    scene.watch(started, policy=Policy(**{**vars(POLICY), "resume_cwd": "/nowhere"}))
    await in_thread(user, "tmux kill-session -t =train")
    await not_running(jobs, started.job_id)
    given_up = await scene.tick()
    assert scene.told == ["interrupted", "resume_failed", "exhausted"]
    assert "/nowhere" in given_up.last_error
