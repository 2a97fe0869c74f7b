"""Background jobs and their watches as a client sees them, over jobs that end when a test says so."""

from __future__ import annotations

import asyncio
import base64
import zlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from mcp.types import ImageContent

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.config.schema import Settings
from remote_sandbox_mcp.core.commands.command import Running
from remote_sandbox_mcp.core.errors import LostContact, NotStarted, Unreachable
from remote_sandbox_mcp.core.jobs.job import JobState
from remote_sandbox_mcp.core.jobs.watch import Status
from remote_sandbox_mcp.core.permission import Hook, Notify
from remote_sandbox_mcp.core.sandboxes.sandbox import Capabilities
from remote_sandbox_mcp.core.texts.image import Image, recognise
from remote_sandbox_mcp.services.fleet import Fleet
from tests.fronts.mcp.conftest import connected, member
from tests.support.fakes.sandbox import FakeSandbox
from tests.support.pace import Deadline
from tests.support.server import AGENT, Caller

NOTIFY = Notify(
    webhooks=("https://hooks.example.com/me/",), hooks={"tell": Hook(("/bin/true",)), "codex": Hook(("x",))}
)
UNWATCHED: dict[str, Any] = {"watch": False}
UNGUARDED: dict[str, Any] = {"ensure_watchdog": False}


@pytest.fixture
def app(fake: FakeSandbox, other: FakeSandbox) -> App:
    return App(Fleet([member(fake), member(other)]), settings=Settings(expose_advanced_tools=True, notify=NOTIFY))


@pytest.fixture
async def tools(app: App) -> AsyncIterator[Caller]:
    async with connected(app) as caller:
        yield caller


def job_of(fake: FakeSandbox) -> str:
    return fake.jobs.started[-1].job_id


async def test_a_started_job_says_where_it_is(tools: Caller, fake: FakeSandbox) -> None:
    started = await tools.call("exec_bash_background", command="train", session_name="t1", cwd="/work", **UNWATCHED)
    assert started == {
        "status": "started",
        "tmux_session": "t1",
        "log_file": "/work/.codex_logs/t1.log",
        "sandbox": "fake",
    }
    (order,) = fake.jobs.started
    assert (order.script, order.session, order.cwd) == ("train", "t1", "/work")


async def test_a_job_without_a_name_gets_one_of_its_own(tools: Caller) -> None:
    names = {(await tools.call("exec_bash_background", command="x", **UNWATCHED))["tmux_session"] for _ in range(20)}
    assert len(names) == 20
    assert all(name.startswith("bg-") for name in names)


async def test_a_name_is_made_such_that_tmux_takes_it(tools: Caller) -> None:
    started = await tools.call("exec_bash_background", command="x", session_name="v1.2: 训练", **UNWATCHED)
    assert started["tmux_session"] == "v1_2__训练"
    assert (await tools.call("check_background_task", tmux_session="v1.2: 训练"))["running"]


async def test_a_job_is_followed_from_start_to_end(tools: Caller, fake: FakeSandbox) -> None:
    await tools.call("exec_bash_background", command="x", session_name="t", **UNWATCHED)
    fake.jobs.print(job_of(fake), b"one\ntwo\n")
    seen = await tools.call("check_background_task", tmux_session="t", last_n_lines=1)
    assert (seen["running"], seen["log_tail"], seen["log_bytes"], seen["log_cursor"]) == (True, "two", 8, 8)
    assert seen["usage"] == {"processes": 1, "memory_mb": 0, "cpu_s": 0}
    fake.jobs.print(job_of(fake), b"three\n")
    newer = await tools.call("check_background_task", tmux_session="t", log_cursor=seen["log_cursor"])
    assert newer["log_tail"] == "three"
    fake.jobs.end(job_of(fake), 3)
    ended = await tools.call("wait_background_task", tmux_session="t")
    assert (ended["reason"], ended["running"], ended["exit_code"]) == ("ended", False, 3)


async def test_a_zero_is_told(tools: Caller, fake: FakeSandbox) -> None:
    await tools.call("exec_bash_background", command="x", session_name="t", **UNWATCHED)
    fake.jobs.end(job_of(fake), 0)
    assert (await tools.call("check_background_task", tmux_session="t"))["exit_code"] == 0


