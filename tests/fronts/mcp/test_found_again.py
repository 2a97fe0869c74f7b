"""What ran is found again: by another server, on another machine, after its machine or its server is gone."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.config import paths
from remote_sandbox_mcp.config.schema import Settings
from remote_sandbox_mcp.core.errors import Unreachable
from remote_sandbox_mcp.core.jobs.job import JobSeen, JobState
from remote_sandbox_mcp.core.jobs.watch import Status, Watch
from remote_sandbox_mcp.core.sync.transfer import Order, Place
from remote_sandbox_mcp.local.store.database import STATE_FILE, Database
from remote_sandbox_mcp.local.store.jobs import RowChange, RunRecords
from remote_sandbox_mcp.local.store.transfers import RUNNING, Ledger, Transfer
from remote_sandbox_mcp.local.store.watches import Watches
from remote_sandbox_mcp.services.fleet import Fleet
from remote_sandbox_mcp.services.jobs import commands
from remote_sandbox_mcp.services.jobs import service as background
from tests.fronts.mcp.conftest import connected, member
from tests.support.fakes.sandbox import Answer, FakeSandbox, after
from tests.support.server import Caller, until

LONG = {"long": Answer(stdout="begun\n", then=after(math.inf)), "echo hi": Answer(stdout="hi\n")}
QUIET: dict[str, Any] = {"watch": False}


@pytest.fixture
def fake() -> FakeSandbox:
    return FakeSandbox(dict(LONG))


@asynccontextmanager
async def server(*sandboxes: FakeSandbox, **more: Any) -> AsyncIterator[Caller]:
    """One server; several may be there at once, or one after the other."""
    settings = Settings(expose_advanced_tools=True)
    async with connected(App(Fleet([member(each) for each in sandboxes]), settings=settings, **more)) as caller:
        yield caller


async def tasks(tools: Caller, **given: Any) -> list[dict[str, Any]]:
    listed = await tools.call("list_background_tasks", **given)
    return list(listed["tasks"])


async def logs(tools: Caller, sandbox: str) -> str:
    read = await tools.client.read_resource(f"sandbox://{sandbox}/logs")
    return str(read.contents[0].text)  # type: ignore[union-attr]


# Commands of exec_bash


async def test_a_command_that_outlasted_its_call_is_listed_by_every_server(fake: FakeSandbox) -> None:
    async with server(fake, patience_s=0.05) as first:
        handle = (await first.run("long"))["tmux_session"]
    async with server(fake) as later:
        (task,) = await tasks(later)
        assert (task["tmux_session"], task["kind"], task["status"]) == (handle, "command", "running")
        assert (task["command"], task["sandbox"]) == ("long", "fake")
        assert await tasks(later, status="ended") == []
        stopped = await later.call("stop_background_task", tmux_session=handle)
        assert stopped["exit_code"] == 143
        (ended,) = await tasks(later)
        assert (ended["status"], ended["exit_code"]) == ("ended", 143)


async def test_a_command_whose_server_was_killed_is_listed(fake: FakeSandbox) -> None:
    async with server(fake) as killed, server(fake) as later:
        # Nothing of what a server does at its end is done for a call that is never answered.
        call = asyncio.ensure_future(killed.run("long", timeout_s=500))
        task = (await until(lambda: tasks(later), "the command to be listed"))[0]
        assert (task["kind"], task["status"], task["command"]) == ("command", "running", "long")
        seen = await later.call("check_background_task", tmux_session=task["tmux_session"])
        assert (seen["running"], seen["log_tail"]) == (True, "begun")
        await later.call("stop_background_task", tmux_session=task["tmux_session"])
        assert (await call)["exit_code"] == 143


async def test_quick_commands_are_written_down_together_after_their_end(
    fake: FakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, batches = RunRecords.write, []

    def counted(runs: RunRecords, changes: Sequence[RowChange]) -> None:
        batches.append([change.statement for change in changes])
        write(runs, changes)

    monkeypatch.setattr(RunRecords, "write", counted)
    # A machine that is busy must not make these commands slow ones.
    monkeypatch.setattr(commands, "MOMENT_S", 30.0)
    monkeypatch.setattr(commands, "SOON_S", 30.0)
    async with server(fake) as first:
        for _ in range(20):
            await first.output("echo hi")
        assert not batches
        assert not fake.forgotten
        shown = await logs(first, "fake")
    assert batches == [["add"] * 20]
    assert shown.count("$ echo hi") == 20
    assert fake.forgotten == [command.run_id for command in fake.commands]


async def test_what_is_not_written_yet_is_written_when_a_server_leaves(
    fake: FakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "SOON_S", 30.0)
    monkeypatch.setattr(background, "LEAVE_S", 10.0)
    async with server(fake) as first:
        await first.output("echo hi")
    async with server(fake) as later:
        assert "$ echo hi\nhi" in await logs(later, "fake")


async def test_a_command_that_lasts_is_written_down_while_it_runs(
    fake: FakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "SOON_S", 30.0)
    async with server(fake) as first:
        call = asyncio.ensure_future(first.run("long", timeout_s=500))
        rows = RunRecords(Database(paths.state_folder() / STATE_FILE))
        (row,) = await until(lambda: rows.background("fake", 0.0, 10), "a row")
        assert (row.state, row.outcome) == ("running", "")
        fake.answers = {}
        await first.call("stop_background_task", tmux_session=row.run_id)
        assert (await call)["exit_code"] == 143
        rows.database.close()


async def test_a_machine_keeps_what_could_not_be_written_down_here(fake: FakeSandbox) -> None:
    (paths.state_folder() / STATE_FILE).write_bytes(b"this is no database\n" * 100)
    async with server(fake) as tools:
        assert await tools.output("echo hi") == "hi\n"
    assert fake.forgotten == []


async def test_a_command_that_ended_in_its_call_is_not_listed(fake: FakeSandbox) -> None:
    async with server(fake) as tools:
        assert await tools.output("echo hi") == "hi\n"
        await tools.fail("exec_bash", command="x", cwd="\0")
        assert await tasks(tools) == []


async def test_a_command_that_could_not_be_started_is_not_listed(fake: FakeSandbox) -> None:
    async with server(fake) as tools:
        await tools.output("echo hi")
        fake.fail(Unreachable("no route to it"))
        await tools.fail("exec_bash", command="long")
        fake.fail(None)
        assert await tasks(tools) == []


async def test_the_log_of_a_sandbox_has_the_commands_of_all_servers(fake: FakeSandbox, other: FakeSandbox) -> None:
    async with server(fake, other) as first, server(fake, other) as second:
        await first.output("echo hi")
        assert "exit 0" in await logs(first, "fake")
        assert "$ echo hi\nhi" in await logs(second, "fake")
        assert "echo" not in await logs(second, "other")


async def test_the_log_of_another_machine_of_the_same_name_is_not_shown(fake: FakeSandbox) -> None:
    elsewhere = FakeSandbox(dict(LONG))
    elsewhere.description = replace(elsewhere.description, host="elsewhere.example.org", port=22, user="me")
    async with server(fake) as first, server(elsewhere) as second:
        await first.output("echo hi")
        await logs(first, "fake")
        assert "echo" not in await logs(second, "fake")


async def test_commands_run_where_nothing_can_be_written_down(fake: FakeSandbox) -> None:
    (paths.state_folder() / STATE_FILE).write_bytes(b"this is no database\n" * 100)
    async with server(fake) as tools:
        assert await tools.output("echo hi") == "hi\n"


async def test_the_end_of_a_command_is_known_when_its_machine_has_dropped_it(fake: FakeSandbox) -> None:
    async with server(fake, patience_s=0.05) as tools:
        handle = (await tools.run("long"))["tmux_session"]
        await tools.call("stop_background_task", tmux_session=handle)
        fake._runs.clear()
        seen = await tools.call("check_background_task", tmux_session=handle)
        assert (seen["exit_code"], seen["log_tail"]) == (143, "begun")
        fake.fail(Unreachable("no route to it"))
        assert (await tools.call("check_background_task", tmux_session=handle))["exit_code"] == 143
        (task,) = await tasks(tools)
        assert (task["status"], task["exit_code"]) == ("ended", 143)


# The wrong machine


async def test_a_job_asked_for_on_the_wrong_machine_is_said_to_be_elsewhere(
    fake: FakeSandbox, other: FakeSandbox
) -> None:
    async with server(fake, other) as tools:
        await tools.call("exec_bash_background", command="x", session_name="t", sandbox_name="other", **QUIET)
        for tool in ("check_background_task", "wait_background_task", "stop_background_task"):
            seen = await tools.fail(tool, tmux_session="t", sandbox_name="fake")
            assert "it is on other; pass sandbox_name='other'" in seen["error"]
        typed = await tools.fail("send_background_input", tmux_session="t", text="y", sandbox_name="fake")
        assert "it is on other; pass sandbox_name='other'" in typed["error"]
        assert (await tools.call("check_background_task", tmux_session="t", sandbox_name="other"))["running"]


async def test_a_job_of_another_computer_is_found_by_asking_the_connected_machines(
    fake: FakeSandbox, other: FakeSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with server(fake, other, patience_s=0.05) as first:
        await first.call("exec_bash_background", command="x", session_name="t", sandbox_name="fake", **QUIET)
        handle = (await first.run("long"))["tmux_session"]
    monkeypatch.setenv(paths.HOME, str(tmp_path / "another"))
    async with server(other, fake) as tools:
        await tools.call("list_sandboxes")
        seen = await tools.fail("check_background_task", tmux_session="t", sandbox_name="other")
        assert "it is on fake" in seen["error"]
        seen = await tools.fail("check_background_task", tmux_session=handle, sandbox_name="other")
        assert "it is on fake" in seen["error"]


async def test_a_command_is_looked_for_where_it_was_started(fake: FakeSandbox, other: FakeSandbox) -> None:
    async with server(fake, other, patience_s=0.05) as first:
        handle = (await first.run("long", sandbox_name="fake"))["tmux_session"]
    async with server(other, fake) as tools:
        assert (await tools.call("check_background_task", tmux_session=handle))["running"]
        wrong = await tools.fail("check_background_task", tmux_session=handle, sandbox_name="other")
        assert "it is on fake; pass sandbox_name='fake'" in wrong["error"]


# Known ends


async def test_an_end_that_was_seen_is_told_when_the_machine_does_not_answer(fake: FakeSandbox) -> None:
    async with server(fake) as tools:
        await tools.call("exec_bash_background", command="x", session_name="t", **QUIET)
        fake.jobs.end(fake.jobs.started[-1].job_id, 3)
        assert (await tools.call("check_background_task", tmux_session="t"))["exit_code"] == 3
        fake.fail(Unreachable("no route to it"))
        (task,) = await tasks(tools)
        assert (task["status"], task["exit_code"]) == ("ended", 3)
        assert "no route" in task["connection_error"]
        for tool in ("check_background_task", "wait_background_task"):
            seen = await tools.call(tool, tmux_session="t")
            assert (seen["running"], seen["exit_code"]) == (False, 3)
            assert "no route" in seen["connection_error"]


async def test_an_end_that_was_seen_is_told_when_the_machine_knows_the_job_no_more(fake: FakeSandbox) -> None:
    async with server(fake) as tools:
        await tools.call("exec_bash_background", command="x", session_name="t", **QUIET)
        job_id = fake.jobs.started[-1].job_id
        fake.jobs.end(job_id, 3)
        await tools.call("check_background_task", tmux_session="t")
        fake.jobs.forget(job_id)
        assert (await tools.call("check_background_task", tmux_session="t"))["exit_code"] == 3
        assert [task["status"] for task in await tasks(tools)] == ["ended"]


async def test_a_job_whose_end_nobody_saw_is_still_unknown(fake: FakeSandbox) -> None:
    async with server(fake) as tools:
        await tools.call("exec_bash_background", command="x", session_name="t", **QUIET)
        fake.fail(Unreachable("no route to it"))
        assert [task["status"] for task in await tasks(tools)] == ["unknown"]
        assert "no route" in (await tools.fail("check_background_task", tmux_session="t"))["error"]


async def test_an_end_is_told_where_the_machine_is_not_configured_any_more(
    fake: FakeSandbox, other: FakeSandbox
) -> None:
    async with server(fake, other) as first:
        await first.call("exec_bash_background", command="x", session_name="t", sandbox_name="fake", **QUIET)
        fake.jobs.end(fake.jobs.started[-1].job_id, 3)
        await first.call("check_background_task", tmux_session="t")
    async with server(other) as tools:
        seen = await tools.call("check_background_task", tmux_session="t")
        assert (seen["exit_code"], seen["connection_error"]) == (
            3,
            "it was started on fake, which cannot be used here",
        )


async def test_a_session_made_by_hand_is_stopped_and_said_to_have_ended(fake: FakeSandbox) -> None:
    fake.jobs.foreign.add("theirs")
    async with server(fake) as tools:
        assert (await tools.call("check_background_task", tmux_session="theirs"))["running"]
        stopped = await tools.call("stop_background_task", tmux_session="theirs")
        assert stopped == {"tmux_session": "theirs", "running": False, "outcome": "stopped", "stopped": True}


# One machine of two names


class Alias(FakeSandbox):
    """The same machine by another name."""

    def __init__(self, real: FakeSandbox, name: str) -> None:
        super().__init__(name=name)
        self.jobs = real.jobs


async def test_one_job_is_listed_once_by_the_name_it_was_started_with(fake: FakeSandbox) -> None:
    alias = Alias(fake, "alias")
    async with server(alias, fake) as tools:
        # A watchdog would outlive this test.
        wanted = {"command": "x", "session_name": "t", "sandbox_name": "fake", "ensure_watchdog": False}
        started = await tools.call("exec_bash_background", **wanted)
        (task,) = await tasks(tools)
        assert (task["sandbox"], task["watch_id"]) == ("fake", started["watch_id"])
        (asked,) = await tasks(tools, sandbox_name="alias")
        assert (asked["sandbox"], asked["watch_id"]) == ("alias", started["watch_id"])


# Watches of machines that are not configured here


@pytest.fixture
def watch() -> Watch:
    database = Database(paths.state_folder() / STATE_FILE)
    added = Watches(database).add(
        Watch(
            sandbox="elsewhere", session="t", job_id="job-0123456789abcdef", log_file="/log", last_state="running",
            last_summary="t on elsewhere: running for 5 s", last_log_tail="step 7", checked=100.0, created=95.0,
        )
    )  # fmt: skip
    database.close()
    return added


async def test_the_stored_state_of_a_watch_is_shown_without_its_machine(other: FakeSandbox, watch: Watch) -> None:
    async with server(other) as tools:
        assert (await tools.call("get_background_watch", watch_id=watch.id))["watch"]["last_log_tail"] == "step 7"
        (listed,) = (await tools.call("list_background_watches"))["watches"]
        assert (listed["id"], listed["last_state"]) == (watch.id, "running")
        seen = await tools.call("check_background_task", watch_id=watch.id)
        assert (seen["tmux_session"], seen["running"], seen["log_tail"]) == ("t", True, "step 7")
        assert "no sandbox is named 'elsewhere'" in seen["connection_error"]
        assert seen["last_seen_ts"] == 100.0
        for tool in ("get_background_watch_progress", "read_background_watch_log"):
            shown = await tools.call(tool, watch_id=watch.id)
            assert shown["log_tail"] == "step 7"
            assert "no sandbox is named 'elsewhere'" in shown["connection_error"]
        await tools.call("read_background_watch_checkpoint", watch_id=watch.id)
        for tool in ("wait_background_task", "stop_background_task"):
            assert "no sandbox is named 'elsewhere'" in (await tools.fail(tool, watch_id=watch.id))["error"]


async def test_a_watched_end_is_told_without_its_machine(other: FakeSandbox, watch: Watch) -> None:
    from remote_sandbox_mcp.core.jobs.lifecycle import decide

    database = Database(paths.state_folder() / STATE_FILE)
    Watches(database).commit(decide(watch, JobSeen(state=JobState.ENDED, exit_code=4), 200.0), 200.0)
    database.close()
    async with server(other) as tools:
        seen = await tools.call("check_background_task", watch_id=watch.id)
        assert (seen["running"], seen["exit_code"], seen["last_seen_ts"]) == (False, 4, 200.0)
        assert (await tools.call("get_background_watch", watch_id=watch.id))["watch"][
            "status"
        ] == Status.COMPLETED.value


# Transfers


async def test_transfers_are_listed_where_no_id_is_given(fake: FakeSandbox) -> None:
    async with server(fake) as tools:
        assert await tools.call("check_file_transfer_task") == {"tasks": []}
        database = Database(paths.state_folder() / STATE_FILE)
        order = Order(source=Place("", "/data"), target=Place("fake", "/copy"))
        for number in (1, 2):
            row = Transfer(
                id=f"tr-0000000{number}", order=order, status=RUNNING, log_file="/log", created=number, updated=number
            )
            Ledger(database).add(row)
        database.close()
        listed = (await tools.call("check_file_transfer_task"))["tasks"]
        told = {"status": "running", "stale": True, "source": "/data", "target": "fake:/copy"}
        assert listed == [
            told | {"task_id": number, "started_ts": number, "started_at": f"1970-01-01T00:00:0{number}Z"}
            for number in (2, 1)
        ]
