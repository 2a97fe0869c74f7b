"""Background jobs through the real server: on a real machine with a real tmux, with a real watchdog beside it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.local.processes.locks import holder
from tests.support.line import Line
from tests.support.server import COMMAND, Server, entry, environment, serve, text_of, until
from tests.support.sshd import Sshd

ADVANCED = {"REMOTE_SANDBOX_EXPOSE_ADVANCED_TOOLS": "1"}
# A job that counts into its checkpoint and goes on from there.
COUNTING = """\
step=$(cat count 2>/dev/null || echo 0)
echo "begins at $step"
while [ "$step" -lt 60 ]; do
    step=$((step + 1)); echo "$step" >count.new; mv count.new count; sleep 0.1
done
echo all counted
"""


@pytest.fixture(autouse=True)
def tidy(machine: Sshd) -> Any:
    yield
    machine.reset()


@pytest.fixture
async def watched(machine: Sshd, tmp_path: Path) -> AsyncIterator[Server]:
    """A server whose watchdog is ended with the test."""
    async with watching(machine, tmp_path) as server:
        yield server


@asynccontextmanager
async def watching(machine: Sshd, home: Path, **overrides: Any) -> AsyncIterator[Server]:
    try:
        async with serve(home, entry(machine, **overrides), env=ADVANCED) as server:
            yield server
    finally:
        end_watchdog(home)


def watchdog_pid(home: Path) -> int:
    found = holder(home / "state" / "watchdog.lock")
    return found.pid if found else 0


def end_watchdog(home: Path, number: signal.Signals = signal.SIGTERM) -> None:
    if pid := watchdog_pid(home):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def as_user(machine: Sshd, *argv: str) -> str:
    """What the machine's user sees who sits in front of it."""
    environment = {"HOME": str(machine.home), "USER": machine.user, "PATH": os.environ["PATH"]}
    done = subprocess.run(
        argv,
        user=machine.uid,
        group=machine.uid,
        extra_groups=(),
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
    )
    return done.stdout


async def test_a_job_runs_in_tmux_and_its_end_is_waited_for(server: Server, machine: Sshd) -> None:
    started = await server.call(
        "exec_bash_background",
        command="echo hello; until [ -e seen ]; do sleep 0.05; done; exit 7",
        session_name="first",
        watch=False,
    )
    assert started["status"] == "started"
    assert started["tmux_session"] == "first"
    assert started["log_file"] == f"{machine.home}/.codex_logs/first.log"
    assert "first:" in as_user(machine, "tmux", "list-sessions")
    await server.output("touch seen")
    waited = await server.call("wait_background_task", tmux_session="first", timeout_s=20)
    assert (waited["reason"], waited["exit_code"], waited["running"]) == ("ended", 7, False)
    assert Path(started["log_file"]).read_text() == "hello\nEXIT_CODE=7\n"


async def test_a_line_of_the_log_is_waited_for(server: Server) -> None:
    await server.call(
        "exec_bash_background", command="sleep 0.3; echo epoch 1 done; sleep 60", session_name="ep", watch=False
    )
    waited = await server.call("wait_background_task", tmux_session="ep", until_pattern=r"epoch \d+ done", timeout_s=20)
    assert (waited["reason"], waited["matched_line"], waited["running"]) == ("pattern", "epoch 1 done", True)
    silent = await server.call("wait_background_task", tmux_session="ep", silence_s=0.5, timeout_s=20)
    assert silent["reason"] == "silence"
    stopped = await server.call("stop_background_task", tmux_session="ep", grace_s=1)
    assert (stopped["running"], stopped["stopped"]) == (False, True)


async def test_only_what_is_new_is_read(server: Server) -> None:
    await server.call(
        "exec_bash_background", command="echo one; read x; echo two $x; sleep 60", session_name="new", watch=False
    )
    first = await server.call("wait_background_task", tmux_session="new", until_pattern="one", timeout_s=20)
    await server.call("send_background_input", tmux_session="new", text="more")
    later = await server.call(
        "wait_background_task", tmux_session="new", until_pattern="two", timeout_s=20, log_cursor=first["log_cursor"]
    )
    assert later["matched_line"] == "two more"
    assert "one" not in later["log_tail"]