async def test_an_interrupted_job_has_no_exit_code_but_a_reason(tools: Caller, fake: FakeSandbox) -> None:
    await tools.call("exec_bash_background", command="x", session_name="t", **UNWATCHED)
    fake.jobs.vanish(job_of(fake), "the machine was restarted", rebooted=True)
    seen = await tools.call("check_background_task", tmux_session="t")
    assert "exit_code" not in seen
    assert (seen["outcome"], seen["error"]) == ("interrupted", "interrupted: the machine was restarted")


@pytest.mark.parametrize("tool", ["check_background_task", "wait_background_task", "stop_background_task"])
async def test_a_job_that_is_unknown_or_never_started_is_an_error(tools: Caller, fake: FakeSandbox, tool: str) -> None:
    await tools.call("exec_bash_background", command="x", session_name="train", **UNWATCHED)
    unknown = await tools.fail(tool, tmux_session="trian")
    assert unknown["code"] == "unknown_task"
    assert "did you mean train?" in unknown["error"]
    unknown = await tools.fail(tool, tmux_session="nothing-like-it")
    assert "list_background_tasks" in unknown["error"]
    # Its folder was made, and nothing was begun in it.
    job = fake.jobs._jobs[job_of(fake)]
    job.seen = replace(job.seen, state=JobState.GONE, reason="it was never begun", via="")
    problem = await tools.fail(tool, tmux_session="train")
    assert problem["code"] == "not_started"
    assert "train never started: it was never begun; start it again" in problem["error"]


async def test_a_job_whose_start_reached_nobody_never_started(tools: Caller, fake: FakeSandbox) -> None:
    fake.jobs.refuse(LostContact("lost", outcome="unknown", so_far=Running("t")))
    await tools.fail("exec_bash_background", command="x", session_name="t", **UNWATCHED)
    problem = await tools.fail("wait_background_task", tmux_session="t")
    assert "t never started: fake knows nothing of it" in problem["error"]


async def test_the_checkpoint_of_a_job_is_shown_with_its_state(tools: Caller, fake: FakeSandbox) -> None:
    given = {"checkpoint_path": "at.json", "checkpoint_format": "json", **UNGUARDED}
    await tools.call("exec_bash_background", command="x", session_name="t", **given)
    fake.jobs.checkpoints["at.json"] = b'{"step": 7}'
    seen = await tools.call("check_background_task", tmux_session="t")
    assert seen["checkpoint"]["value"] == {"step": 7}
    fake.jobs.checkpoints["at.json"] = b"half"
    assert "not valid JSON" in (await tools.call("check_background_task", tmux_session="t"))["checkpoint"]["error"]


async def test_numbers_of_a_job_are_told_without_its_log(tools: Caller, fake: FakeSandbox) -> None:
    await tools.call("exec_bash_background", command="x", session_name="t", **UNWATCHED)
    assert "metrics" not in await tools.call("check_background_task", tmux_session="t")
    # Far more than the lines that are asked for.
    lines = "".join(f"step {step}/40000 loss={2500 - step} {'x' * 200}\n" for step in range(2000))
    fake.jobs.print(job_of(fake), lines.encode())
    seen = await tools.call("check_background_task", tmux_session="t", last_n_lines=1)
    assert seen["metrics"] == {"loss": {"last": 501.0, "min": 501.0, "trend": "falling"}}
    fake.jobs.print(job_of(fake), b"step 2000/40000 loss=nan acc=0.5\n")
    asked = fake.jobs.looks
    waited = await tools.call("wait_background_task", tmux_session="t", timeout_s=0)
    assert waited["metrics"]["loss"] == {"min": 501.0, "trend": "nan"}
    assert waited["metrics"]["acc"] == {"last": 0.5, "min": 0.5}
    # What is new came with the answer: nothing else is read.
    assert fake.jobs.looks - asked <= 2


