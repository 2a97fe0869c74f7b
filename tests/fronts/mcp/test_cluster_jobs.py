"""Jobs on a cluster as a client sees them, over a queue that does what a test says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.config.schema import Settings
from remote_sandbox_mcp.core.errors import Unreachable
from remote_sandbox_mcp.core.jobs.job import ArrayCounts, Fate, JobQuery, JobState, Submission
from remote_sandbox_mcp.core.jobs.watch import Decision, Status
from remote_sandbox_mcp.core.sandboxes.slurm import Cluster
from remote_sandbox_mcp.services.fleet import Fleet
from tests.fronts.mcp.conftest import connected, member
from tests.support.fakes.sandbox import FakeSandbox
from tests.support.server import Caller, text_of

UNWATCHED: dict[str, Any] = {"watch": False}
UNGUARDED: dict[str, Any] = {"ensure_watchdog": False}
DEFAULTS = Cluster({"partition": "gpu", "time": "4:00:00"}, rate_s=30.0)


def app_with(cluster: Cluster, fake: FakeSandbox, other: FakeSandbox) -> App:
    login = member(fake)
    login.slurm = cluster
    return App(Fleet([login, member(other)]), settings=Settings(expose_advanced_tools=True))


@pytest.fixture
def app(fake: FakeSandbox, other: FakeSandbox) -> App:
    return app_with(DEFAULTS, fake, other)


@pytest.fixture
async def tools(app: App) -> AsyncIterator[Caller]:
    async with connected(app) as caller:
        yield caller


async def submit(tools: Caller, fake: FakeSandbox, **given: Any) -> str:
    """Submit a job named t; gives its id."""
    await tools.call("exec_bash_background", command="train", session_name="t", **{**UNWATCHED, **given})
    return fake.jobs.started[-1].job_id


# Where a job goes


async def test_a_job_on_a_cluster_is_submitted_with_the_operators_options_and_those_of_the_call(
    tools: Caller, fake: FakeSandbox
) -> None:
    slurm = {"gpus": "a100:2", "time": "1:00:00", "array": "0-9%2"}
    answer = await tools.ask("exec_bash_background", command="train", session_name="t", slurm=slurm, **UNWATCHED)
    assert (answer.structured_content or {})["status"] == "submitted"
    assert text_of(answer).startswith("submitted t to the queue of fake; its log is ")
    words = ("--array=0-9%2", "--gpus=a100:2", "--partition=gpu", "--time=1:00:00")
    assert fake.jobs.started[-1].submission == Submission(words, 30.0)


@pytest.mark.parametrize("slurm", [None, True, {}], ids=["nothing", "true", "no options"])
async def test_without_options_the_operators_are_used(tools: Caller, fake: FakeSandbox, slurm: Any) -> None:
    await submit(tools, fake, **({} if slurm is None else {"slurm": slurm}))
    assert fake.jobs.started[-1].submission == Submission(("--partition=gpu", "--time=4:00:00"), 30.0)


@pytest.mark.parametrize(
    ("tool", "given", "says"),
    [
        ("exec_bash_background", {"slurm": {"partion": "x"}}, "did you mean partition?"),
        ("exec_bash_background", {"slurm": {"output": "/etc/passwd"}}, "which cannot be given here"),
        ("exec_bash_background", {"slurm": False}, "leave slurm out to submit it to the queue"),
        ("exec_bash_background", {"slurm": {}, "sandbox_name": "other"}, "other is none: leave it out"),
        ("exec_bash_background", {"slurm": {"time": 5}, "sandbox_name": "other"}, "other is none: leave it out"),
        ("exec_bash_background", {"slurm": True, "sandbox_name": "other"}, "other is none: leave it out"),
        ("deploy_app", {"port": 8000, "sandbox_id": "fake"}, "create_sandbox(on='fake')"),
    ],
    ids=["typo", "ours to choose", "login node", "no options", "no cluster", "no queue", "app"],
)
async def test_what_cannot_be_submitted_is_refused_before_anything_starts(
    tools: Caller, fake: FakeSandbox, tool: str, given: dict[str, Any], says: str
) -> None:
    problem = await tools.fail(tool, command="x", **given)
    assert says in problem["error"]
    assert fake.jobs.started == []


async def test_light_jobs_and_apps_run_on_the_login_node_where_the_operator_allows_that(
    fake: FakeSandbox, other: FakeSandbox
) -> None:
    async with connected(app_with(Cluster(login_jobs=True), fake, other)) as tools:
        for name in ("fake", "other"):
            light = {"sandbox_name": name, "slurm": False, **UNWATCHED}
            assert (await tools.call("exec_bash_background", command="x", **light))["status"] == "started"
        await tools.call("deploy_app", command="serve", port=8000, sandbox_id="fake", timeout=1)
        assert [order.submission for order in fake.jobs.started] == [None, None]


# Pending


async def test_a_pending_job_says_why_in_every_answer(tools: Caller, fake: FakeSandbox) -> None:
    job = await submit(tools, fake)
    fake.jobs.queue(job, number="1234", reason="Resources", partition="gpu", start=time.time() + 2000)
    for tool, begins in (("check_background_task", ""), ("wait_background_task", "timeout: ")):
        more: dict[str, Any] = {"timeout_s": 0} if begins else {}
        answer = await tools.ask(tool, tmux_session="t", **more)
        fields = answer.structured_content or {}
        assert (fields["running"], fields["pending"]) == (False, True)
        assert fields["queue"].pop("start_ts") > time.time()
        assert fields["queue"].pop("start_at").endswith("Z")
        assert fields["queue"] == {"job": "1234", "reason": "Resources", "partition": "gpu"}
        first = text_of(answer).splitlines()[0]
        assert first.startswith(f"on fake: {begins}pending: Resources, expected to start at ")
        assert first.endswith("(in 33 min); job 1234 in partition gpu")
    (listed,) = (await tools.call("list_background_tasks", status="pending"))["tasks"]
    assert (listed["status"], listed["queue"]["reason"]) == ("pending", "Resources")
    assert (await tools.call("list_background_tasks", status="running"))["tasks"] == []


async def test_a_wait_goes_on_from_the_queue_to_the_end_and_tells_both(tools: Caller, fake: FakeSandbox) -> None:
    job = await submit(tools, fake)
    said: list[str] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        said.append(message or "")
        if message == "pending: Priority":
            fake.jobs.run(job)
            fake.jobs.print(job, b"step 1\n")
        elif message == "step 1":
            fake.jobs.end(job, 0)

    waited = await tools.call("wait_background_task", progress=hear, tmux_session="t", timeout_s=20)
    assert (waited["reason"], waited["exit_code"]) == ("ended", 0)
    assert said == ["pending: Priority", "step 1"]


async def test_a_line_and_silence_are_waited_for_as_soon_as_it_runs(tools: Caller, fake: FakeSandbox) -> None:
    job = await submit(tools, fake)
    quiet = await tools.call("wait_background_task", tmux_session="t", silence_s=0.01, timeout_s=0.1)
    assert quiet["reason"] == "timeout"
    waiting = asyncio.ensure_future(tools.call("wait_background_task", tmux_session="t", until_pattern="step"))
    fake.jobs.run(job)
    fake.jobs.print(job, b"step 1\n")
    assert (await waiting)["matched_line"] == "step 1"


async def test_nothing_can_be_typed_into_a_pending_job_and_that_is_said(tools: Caller, fake: FakeSandbox) -> None:
    await submit(tools, fake)
    problem = await tools.fail("send_background_input", tmux_session="t", text="y")
    assert problem["error"].startswith("on fake: t is pending: Priority; text can be typed into it when it runs")


async def test_stopping_a_pending_job_ends_it_and_its_watch(tools: Caller, fake: FakeSandbox) -> None:
    await submit(tools, fake, watch=True, **UNGUARDED)
    stopped = await tools.call("stop_background_task", tmux_session="t")
    assert (stopped["running"], stopped["stopped"], stopped.get("pending")) == (False, True, None)
    (watch,) = (await tools.call("list_background_watches"))["watches"]
    assert watch["status"] == Status.COMPLETED.value


async def test_a_pending_job_that_cannot_be_cancelled_stays_watched(
    tools: Caller, fake: FakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    await submit(tools, fake, watch=True, **UNGUARDED)

    async def stop(look: JobQuery, grace_s: float = 0) -> Any:
        return (await fake.jobs.inspect([look]))[0]

    monkeypatch.setattr(fake.jobs, "stop", stop)
    answer = await tools.call("stop_background_task", tmux_session="t")
    assert (answer["pending"], "still in the queue" in answer["error"]) == (True, True)
    (watch,) = (await tools.call("list_background_watches"))["watches"]
    assert watch["status"] == Status.ACTIVE.value


async def test_a_pending_job_whose_machine_is_away_is_remembered_as_pending(
    tools: Caller, app: App, fake: FakeSandbox
) -> None:
    job = await submit(tools, fake, watch=True, **UNGUARDED)
    record = app.jobs.registry.records.get(job)
    assert record
    assert record.state == "pending"
    app.jobs.registry.records.prune(time.time() + 1)
    assert app.jobs.registry.records.get(job)


# How it ends


async def test_what_the_cluster_did_is_told_by_its_word(tools: Caller, fake: FakeSandbox) -> None:
    job = await submit(tools, fake)
    fake.jobs.run(job)
    fake.jobs.vanish(job, "", fate=Fate.TIME_LIMIT)
    answer = await tools.ask("check_background_task", tmux_session="t")
    fields = answer.structured_content or {}
    assert (fields["fate"], "exit_code" in fields) == ("time_limit", False)
    assert fields["error"] == "interrupted: its time limit was reached"
    assert text_of(answer).startswith(f"on fake: {fields['error']}; job 1\n")


async def test_a_job_that_reached_its_time_limit_is_submitted_again_and_seen_to_its_end(
    tools: Caller, app: App, fake: FakeSandbox
) -> None:
    more = {"auto_resume": True, "resume_command": "train --resume", "resume_delay_s": 0, "interval_s": 1}
    first = await submit(tools, fake, watch=True, **more, **UNGUARDED)
    watches, supervisor = app.jobs.registry.watches, app.jobs.supervisor()

    async def round_of_the_watchdog() -> str:
        (watch,) = watches.list()
        watches.commit(Decision(replace(watch, due=0.0)), time.time())
        await supervisor.tick()
        return watches.list()[0].last_state

    assert await round_of_the_watchdog() == "pending"
    fake.jobs.run(first)
    assert await round_of_the_watchdog() == "running"
    fake.jobs.vanish(first, "", fate=Fate.PREEMPTED)
    assert await round_of_the_watchdog() == "pending"
    again = fake.jobs.started[-1]
    # The far side takes over how the first one was submitted.
    assert (again.script, again.instead_of, again.submission) == ("train --resume", first, None)
    record = app.jobs.registry.records.get(again.job_id)
    assert record
    assert record.state == "pending"
    listed = (await tools.call("list_background_tasks"))["tasks"]
    assert [(task["status"], task.get("fate")) for task in listed] == [("pending", None), ("gone", "preempted")]
    events = [event["summary"] for event in (await tools.call("list_background_watch_events"))["events"]]
    why = "it was preempted: another job needed its place"
    assert events == [
        f"t on fake was interrupted: {why}; it will be resumed soon, attempt 1 of 1",
        "t on fake was submitted again (attempt 1 of 1)",
    ]


# Arrays


async def test_an_array_is_one_job_with_counts(tools: Caller, fake: FakeSandbox) -> None:
    job = await submit(tools, fake, slurm={"array": "0-9"})
    fake.jobs.run(job)
    fake.jobs.queue(job, array=ArrayCounts(pending=2, running=3, ended=5, failed=1))
    answer = await tools.ask("check_background_task", tmux_session="t")
    assert answer.structured_content
    assert answer.structured_content["queue"]["array"] == {"pending": 2, "running": 3, "ended": 5, "failed": 1}
    assert "; array: 2 pending, 3 running, 5 ended (1 failed)" in text_of(answer)


async def test_what_happens_to_one_element_is_not_taken_for_the_whole_array(
    tools: Caller, app: App, fake: FakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await submit(tools, fake, slurm={"array": "0-9"}, watch=True, **UNGUARDED)
    fake.jobs.run(job)
    asked: list[JobQuery] = []

    async def stop(look: JobQuery, grace_s: float = 0) -> Any:
        asked.append(look)
        (seen,) = await fake.jobs.inspect([look])
        return replace(seen, state=JobState.ENDED, ending="stopped")

    monkeypatch.setattr(fake.jobs, "stop", stop)
    stopped = await tools.call("stop_background_task", tmux_session="t[3]")
    assert (stopped["stopped"], asked[0].session, asked[0].element) == (True, "t", "3")
    assert stopped["tmux_session"] == "t[3]"
    (watch,) = (await tools.call("list_background_watches"))["watches"]
    record = app.jobs.registry.records.get(job)
    assert (watch["status"], record and record.state) == ("active", "pending")
    problem = await tools.fail("watch_background_task", tmux_session="t[3]", **UNGUARDED)
    assert "an array is watched as a whole" in problem["error"]


async def test_an_element_is_not_answered_for_by_the_record_of_its_array(
    tools: Caller, fake: FakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await submit(tools, fake, slurm={"array": "0-9"})
    fake.jobs.end(job, 0)
    await tools.call("check_background_task", tmux_session="t")

    async def away(looks: Any) -> Any:
        raise Unreachable("fake does not answer")

    monkeypatch.setattr(fake.jobs, "inspect", away)
    assert (await tools.call("check_background_task", tmux_session="t"))["exit_code"] == 0
    await tools.fail("check_background_task", tmux_session="t[3]")
