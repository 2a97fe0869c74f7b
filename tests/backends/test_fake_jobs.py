"""The jobs for tests keep to what the real ones keep to, and do what a test says."""

from __future__ import annotations

import asyncio

import pytest

from remote_sandbox_mcp.core.errors import BadArgument, NotStarted, Unreachable
from remote_sandbox_mcp.core.jobs.job import JobOrder, JobQuery, JobRefused, JobState, JobWait
from tests.support.fakes.sandbox import FakeSandbox
from tests.support.jobs import begin, look, order


async def test_a_job_prints_ends_and_keeps_its_end() -> None:
    jobs = FakeSandbox().jobs
    job = (await begin(jobs, "train")).job_id
    jobs.print(job, b"a\nb")
    assert (await look(jobs, job, lines=1)).log == b"b"
    jobs.end(job, 3)
    seen = await look(jobs, job)
    assert (seen.state, seen.exit_code, seen.log) == (JobState.ENDED, 3, b"a\nb\nEXIT_CODE=3\n")
    part = await look(jobs, job, cursor=2, most_bytes=2)
    assert (part.log, part.cursor) == (b"b\n", 4)


async def test_an_id_starts_once() -> None:
    jobs = FakeSandbox().jobs
    wanted = order("train")
    started = [await jobs.start(wanted) for _ in range(3)]
    assert [each.recovered for each in started] == [False, True, True]
    jobs.end(wanted.job_id)
    assert (await jobs.start(wanted)).recovered
    assert jobs.started == [wanted]


async def test_only_what_is_gone_is_replaced() -> None:
    jobs = FakeSandbox().jobs
    first = (await begin(jobs, "train")).job_id

    async def refusal(before: str) -> str:
        with pytest.raises(JobRefused) as refused:
            await begin(jobs, "train", instead_of=before)
        return refused.value.reason

    assert await refusal(first) == "running"
    assert await refusal("job-0000000000000000") == "missing"
    jobs.vanish(first, "the machine was restarted", rebooted=True)
    seen = await look(jobs, first)
    assert (seen.state, seen.rebooted) == (JobState.GONE, True)
    second = (await begin(jobs, "train", instead_of=first)).job_id
    assert (await jobs.inspect([JobQuery(session="train")]))[0].job_id == second
    jobs.end(second)
    assert await refusal(second) == "ended"


async def test_names_are_matched_exactly_and_used_once() -> None:
    jobs = FakeSandbox().jobs
    await begin(jobs, "x", "job-10")
    assert (await jobs.inspect([JobQuery(session="job-1")]))[0].state is JobState.MISSING
    jobs.foreign.add("theirs")
    assert (await jobs.inspect([JobQuery(session="theirs")]))[0].foreign
    for session in ("job-10", "theirs"):
        with pytest.raises(JobRefused) as refused:
            await begin(jobs, "x", session)
        assert refused.value.reason == "in_use"


async def test_waits_end_as_the_real_ones_do() -> None:
    jobs = FakeSandbox().jobs
    job = (await begin(jobs, "x")).job_id
    asyncio.get_running_loop().call_later(0.02, jobs.print, job, b"loss=2\n")
    waited = await jobs.wait(JobQuery(job_id=job, cursor=0), JobWait(seconds=5, pattern=r"loss=\d"))
    assert (waited.why, waited.line) == ("pattern", "loss=2")
    assert (await jobs.wait(JobQuery(job_id=job), JobWait(seconds=5, silence_s=0.05))).why == "silence"
    assert (await jobs.wait(JobQuery(job_id=job), JobWait(seconds=0.05))).why == "timeout"
    asyncio.get_running_loop().call_later(0.02, jobs.end, job)
    assert (await jobs.wait(JobQuery(job_id=job), JobWait(seconds=5))).why == "ended"
    with pytest.raises(BadArgument):
        await jobs.wait(JobQuery(job_id=job), JobWait(pattern="("))


async def test_stop_type_list_and_forget() -> None:
    jobs = FakeSandbox().jobs
    first, second = [(await begin(jobs, "x", name)).job_id for name in ("a", "b")]
    await jobs.send(JobQuery(job_id=first), text="yes", keys=["Enter"])
    assert jobs.typed(first) == ["yes", "Enter"]
    stopped = await jobs.stop(JobQuery(session="a"))
    assert (stopped.state, stopped.ending, stopped.exit_code) == (JobState.ENDED, "stopped", 143)
    with pytest.raises(NotStarted):
        await jobs.send(JobQuery(job_id=first), text="yes")
    assert [seen.job_id for seen in await jobs.list()] == [second, first]
    jobs.forget(second)
    assert (await look(jobs, second)).state is JobState.MISSING


async def test_trouble_on_demand() -> None:
    sandbox = FakeSandbox()
    sandbox.fail(Unreachable("no answer"))
    with pytest.raises(Unreachable):
        await begin(sandbox.jobs, "x")
    sandbox.fail(None)
    sandbox.jobs.refuse(JobRefused("unable to enter /none", "cwd"))
    with pytest.raises(JobRefused, match="/none"):
        await begin(sandbox.jobs, "x")
    sandbox.jobs.refuse(None)
    sandbox.jobs.checkpoints["state"] = b"step 5"
    job = (await sandbox.jobs.start(JobOrder(session="a", script="x"))).job_id
    seen = await look(sandbox.jobs, job, checkpoint_path="state", usage=True)
    assert seen.checkpoint is not None
    assert seen.checkpoint.text == b"step 5"
    assert seen.usage is not None
    missing = await look(sandbox.jobs, job, checkpoint_path="none")
    assert missing.checkpoint is not None
    assert missing.checkpoint.problem