async def test_the_loss_of_a_job_is_an_image_for_who_asks(tools: Caller, fake: FakeSandbox) -> None:
    await tools.call("exec_bash_background", command="x", session_name="t", **UNWATCHED)
    given = {"tmux_session": "t", "curves": True}
    assert (await tools.call("check_background_task", **given))[
        "image"
    ] == "no numbers to draw in its log or checkpoint"
    lines = "".join(
        f"step {step} train loss {4 - step / 10} val loss {4.5 - step / 10} lr 3e-4\n" for step in range(20)
    )
    fake.jobs.print(job_of(fake), lines.encode())
    answer = await tools.client.call_tool("check_background_task", given)
    assert answer.structured_content is not None
    said = "val loss (blue), train loss (brown) over steps 0 to 19, from 2.1 to 4.5"
    assert answer.structured_content["image"] == said
    (image,) = [block for block in answer.content if isinstance(block, ImageContent)]
    data = base64.b64decode(image.data)
    assert (image.mime_type, recognise(data)) == ("image/png", Image("image/png", 480, 200, True))
    # All of it is there, and each curve in its colour.
    pixels = zlib.decompress(data[data.index(b"IDAT") + 4 : data.index(b"IEND") - 8])
    assert len(pixels) == 200 * 481
    assert set(pixels) == {0, 1, 2, 3}


async def test_a_wait_ends_with_a_line_with_silence_or_with_its_time(tools: Caller, fake: FakeSandbox) -> None:
    await tools.call("exec_bash_background", command="x", session_name="t", **UNWATCHED)
    assert (await tools.call("wait_background_task", tmux_session="t", timeout_s=0))["reason"] == "timeout"
    assert (await tools.call("wait_background_task", tmux_session="t", silence_s=0.01))["reason"] == "silence"
    waiting = asyncio.ensure_future(tools.call("wait_background_task", tmux_session="t", until_pattern="step [0-9]+"))
    fake.jobs.print(job_of(fake), b"at step 7 of 9\n")
    assert (await waiting)["matched_line"] == "at step 7 of 9"


async def test_a_pattern_that_is_none_is_refused(tools: Caller) -> None:
    await tools.call("exec_bash_background", command="x", session_name="t", **UNWATCHED)
    problem = await tools.fail("wait_background_task", tmux_session="t", until_pattern="(")
    assert problem["code"] == "bad_argument"


async def test_the_end_of_a_command_of_exec_bash_can_be_waited_for(app: App, fake: FakeSandbox) -> None:
    from tests.support.fakes.sandbox import Answer, after

    app.patience_s = 0.05
    fake.answers = {"slow": Answer("so far\n", then=after(0.2, Answer("end\n")))}
    async with connected(app) as tools:
        handle = (await tools.run("slow"))["tmux_session"]
        app.patience_s = 20
        waited = await tools.call("wait_background_task", tmux_session=handle)
        assert (waited["reason"], waited["exit_code"]) == ("ended", 0)
        problem = await tools.fail("wait_background_task", tmux_session=handle, until_pattern="x")
        assert "for jobs" in problem["error"]


async def test_what_a_job_prints_is_made_harmless(tools: Caller, fake: FakeSandbox) -> None:
    await tools.call("exec_bash_background", command="x", session_name="t", **UNWATCHED)
    fake.jobs.print(job_of(fake), b"\x1b]0;title\x07red \xff\n")
    seen = await tools.call("wait_background_task", tmux_session="t", until_pattern="red")
    assert "\x1b" not in seen["log_tail"] + seen["matched_line"]


async def test_text_and_keys_are_typed_in_that_order(tools: Caller, fake: FakeSandbox) -> None:
    await tools.call("exec_bash_background", command="pdb", session_name="t", **UNWATCHED)
    assert await tools.call("send_background_input", tmux_session="t", text="p x") == {
        "status": "sent",
        "tmux_session": "t",
    }
    await tools.call("send_background_input", tmux_session="t", keys=["C-c"])
    await tools.call("send_background_input", tmux_session="t", text="y", enter=False)
    assert fake.jobs.typed(job_of(fake)) == ["p x", "Enter", "C-c", "y"]
    problem = await tools.fail("send_background_input", tmux_session="t")
    assert "give text, keys, or both" in problem["error"]


async def test_a_job_is_found_where_it_was_started_whatever_is_active(tools: Caller, other: FakeSandbox) -> None:
    await tools.call("exec_bash_background", command="x", session_name="t", sandbox_name="other", **UNWATCHED)
    assert (await tools.call("check_background_task", tmux_session="t"))["running"]
    assert (await tools.call("stop_background_task", tmux_session="t"))["stopped"]


