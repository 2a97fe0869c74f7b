"""A hub that dies in the middle of calls: another goes on, nothing is lost and nothing is done twice."""

from __future__ import annotations

import json
import signal
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.hubs import hub_folder, hub_pid, kill_hub, replace_hub
from tests.support.server import Wire, entry, wire
from tests.support.sshd import Sshd, free_port, wait_until

MODERN = "2026-07-28"
ways = pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "told to end"])


@pytest.fixture(scope="module")
def line(machine: Sshd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    """A client of two machines, which each test takes its hub away from."""
    with wire(tmp_path_factory.mktemp("replay"), entry(machine), entry(machine, name="other")) as line:
        line.initialize()
        line.call("exec_bash", command="true")
        yield line


def result_of(line: Wire, number: int) -> dict[str, Any]:
    return dict(line.answer_to(number)["result"])


def rows(home: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(home / "state" / "state.db", timeout=10)) as connection:
        return connection.execute(query).fetchall()


def told(result: dict[str, Any]) -> str:
    return "\n".join(part["text"] for part in result["content"])


def end_hub(line: Wire, how: signal.Signals) -> None:
    """The front itself starts another where the hub was killed; there is one before this returns."""
    if how == signal.SIGTERM:
        replace_hub(line, how)
        return
    before = kill_hub(line.home, how)
    wait_until(lambda: hub_pid(line.home) != before, what="another hub", seconds=20)


@ways
def test_a_command_that_runs_when_the_hub_dies_runs_once_and_its_result_comes_back(
    machine: Sshd, line: Wire, how: signal.Signals
) -> None:
    count = machine.home / f"count-{how}"
    command = f"echo x >>{count}; echo begun; while [ ! -e {count}.go ]; do sleep 0.05; done; echo ended; exit 3"
    number = line.start_call("exec_bash", command=command)
    wait_until(count.exists, what="the command to begin", seconds=20)
    end_hub(line, how)
    Path(f"{count}.go").touch()
    result = result_of(line, number)["structuredContent"]
    assert result["stdout"] == "begun\nended\n"
    assert result["exit_code"] == 3
    assert count.read_text() == "x\n"
    assert "another takes its place" in line.stderr


def test_python_that_runs_when_the_hub_dies_runs_once_and_its_session_goes_on(machine: Sshd, line: Wire) -> None:
    count = machine.home / "count-python"
    code = f"""
import os, time
with open({str(count)!r}, "a") as file: file.write("x")
while not os.path.exists({f"{count}.go"!r}): time.sleep(0.05)
n = 7
n"""
    number = line.start_call("run_python", code=code, session="replayed")
    wait_until(count.exists, what="the code to begin", seconds=20)
    end_hub(line, signal.SIGKILL)
    Path(f"{count}.go").touch()
    assert result_of(line, number)["structuredContent"]["value"] == "7"
    assert count.read_text() == "x"
    assert line.call("run_python", code="n + 1", session="replayed")["structuredContent"]["value"] == "8"
    line.call("stop_background_task", tmux_session="python:replayed")
    assert line.call("exec_bash", command="echo on")["structuredContent"]["stdout"] == "on\n"


def test_commands_on_several_machines_run_once_each_when_the_hub_dies(machine: Sshd, line: Wire) -> None:
    count = machine.home / "several"
    # Both names are the same machine, and each has a run of its own there.
    command = f"echo x >>{count}; while [ ! -e {count}.go ]; do sleep 0.05; done; echo ended; exit 3"
    number = line.start_call("exec_bash", command=command, sandbox_names=[machine.name, "other"])
    wait_until(lambda: count.exists() and count.read_text() == "x\nx\n", what="both to begin", seconds=20)
    replace_hub(line)
    Path(f"{count}.go").touch()
    rows = result_of(line, number)["structuredContent"]["results"]
    assert [(row["sandbox"], row["exit_code"], row["stdout"]) for row in rows] == [
        (machine.name, 3, "ended\n"),
        ("other", 3, "ended\n"),
    ]
    assert count.read_text() == "x\nx\n"


def test_a_command_that_ended_while_there_was_no_hub_is_not_run_again(machine: Sshd, line: Wire) -> None:
    count = machine.home / "ended"
    number = line.start_call(
        "exec_bash", command=f"echo x >>{count}; head -c 100000 /dev/zero | tr '\\0' y; echo z >&2"
    )
    wait_until(count.exists, what="the command to begin")
    replace_hub(line)
    result = result_of(line, number)["structuredContent"]
    assert result["exit_code"] == 0
    assert result["stderr"] == "z\n"
    assert "y" * 1000 in result["stdout"]
    assert count.read_text() == "x\n"


def test_the_same_id_twice_is_two_calls(machine: Sshd, line: Wire) -> None:
    """Small clients number all of their requests alike."""
    for text in ("one", "two"):
        call = {"name": "exec_bash", "arguments": {"command": f"echo {text}"}}
        line.send_line(json.dumps({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": call}).encode())
        assert result_of(line, 7)["structuredContent"]["stdout"] == f"{text}\n"
    replace_hub(line)
    call["arguments"] = {"command": "echo three"}
    line.send_line(json.dumps({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": call}).encode())
    assert result_of(line, 7)["structuredContent"]["stdout"] == "three\n"


def test_a_watched_job_that_is_started_when_the_hub_dies_is_one_job_with_one_watch(machine: Sshd, line: Wire) -> None:
    count = machine.home / "jobs"
    order = {"command": f"echo x >>{count}; sleep 60", "auto_resume": True, "resume_command": "true"}
    number = line.start_call("exec_bash_background", **order, ensure_watchdog=False)
    wait_until(count.exists, what="the job to begin", seconds=20)
    replace_hub(line)
    result = result_of(line, number)["structuredContent"]
    assert result["status"] == "started"
    assert count.read_text() == "x\n"
    assert len(rows(line.home, "SELECT 1 FROM watches")) == 1
    assert rows(line.home, "SELECT session FROM jobs") == [(result["tmux_session"],)]
    line.call("stop_background_task", tmux_session=result["tmux_session"])
    machine.reset()


def test_the_selected_sandbox_stays_selected(machine: Sshd, line: Wire) -> None:
    """What was to run there must not run on the default machine unawares."""
    line.call("select_sandbox", sandbox_name="other")
    replace_hub(line)
    assert line.call("get_active_sandbox")["structuredContent"]["active_sandbox"] == "other"


CHANGES = {
    "write": ("write_remote_file", {"content": "mine"}),
    "edit": ("edit_remote_file", {"old_text": "first", "new_text": "mine"}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changed_while_the_hub_died_is_not_overwritten_unseen(
    machine: Sshd, line: Wire, change: str
) -> None:
    tool, given = CHANGES[change]
    path = str(machine.home / f"shared-{change}")
    line.call("exec_bash", command=f"echo first >{path}")
    line.call("read_remote_file", remote_path=path)
    replace_hub(line)
    line.call("exec_bash", command=f"echo first of another >{path}")
    refused = line.call(tool, remote_path=path, **given)
    assert refused["isError"]
    assert "read it again" in told(refused)
    # Nothing else is in the way: what was read again, and what is new.
    assert "first of another" in told(line.call("read_remote_file", remote_path=path))
    assert not line.call(tool, remote_path=path, **given).get("isError")
    assert not line.call("write_remote_file", remote_path=f"{path}.new", content="x").get("isError")
    assert not line.call("write_remote_file", remote_path=f"{path}.new", content="y").get("isError")


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_was_read_before_the_hub_died_can_be_changed(machine: Sshd, line: Wire, change: str) -> None:
    """The front keeps which version was read, so the client is not asked to read it again."""
    tool, given = CHANGES[change]
    path = str(machine.home / f"own-{change}")
    line.call("exec_bash", command=f"echo first >{path}")
    line.call("read_remote_file", remote_path=path)
    replace_hub(line)
    assert not line.call(tool, remote_path=path, **given).get("isError")
    replace_hub(line)
    # What was written counts as read.
    assert not line.call("edit_remote_file", remote_path=path, old_text="mine", new_text="yours").get("isError")


@pytest.mark.parametrize("where", [{}, {"sandbox_names": ["other"]}, {"sandbox_names": "all"}], ids=str)
def test_a_command_that_was_cancelled_while_there_was_no_hub_is_ended(
    machine: Sshd, line: Wire, where: dict[str, Any]
) -> None:
    number = line.start_call("exec_bash", command="sleep 671", **where)
    # Both names are the same machine. One that is still being started when the hub ends is another case.
    wanted = 2 if "all" in where.values() else 1

    def running() -> int:
        return [*machine.processes().values()].count("sleep 671")

    wait_until(lambda: running() == wanted, what="the command to start", seconds=20)
    replace_hub(line, meanwhile=lambda: line.send("notifications/cancelled", {"requestId": number}, answered=False))
    wait_until(lambda: not running(), what="the command to end", seconds=20)


@pytest.mark.parametrize("where", ["local", "disposable", "several"])
def test_a_command_that_is_killed_with_its_hub_is_lost_and_said_to_be_lost(tmp_path: Path, where: str) -> None:
    with wire(tmp_path, local=True) as line:
        line.initialize()
        name = "local"
        if where == "disposable":
            name = line.call("create_sandbox", name="brief")["structuredContent"]["sandbox_id"]
        target = {"sandbox_names": [name]} if where == "several" else {"sandbox_name": name}
        command = "echo one; echo two; echo three >&2; touch begun; sleep 60"
        number = line.start_call("exec_bash", command=command, **target)

        def has_begun() -> bool:
            return "begun" in told(line.call("list_remote_files", sandbox_name=name))

        wait_until(has_begun, what="the command to begin", seconds=20)
        replace_hub(line)
        result = result_of(line, number)
        assert "the run was lost: the process that ran it was killed" in told(result)
        if where == "several":
            (row,) = result["structuredContent"]["results"]
            assert row["code"] == "connection_lost"
            return
        assert result["isError"]
        error = result["_meta"]["remote-sandbox/error"]
        assert (error["code"], error["outcome"]) == ("connection_lost", "lost")
        assert "stdout so far:\none\ntwo\n" in told(result)
        assert "stderr so far:\nthree\n" in told(result)


def test_a_client_without_a_handshake_goes_on(machine: Sshd, tmp_path: Path) -> None:
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": {"name": "by-hand", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    count = machine.home / "modern"
    with wire(tmp_path, entry(machine)) as line:
        assert "result" in line.ask("server/discover", {"_meta": meta})
        command = f"echo x >>{count}; sleep 1; echo ended"
        call = {"name": "exec_bash", "arguments": {"command": command}, "_meta": meta}
        number = line.send("tools/call", call)
        wait_until(count.exists, what="the command to begin", seconds=20)
        replace_hub(line)
        assert result_of(line, number)["structuredContent"]["stdout"] == "ended\n"
        assert count.read_text() == "x\n"


def test_progress_goes_on_under_its_token(machine: Sshd, line: Wire) -> None:
    flag = machine.home / "progress"
    command = f"while [ ! -e {flag}.end ]; do echo tick; touch {flag}; sleep 0.1; done"
    call = {"name": "exec_bash", "arguments": {"command": command}, "_meta": {"progressToken": "t"}}
    number = line.send("tools/call", call)
    seen = [line.receive()["params"]]
    replace_hub(line)
    seen += [line.receive()["params"]]
    Path(f"{flag}.end").touch()
    while (message := line.receive()).get("id") != number:
        seen.append(message["params"])
    assert {each["progressToken"] for each in seen} == {"t"}
    assert [each["progress"] for each in seen] == sorted(each["progress"] for each in seen)


def test_a_forwarded_port_is_open_again_at_the_same_port(machine: Sshd, line: Wire) -> None:
    port = free_port()
    serve = f"python3 -m http.server {port} --bind 127.0.0.1 --directory /var/empty"
    job = line.call("exec_bash_background", command=serve, watch=False)["structuredContent"]["tmux_session"]
    opened = line.call("forward_port", sandbox_id=machine.name, port=port)["structuredContent"]
    assert opened["local_port"] != port
    wait_until(lambda: rows(line.home, "SELECT 1 FROM forwards"), what="the port to be written down")
    replace_hub(line)
    wait_until(lambda: answers(opened["local_port"]), what="the port to be open again", seconds=20)
    line.call("forward_port", sandbox_id=machine.name, port=port, close=True)
    wait_until(lambda: not rows(line.home, "SELECT 1 FROM forwards"), what="the port to be forgotten")
    line.call("stop_background_task", tmux_session=job)


def answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as line:
            line.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return line.recv(4) == b"HTTP"
    except OSError:
        return False


def test_without_another_hub_the_front_serves_alone_and_nothing_runs_twice(machine: Sshd, tmp_path: Path) -> None:
    count = machine.home / "alone"
    with wire(tmp_path, entry(machine)) as line:
        line.initialize()
        number = line.start_call("exec_bash", command=f"echo x >>{count}; sleep 1; echo ended")
        wait_until(count.exists, what="the command to begin", seconds=20)
        # Others could get at it: no hub is started there.
        hub_folder(tmp_path).chmod(0o770)
        kill_hub(tmp_path)
        assert result_of(line, number)["structuredContent"]["stdout"] == "ended\n"
        assert count.read_text() == "x\n"
        assert "serving without a hub" in line.stderr
        assert line.call("exec_bash", command="echo on")["structuredContent"]["stdout"] == "on\n"
