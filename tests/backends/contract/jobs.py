"""What the background jobs of every Sandbox that has them keep to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from remote_sandbox_mcp.core.errors import NotStarted
from remote_sandbox_mcp.core.job import JobLook, JobOrder, JobRefused, JobState, JobWait, Submission, new_job_id
from remote_sandbox_mcp.core.sandbox import Sandbox

from .basics import Basics


class JobContract(Basics):
    """Jobs run in a shell; a sandbox without one has its own tests."""

    # Given where jobs are submitted to a queue, in which one may be pending before it runs.
    submission: Submission | None = None

    def order(self, session: str, script: str, **fields: Any) -> JobOrder:
        return JobOrder(session=session, script=script, submission=self.submission, **fields)

    @pytest.fixture
    def session(self) -> str:
        return new_job_id().replace("job-", "test-")

    async def test_a_job_runs_to_its_end(self, sandbox: Sandbox, session: str) -> None:
        started = await sandbox.jobs.start(self.order(session, "echo out; echo err >&2; exit 3"))
        assert (started.session, started.recovered) == (session, False)
        waited = await sandbox.jobs.wait(JobLook(job_id=started.job_id), JobWait(seconds=15))
        assert (waited.why, waited.seen.state, waited.seen.exit_code) == ("ended", JobState.ENDED, 3)
        assert waited.seen.log == b"out\nerr\nEXIT_CODE=3\n"

    async def test_a_job_starts_once_for_its_id(self, sandbox: Sandbox, session: str, folder: str) -> None:
        order = self.order(session, f"echo >> {folder}; sleep 60")
        started = await asyncio.gather(*(sandbox.jobs.start(order) for _ in range(5)))
        assert sorted(each.recovered for each in started) == [False, True, True, True, True]
        stopped = await sandbox.jobs.stop(JobLook(job_id=order.job_id))
        assert (stopped.state, stopped.ending) == (JobState.ENDED, "stopped")
        assert (await sandbox.jobs.start(order)).recovered

    async def test_a_name_is_used_by_one_job_at_a_time(self, sandbox: Sandbox, session: str) -> None:
        first = await sandbox.jobs.start(self.order(session, "sleep 60"))
        with pytest.raises(JobRefused) as refused:
            await sandbox.jobs.start(self.order(session, "sleep 60"))
        assert refused.value.reason == "in_use"
        (seen,) = await sandbox.jobs.look([JobLook(session=session)])
        assert (seen.job_id, seen.is_over) == (first.job_id, False)
        assert self.submission or seen.is_running
        await sandbox.jobs.stop(JobLook(session=session))
        again = await sandbox.jobs.start(self.order(session, "true"))
        assert (await sandbox.jobs.look([JobLook(session=session)]))[0].job_id == again.job_id

    async def test_a_job_is_never_started_in_place_of_one_that_ended(self, sandbox: Sandbox, session: str) -> None:
        first = await sandbox.jobs.start(self.order(session, "true"))
        await sandbox.jobs.wait(JobLook(job_id=first.job_id), JobWait(seconds=15))
        for before, reason in ((first.job_id, "ended"), ("job-0000000000000000", "missing")):
            with pytest.raises(JobRefused) as refused:
                await sandbox.jobs.start(self.order(session, "true", instead_of=before))
            assert refused.value.reason == reason

    async def test_what_cannot_start_is_an_error_at_once(self, sandbox: Sandbox, session: str) -> None:
        for order in (
            self.order(session, "true", cwd="/none"),
            self.order(session, "echo 'open"),
            self.order(session, "true", log_file="/proc/none/log"),
        ):
            with pytest.raises(NotStarted):
                await sandbox.jobs.start(order)
        (seen,) = await sandbox.jobs.look([JobLook(session=session)])
        assert seen.state is JobState.MISSING

    async def test_text_reaches_a_job(self, sandbox: Sandbox, session: str) -> None:
        started = await sandbox.jobs.start(self.order(session, 'echo ready; read -r a; echo "<$a>"'))
        look = JobLook(job_id=started.job_id)
        await sandbox.jobs.wait(look, JobWait(seconds=15, pattern="ready"))
        await sandbox.jobs.send(look, text="it's; $x", keys=["Enter"])
        waited = await sandbox.jobs.wait(look, JobWait(seconds=15))
        assert waited.seen.log == b"ready\n<it's; $x>\nEXIT_CODE=0\n"

    async def test_all_jobs_are_listed(self, sandbox: Sandbox, session: str) -> None:
        started = await sandbox.jobs.start(self.order(session, "exit 2"))
        await sandbox.jobs.wait(JobLook(job_id=started.job_id), JobWait(seconds=15))
        listed = await sandbox.jobs.list()
        assert (listed[0].job_id, listed[0].exit_code, listed[0].log) == (started.job_id, 2, b"")