async def test_jobs_of_all_sandboxes_are_listed_newest_first(
    tools: Caller, fake: FakeSandbox, other: FakeSandbox
) -> None:
    for name, place in (("a", "fake"), ("b", "other"), ("c", "fake")):
        await tools.call(
            "exec_bash_background", command=f"run {name}", session_name=name, sandbox_name=place, **UNWATCHED
        )
    fake.jobs.end(fake.jobs.started[0].job_id, 2)
    listed = (await tools.call("list_background_tasks"))["tasks"]
    assert [(it["tmux_session"], it["sandbox"], it["status"]) for it in listed] == [
        ("c", "fake", "running"),
        ("b", "other", "running"),
        ("a", "fake", "ended"),
    ]
    assert listed[2]["exit_code"] == 2
    only = await tools.call("list_background_tasks", sandbox_name="fake", status="running")
    assert [it["tmux_session"] for it in only["tasks"]] == ["c"]


async def test_a_machine_that_does_not_answer_still_shows_what_is_known_of_it(
    tools: Caller, fake: FakeSandbox, other: FakeSandbox
) -> None:
    await tools.call("exec_bash_background", command="x", session_name="a", **UNWATCHED)
    await tools.call("exec_bash_background", command="y", session_name="b", sandbox_name="other", **UNWATCHED)
    other.fail(Unreachable("other is unplugged"))
    listed = {it["tmux_session"]: it for it in (await tools.call("list_background_tasks"))["tasks"]}
    assert listed["a"]["status"] == "running"
    assert listed["b"]["status"] == "unknown"
    assert listed["b"]["connection_error"] == "other is unplugged"


async def test_a_refused_start_leaves_nothing_behind(tools: Caller, app: App, fake: FakeSandbox) -> None:
    fake.jobs.refuse(NotStarted("fake: unable to enter /no: No such file or directory"))
    problem = await tools.fail("exec_bash_background", command="x", session_name="t", **UNGUARDED)
    assert problem["code"] == "not_started"
    assert not app.jobs.registry.watches.list()
    assert not app.jobs.registry.records.list()


async def test_a_start_of_which_nothing_was_heard_stays_known_and_watched(
    tools: Caller, app: App, fake: FakeSandbox
) -> None:
    fake.jobs.refuse(LostContact("gone", outcome="unknown", so_far=Running("job-0123456789abcdef")))
    await tools.fail("exec_bash_background", command="x", session_name="t", **UNGUARDED)
    (watch,) = app.jobs.registry.watches.list()
    assert (watch.session, watch.status) == ("t", Status.ACTIVE)


async def test_a_watch_keeps_what_it_was_asked_for(tools: Caller) -> None:
    started = await tools.call(
        "exec_bash_background",
        **{"command": "x", "session_name": "t", "cwd": "/w", "run_id": "exp-7", "watch_name": "seven"},
        **{"resume_plan_json": '{"resume_command": "again", "checkpoint_path": "p", "checkpoint_format": "json"}'},
        **{"auto_resume": True, "max_resume_attempts": 3, "interval_s": 60, "metadata_json": '{"who": "me"}'},
        **{"webhook_url": "https://hooks.example.com/me/1", "event_command": "tell", "codex_wakeup": True},
        **UNGUARDED,
    )
    watch = (await tools.call("get_background_watch", watch_id=started["watch_id"]))["watch"]
    assert (watch["run_id"], watch["name"], watch["sandbox_name"], watch["tmux_session"]) == (
        "exp-7",
        "seven",
        "fake",
        "t",
    )
    assert (watch["launch_command"], watch["resume_command"], watch["cwd"]) == ("x", "again", "/w")
    assert (watch["checkpoint_path"], watch["checkpoint_format"]) == ("p", "json")
    assert (watch["auto_resume"], watch["max_resume_attempts"], watch["resume_attempts"]) == (True, 3, 0)
    assert watch["metadata"] == {"who": "me"}
    assert (watch["status"], watch["log_file"]) == ("active", "/w/.codex_logs/t.log")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        pytest.param({"webhook_url": "http://evil.example.com/"}, "must begin with https", id="webhook"),
        pytest.param({"auto_resume": True}, "resume_command", id="nothing to resume with"),
        pytest.param({"resume_plan_json": "no"}, "not valid JSON", id="plan"),
        pytest.param({"metadata_json": "[]"}, "JSON object", id="metadata"),
        pytest.param({"session_name": "run-0123456789abcdef"}, "handle", id="name of a run"),
        pytest.param({"session_name": "-x"}, "begins with", id="name like an option"),
        pytest.param({"interval_s": 0.1}, "interval_s", id="interval"),
        pytest.param({"command": " "}, "command is empty", id="no command"),
    ],
)
async def test_what_cannot_be_kept_is_refused_before_anything_starts(
    tools: Caller, fake: FakeSandbox, given: dict[str, Any], says: str
) -> None:
    problem = await tools.fail("exec_bash_background", **{"command": "x", **UNGUARDED, **given})
    assert problem["code"] == "bad_argument"
    assert says in problem["error"]
    assert not fake.jobs.started


