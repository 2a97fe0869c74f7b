"""The watchdog and real jobs: what is killed is resumed, what ended is not, and a person's own restart is respected."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.backends.outpost.sandbox import OutpostSandbox
from remote_sandbox_mcp.core.job import JobStarted
from remote_sandbox_mcp.core.watch import Event, Policy, Status, Watch
from remote_sandbox_mcp.jobs.supervise import Supervisor
from remote_sandbox_mcp.store.database import Database
from remote_sandbox_mcp.store.jobs import JobRecords
from remote_sandbox_mcp.store.watches import Watches
from tests.support.jobs import FOREVER, begin, has_printed, in_thread, jobs_on, not_running
from tests.support.sshd import Fleet, Sshd

AGAIN = 'echo "again $STEP"; echo \'{"step": 8}\' > ckpt.json; until test -e go; do sleep 0.05; done; exit 3'
POLICY = Policy(
    notify_local=False, auto_resume=True, resume_command=AGAIN, resume_env={"STEP": "7"}, resume_delay_s=0,
    checkpoint_path="ckpt.json", checkpoint_format="json",
)  # fmt: skip


class Scene:
    """A watchdog with a clock of its own, and a machine."""

    def __init__(self, folder: Path, sandbox: OutpostSandbox) -> None:
        self.sandbox = sandbox
        self.database = Database(folder / "state.db")
        self.watches = Watches(self.database)
        self.now = 1_000_000.0
        self.told: list[str] = []
        self._supervisor = Supervisor(
            self.watches, JobRecords(self.database), self._get, self._hear, clock=lambda: self.now
        )

    async def _get(self, name: str) -> OutpostSandbox:
        return self.sandbox

    async def _hear(self, channel: str, watch: Watch, event: Event) -> None:
        self.told.append(event.type.value)

    def watch(self, started: JobStarted, **more: Any) -> None:
        fields: dict[str, Any] = {
            "job_id": started.job_id, "log_file": started.log_file, "cwd": started.cwd, "policy": POLICY, **more
        }  # fmt: skip
        self.watches.add(Watch(sandbox="box", session=started.session, **fields))

    async def tick(self) -> Watch:
        self.now += 300
        self.due = await self._supervisor.tick()
        found = self.watches.get(1)
        assert found
        return found


@pytest.fixture(scope="module")
def user(fleet: Fleet) -> Sshd:
    return fleet.machine("watched")


@pytest.fixture
async def scene(user: Sshd, tmp_path: Path) -> AsyncIterator[Scene]:
    async with jobs_on(user) as (_, sandbox):
        scene = Scene(tmp_path, sandbox)
        yield scene
        scene.database.close()


async def test_a_killed_job_is_resumed_once_and_then_seen_to_its_end(scene: Scene, user: Sshd) -> None:
    jobs = scene.sandbox.jobs
    started = await begin(jobs, FOREVER)
    await has_printed(jobs, started.job_id)
    scene.watch(started)
    assert (await scene.tick()).last_summary.endswith("last line: begun")
    await in_thread(user, "tmux kill-session -t =train")
    await not_running(jobs, started.job_id)
    resumed = await scene.tick()
    assert (resumed.job_id, resumed.resume_attempts) == (f"{started.job_id}-r1", 1)
    await has_printed(jobs, resumed.job_id, b"again 7\n")
    assert (await scene.tick()).last_checkpoint == '{"step":8}'
    await in_thread(user, "touch go")
    await not_running(jobs, resumed.job_id)
    ended = await scene.tick()
    assert (ended.status, ended.last_exit_code) == (Status.COMPLETED, 3)
    assert ended.last_log_tail.splitlines()[-2:] == ["again 7", "EXIT_CODE=3"]
    assert scene.told == ["interrupted", "resume_started", "completed"]
    assert scene.due == math.inf


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