async def test_a_mistake_is_reported_at_once_and_nothing_starts(server: Server, machine: Sshd) -> None:
    await server.call("exec_bash_background", command="sleep 60", session_name="taken", watch=False)
    for given, says in (
        ({"command": "true", "session_name": "taken"}, "taken"),
        ({"command": "true", "cwd": "/no/such/folder"}, "No such file or directory"),
        ({"command": "if true; then"}, "syntax"),
        ({"command": "true", "log_file": "/proc/no/log"}, "log"),
        ({"command": "true", "auto_resume": True}, "resume_command"),
        ({"command": "true", "resume_plan_json": "{"}, "resume_plan_json"),
        ({"command": "true", "webhook_url": "ftp://example.com/x"}, "https"),
    ):
        problem = await server.fail("exec_bash_background", **given)
        assert says in problem["error"], (given, problem)
    listed = await server.call("list_background_tasks", status="running")
    assert [task["tmux_session"] for task in listed["tasks"]] == ["taken"]


async def test_a_job_outlives_its_server_and_is_found_by_another_computer(machine: Sshd, tmp_path: Path) -> None:
    first, second, go = tmp_path / "first", tmp_path / "second", machine.home / "go"
    first.mkdir()
    second.mkdir()
    command = "while ! [ -e go ]; do sleep 0.05; done; echo late; exit 3"
    async with watching(machine, first) as server:
        await server.call("exec_bash_background", command=command, session_name="long", watch=False)
        os.kill(server.pid, signal.SIGKILL)
    async with watching(machine, second) as server:
        listed = await server.call("list_background_tasks", status="running")
        assert [task["tmux_session"] for task in listed["tasks"]] == ["long"]
        go.touch()
        waited = await server.call("wait_background_task", tmux_session="long", timeout_s=20)
        assert (waited["exit_code"], waited["log_tail"]) == (3, "late\nEXIT_CODE=3")


async def test_a_killed_session_is_resumed_from_its_checkpoint(watched: Server, machine: Sshd) -> None:
    started = await watched.call(
        "exec_bash_background",
        **{"command": COUNTING, "session_name": "count", "cwd": str(machine.home), "interval_s": 1},
        **{"auto_resume": True, "resume_command": COUNTING, "resume_delay_s": 0, "checkpoint_path": "count"},
    )
    watch_id = started["watch_id"]
    assert "notes" not in started or not any("watchdog" in note for note in started["notes"])
    await until(lambda: (machine.home / "count").exists(), "the first step")
    await asyncio.sleep(1)
    as_user(machine, "tmux", "kill-session", "-t", "=count")
    await until(lambda: is_completed(watched, watch_id), "the watch to complete", 40)
    log = (machine.home / ".codex_logs" / "count.log").read_text()
    begun = [int(line.split()[-1]) for line in log.splitlines() if line.startswith("begins at")]
    assert len(begun) == 2
    assert begun[0] == 0
    assert begun[1] > 0
    assert log.endswith("all counted\nEXIT_CODE=0\n")
    seen = await watched.call("list_background_watch_events", watch_id=watch_id)
    assert [event["event_type"] for event in seen["events"]] == ["interrupted", "resume_started", "completed"]
    again = await watched.call("list_background_watch_events", watch_id=watch_id, after_id=seen["cursor"])
    assert again["events"] == []
    files = sorted((watched.home / "state" / "events").glob("*.json"))
    assert [json.loads(file.read_text())["event_type"] for file in files] == [
        "interrupted",
        "resume_started",
        "completed",
    ]
    assert all(file.stat().st_mode & 0o077 == 0 for file in files)