async def test_a_job_that_cannot_outlive_the_server_is_not_watched(app: App) -> None:
    short = FakeSandbox(name="short", capabilities=Capabilities(kills_trees=True))
    async with connected(App(Fleet([member(short)]))) as tools:
        started = await tools.call("exec_bash_background", command="x")
    assert "watch_id" not in started
    assert started["status"] == "started"


async def test_stopping_a_job_ends_its_watch(tools: Caller, fake: FakeSandbox) -> None:
    order: dict[str, Any] = {"command": "x", "auto_resume": True, "resume_command": "x", "resume_delay_s": 0}
    ids = [(await tools.call("exec_bash_background", **order, **UNGUARDED))["watch_id"] for _ in range(2)]
    assert (await tools.call("stop_background_task", watch_id=ids[0]))["stopped"]
    fake.jobs.vanish(job_of(fake))
    assert not (await tools.call("stop_background_task", watch_id=ids[1]))["running"]
    watches = {it["id"]: it["status"] for it in (await tools.call("list_background_watches"))["watches"]}
    assert watches == {ids[0]: "completed", ids[1]: "cancelled"}
    events = (await tools.call("list_background_watch_events"))["events"]
    told = [(it["watch_id"], it["event_type"], it["outcome"], it["failed"]) for it in events]
    assert told == [(ids[0], "completed", "stopped", False)]


async def test_of_two_watches_over_a_session_only_the_newer_goes_on(tools: Caller, fake: FakeSandbox) -> None:
    first = (await tools.call("exec_bash_background", command="x", session_name="t", **UNGUARDED))["watch_id"]
    fake.jobs.vanish(job_of(fake))
    second = (await tools.call("exec_bash_background", command="y", session_name="t", **UNGUARDED))["watch_id"]
    third = (await tools.call("watch_background_task", tmux_session="t", **UNGUARDED))["watch"]["id"]
    watches = {it["id"]: it["status"] for it in (await tools.call("list_background_watches"))["watches"]}
    assert watches == {first: "cancelled", second: "cancelled", third: "active"}


async def test_a_job_is_resumed_for_the_client_that_asks(tools: Caller, fake: FakeSandbox) -> None:
    order: dict[str, Any] = {"command": "x", "resume_command": "y", "session_name": "t"}
    watch_id = (await tools.call("exec_bash_background", **order, **UNGUARDED))["watch_id"]
    told = (await tools.fail("resume_background_task", tmux_session="t"))["error"]
    assert "t on fake still runs" in told
    fake.jobs.end(job_of(fake))
    resumed = (await tools.client.call_tool("resume_background_task", {"watch_id": watch_id})).structured_content
    assert resumed
    assert (resumed["status"], resumed["tmux_session"], resumed["watch_id"]) == ("started", "t", watch_id)
    assert (fake.jobs.started[-1].script, fake.jobs.started[-1].even_ended) == ("y", True)
    (event,) = (await tools.call("list_background_watch_events"))["events"]
    assert (event["event_type"], event["payload"]["asked_by"]) == ("resume_started", AGENT.name)
    told = (await tools.fail("resume_background_task", tmux_session="run-0123456789abcdef"))["error"]
    assert "run-0123456789abcdef is a command of exec_bash and no job" in told