async def test_an_interrupted_job_says_when_it_is_resumed_and_is_waited_for_over_its_resume(
    watched: Server, machine: Sshd
) -> None:
    again = "until [ -e go ]; do sleep 0.05; done; echo resumed; exit 4"
    await watched.call(
        "exec_bash_background",
        **{"command": "echo '{\"step\": 7}' >at.json; sleep 600", "session_name": "late", "interval_s": 1},
        **{"auto_resume": True, "resume_command": again, "resume_delay_s": 6, "max_resume_attempts": 3},
        **{"checkpoint_path": "at.json", "checkpoint_format": "json", "cwd": str(machine.home)},
    )
    await until(lambda: (machine.home / "at.json").exists(), "the checkpoint")
    seen = await watched.call("check_background_task", tmux_session="late")
    assert seen["checkpoint"]["value"] == {"step": 7}
    as_user(machine, "tmux", "kill-session", "-t", "=late")
    says = ["interrupted: its tmux session was killed", "it will be resumed", "attempt 1 of 3"]
    waited = await watched.call("wait_background_task", tmux_session="late", timeout_s=1)
    assert (waited["reason"], waited["outcome"], waited["resume_attempt"]) == ("timeout", "interrupted", 1)
    for tool in ("check_background_task", "wait_background_task"):
        answer = await watched.ask(tool, tmux_session="late", **({"timeout_s": 0} if tool.startswith("wait") else {}))
        assert all(each in text_of(answer) for each in says), text_of(answer)
    listed = await watched.ask("list_background_tasks")
    assert "it will be resumed" in text_of(listed)
    words = [COMMAND, "--config", str(watched.home / "config.toml"), "jobs", "list"]
    env = environment(watched.home, (entry(machine),))
    listing = await asyncio.to_thread(subprocess.run, words, env=env, capture_output=True, text=True)
    assert "late: it will be resumed" in listing.stdout, listing
    (machine.home / "go").touch()
    ended = await watched.call("wait_background_task", tmux_session="late", timeout_s=40)
    assert (ended["reason"], ended["outcome"], ended["exit_code"]) == ("ended", "failed", 4)
    assert "resumed" in ended["log_tail"]
    events = (await watched.call("list_background_watch_events"))["events"]
    assert "it will be resumed" in events[0]["summary"]


async def is_completed(server: Server, watch_id: int) -> bool:
    watch = (await server.call("get_background_watch", watch_id=watch_id))["watch"]
    return bool(watch["status"] == "completed")


async def test_a_job_that_was_stopped_is_not_resumed(watched: Server, machine: Sshd) -> None:
    started = await watched.call(
        "exec_bash_background",
        **{"command": "echo x >>ran; sleep 60", "session_name": "stop", "interval_s": 1},
        **{"auto_resume": True, "resume_command": "echo x >>ran; sleep 60", "resume_delay_s": 0},
    )
    await until(lambda: (machine.home / "ran").exists(), "the job to run")
    stopped = await watched.call("stop_background_task", watch_id=started["watch_id"], grace_s=1)
    assert stopped["stopped"]
    assert await is_completed(watched, started["watch_id"])
    await asyncio.sleep(2.5)
    assert (machine.home / "ran").read_text() == "x\n"


async def test_the_watchdog_outlives_the_server_and_a_kill_of_its_own(machine: Sshd, tmp_path: Path) -> None:
    order: dict[str, Any] = {"command": "sleep 4; exit 5", "session_name": "guarded", "interval_s": 1}
    async with watching(machine, tmp_path) as server:
        watch_id = (await server.call("exec_bash_background", **order))["watch_id"]
        first = await until(lambda: watchdog_pid(tmp_path), "the watchdog to start")
        os.kill(first, signal.SIGKILL)
        await until(lambda: not watchdog_pid(tmp_path), "the watchdog to be gone")
        # The next job brings it back.
        await server.call("exec_bash_background", command="true", session_name="other", interval_s=1)
        second = await until(lambda: watchdog_pid(tmp_path), "another watchdog")
        assert second != first
        os.kill(server.pid, signal.SIGKILL)
    # It was ended with the server; the next server misses it, and it goes on from what is written down.
    async with watching(machine, tmp_path) as server:
        await until(lambda: is_completed(server, watch_id), "the watch to complete", 30)
        watch = (await server.call("get_background_watch", watch_id=watch_id))["watch"]
        assert watch["last_exit_code"] == 5