async def test_events_are_read_with_a_cursor(tools: Caller) -> None:
    for name in ("a", "b"):
        await tools.call("exec_bash_background", command="x", session_name=name, **UNGUARDED)
    assert await tools.call("list_background_watch_events") == {"events": [], "cursor": 0}
    await tools.call("stop_background_task", tmux_session="a")
    first = await tools.call("list_background_watch_events")
    await tools.call("stop_background_task", tmux_session="b")
    second = await tools.call("list_background_watch_events", after_id=first["cursor"])
    assert [len(first["events"]), len(second["events"])] == [1, 1]
    assert second["cursor"] > first["cursor"]


async def test_progress_falls_back_to_what_is_known_when_the_machine_is_away(tools: Caller, fake: FakeSandbox) -> None:
    fake.jobs.checkpoints["p.json"] = b'{"step": 4}'
    order: dict[str, Any] = {"command": "x", "checkpoint_path": "p.json", "checkpoint_format": "json"}
    watch_id = (await tools.call("exec_bash_background", **order, **UNGUARDED))["watch_id"]
    live = await tools.call("get_background_watch_progress", watch_id=watch_id)
    assert live["checkpoint"]["value"] == {"step": 4}
    fake.jobs.checkpoints["p.json"] = b"{half"
    broken = await tools.call("read_background_watch_checkpoint", watch_id=watch_id)
    assert broken["checkpoint"]["error"] == "it is not valid JSON"
    fake.fail(Unreachable("fake is unplugged"))
    away = await tools.call("get_background_watch_progress", watch_id=watch_id)
    assert away["connection_error"] == "fake is unplugged"
    assert away["watch"]["id"] == watch_id


async def test_a_session_of_a_person_is_watched(tools: Caller, fake: FakeSandbox) -> None:
    problem = await tools.fail("watch_background_task", tmux_session="mine", **UNGUARDED)
    assert "knows no session 'mine'" in problem["error"]
    fake.jobs.foreign.add("mine")
    watch = (await tools.call("watch_background_task", tmux_session="mine", log_file="/l", **UNGUARDED))["watch"]
    assert (watch["tmux_session"], watch["log_file"], watch["status"]) == ("mine", "/l", "active")
    cancelled = (await tools.call("cancel_background_watch", watch_id=watch["id"]))["watch"]
    assert cancelled["status"] == "cancelled"


async def test_a_watch_that_is_not_there_is_told(tools: Caller) -> None:
    for tool in ("get_background_watch", "cancel_background_watch", "read_background_watch_log"):
        assert "there is no watch 77" in (await tools.fail(tool, watch_id=77))["error"]
    assert "there is no watch 77" in (await tools.fail("check_background_task", watch_id=77))["error"]


async def test_the_supervisor_of_the_same_rows_completes_the_watch(tools: Caller, app: App, fake: FakeSandbox) -> None:
    watch_id = (await tools.call("exec_bash_background", command="x", interval_s=1, **UNGUARDED))["watch_id"]
    fake.jobs.end(job_of(fake), 5)
    supervisor = app.jobs.supervisor()
    deadline = Deadline(20)
    while (await tools.call("get_background_watch", watch_id=watch_id))["watch"]["status"] == "active":
        await supervisor.tick()
        assert not deadline.has_passed()
        await asyncio.sleep(0.05)
    watch = (await tools.call("get_background_watch", watch_id=watch_id))["watch"]
    assert (watch["status"], watch["last_exit_code"]) == ("completed", 5)


async def test_the_old_names_of_tools_work(tools: Caller) -> None:
    names = {tool.name for tool in (await tools.client.list_tools()).tools}
    assert {"install_macos_watchdog", "uninstall_macos_watchdog", "exec_bash_background_watch"} <= names
    started = await tools.call("exec_bash_background_watch", command="x", **UNGUARDED)
    assert started["watch_id"]


async def test_the_watchdog_says_how_it_stands(tools: Caller) -> None:
    status = await tools.call("get_watchdog_status")
    assert status["running"] is False
    assert status["db_path"].endswith("state.db")