async def test_a_lost_connection_is_reported_and_so_is_its_return(machine: Sshd, tmp_path: Path) -> None:
    async with Line(machine.port) as line, watching(machine, tmp_path, port=line.port) as server:
        order: dict[str, Any] = {
            "command": "sleep 60",
            "session_name": "far",
            "interval_s": 1,
            "alert_after_failures": 2,
        }
        watch_id = (await server.call("exec_bash_background", **order))["watch_id"]
        await until(lambda: last_state(server, watch_id, "running"), "the first look")
        line.refuse()
        line.cut()
        await until(lambda: told(server, watch_id, "ssh_unreachable"), "the line to be missed", 30)
        assert await last_state(server, watch_id, "unreachable")
        line.refuse(False)
        await until(lambda: told(server, watch_id, "ssh_unreachable", "running_restored"), "the line to be back", 30)


async def told(server: Server, watch_id: int, *types: str) -> bool:
    events = (await server.call("list_background_watch_events", watch_id=watch_id))["events"]
    return tuple(event["event_type"] for event in events) == types


async def last_state(server: Server, watch_id: int, state: str) -> bool:
    watch = (await server.call("get_background_watch", watch_id=watch_id))["watch"]
    return bool(watch["last_state"] == state)


async def test_a_session_that_a_person_started_can_be_watched(watched: Server, machine: Sshd) -> None:
    as_user(
        machine,
        "tmux",
        "new-session",
        "-d",
        "-s",
        "mine",
        "sh",
        "-c",
        f"sleep 3; echo EXIT_CODE=4 >>{machine.home}/my.log",
    )
    begun = await watched.call(
        "watch_background_task", tmux_session="mine", log_file=f"{machine.home}/my.log", interval_s=1
    )
    watch_id = begun["watch"]["id"]
    await until(lambda: is_completed(watched, watch_id), "its end to be seen", 30)
    watch = (await watched.call("get_background_watch", watch_id=watch_id))["watch"]
    assert watch["last_exit_code"] == 4


async def test_progress_shows_log_and_checkpoint(watched: Server, machine: Sshd) -> None:
    started = await watched.call(
        "exec_bash_background",
        **{"command": """echo '{"step": 3}' >p.json; echo working; sleep 60""", "session_name": "prog"},
        **{"checkpoint_path": "~/p.json", "checkpoint_format": "json"},
    )
    await server_has_printed(watched, "prog", "working")
    progress = await watched.call("get_background_watch_progress", watch_id=started["watch_id"])
    assert progress["checkpoint"]["value"] == {"step": 3}
    assert progress["log_tail"] == "working"
    assert progress["live"]["running"]
    log = await watched.call("read_background_watch_log", watch_id=started["watch_id"])
    assert log["log_tail"] == "working"
    read = await watched.call("read_background_watch_checkpoint", watch_id=started["watch_id"])
    assert read["checkpoint"]["value"] == {"step": 3}
    cancelled = await watched.call("cancel_background_watch", watch_id=started["watch_id"])
    assert cancelled["watch"]["status"] == "cancelled"
    checked = await watched.call("check_background_task", watch_id=started["watch_id"])
    assert checked["running"]
    assert checked["usage"]["processes"] >= 1


async def server_has_printed(server: Server, session: str, pattern: str) -> None:
    waited = await server.call("wait_background_task", tmux_session=session, until_pattern=pattern, timeout_s=20)
    assert waited["reason"] == "pattern"


async def test_secrets_of_the_environment_reach_the_watchdog_by_no_command_line(machine: Sshd, tmp_path: Path) -> None:
    async with watching(machine, tmp_path, password="hunter2-secret") as server:
        started = await server.call("exec_bash_background", command="sleep 60", session_name="quiet", interval_s=1)
        pid = await until(lambda: watchdog_pid(tmp_path), "the watchdog to start")
        await until(lambda: last_state(server, started["watch_id"], "running"), "the first look", 30)
        for name in ("cmdline", "environ"):
            assert b"hunter2" not in Path(f"/proc/{pid}/{name}").read_bytes()
        kept = tmp_path / "state" / "handed-over.json"
        assert kept.stat().st_mode & 0o077 == 0
        # It holds a password in the clear, and that is said.
        assert any("handed-over.json" in note for note in started["notes"])
        assert "hunter2" not in server.everything_said
