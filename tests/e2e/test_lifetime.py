"""The server's end: at once, with exit code 0, without a word on the protocol's line and without a trace."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
from pathlib import Path

import pytest

from tests.support.pace import at_most
from tests.support.server import Wire, entry, serve, wire
from tests.support.sshd import HOST, Sshd, all_processes, silent_port, wait_until

# 0.3 s is what is promised.
SOON_S = 1.0
WAYS = [signal.SIGINT, signal.SIGTERM, None]
way = pytest.mark.parametrize("how", WAYS, ids=["SIGINT", "SIGTERM", "end of input"])


def leave(line: Wire, how: signal.Signals | None) -> None:
    seconds, code, last_words = line.leave(how)
    print(f"it left after {seconds:.3f} s")
    assert seconds < at_most(SOON_S)
    assert code == 0
    # A call that was cancelled may have been answered; anything else is not for this line.
    assert all(words.startswith(b'{"jsonrpc":"2.0",') for words in last_words.splitlines())
    assert line.stderr == ""


@way
def test_it_leaves_at_once_when_nothing_was_asked(tmp_path: Path, how: signal.Signals | None) -> None:
    with wire(tmp_path) as line:
        line.initialize()
        leave(line, how)


@way
def test_it_leaves_at_once_with_a_machine_open_and_a_command_running(
    machine: Sshd, tmp_path: Path, how: signal.Signals | None
) -> None:
    with wire(tmp_path, entry(machine)) as line:
        line.initialize()
        assert line.call("exec_bash", command="echo hi")["structuredContent"]["stdout"] == "hi\n"
        line.start_call("exec_bash", command="sleep 666")
        wait_until(lambda: "sleep 666" in machine.processes().values(), what="the command to start")
        leave(line, how)
    wait_until(lambda: not machine.sessions(), what="the connection to close")
    machine.reset()


@way
def test_it_leaves_at_once_with_many_commands_running(
    machine: Sshd, tmp_path: Path, how: signal.Signals | None
) -> None:
    with wire(tmp_path, entry(machine)) as line:
        line.initialize()
        for _ in range(20):
            line.start_call("exec_bash", command="sleep 667")
        wait_until(
            lambda: list(machine.processes().values()).count("sleep 667") == 20,
            what="the commands to start",
            seconds=30,
        )
        leave(line, how)
    machine.reset()


@way
def test_it_leaves_at_once_while_a_machine_does_not_answer(tmp_path: Path, how: signal.Signals | None) -> None:
    with silent_port() as port, wire(tmp_path, {"host": HOST, "port": port, "user": "x", "password": "y"}) as line:
        line.initialize()
        line.start_call("list_sandboxes", check_resources=True)
        line.start_call("exec_bash", command="true")
        line.ask("ping")
        leave(line, how)


@way
def test_it_leaves_at_once_and_takes_the_local_sandbox_with_it(tmp_path: Path, how: signal.Signals | None) -> None:
    def inside() -> list[str]:
        return [process.command for process in all_processes() if f"{tmp_path}/state/local" in process.command]

    with wire(tmp_path, local=True) as line:
        line.initialize()
        assert line.call("exec_bash", command="echo hi")["structuredContent"]["stdout"] == "hi\n"
        assert inside()
        line.start_call("exec_bash", command="sleep 668")
        line.ask("ping")
        leave(line, how)
    wait_until(lambda: not inside(), what="the local sandbox to end")


def test_a_signal_before_the_first_message_ends_it_too(tmp_path: Path) -> None:
    with wire(tmp_path) as line:
        wait_until(lambda: catches(line.process.pid, signal.SIGTERM), what="it to heed signals")
        leave(line, signal.SIGTERM)


def catches(pid: int, number: signal.Signals) -> bool:
    fields = dict(row.split(":\t", 1) for row in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in row)
    return bool(int(fields["SigCgt"], 16) >> (number - 1) & 1)


def test_what_came_before_the_end_of_input_is_still_answered(tmp_path: Path) -> None:
    with wire(tmp_path) as line:
        line.initialize()
        asked = [line.send("tools/list") for _ in range(20)]
        # Requests are answered beside each other, in whatever order.
        assert sorted(line.receive()["id"] for _ in asked) == asked
        assert line.leave(None)[1] == 0


def written_down(database: Path) -> bool:
    """Commands are written down beside the work, so that no command waits for the disk."""
    with (
        contextlib.suppress(sqlite3.OperationalError),
        contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as rows,
    ):
        return bool(rows.execute("SELECT count(*) FROM runs").fetchone()[0])
    return False


async def test_a_command_of_a_server_that_was_killed_is_found_by_the_next(machine: Sshd, tmp_path: Path) -> None:
    with wire(tmp_path, entry(machine), hub=False) as killed:
        killed.initialize()
        killed.start_call("exec_bash", command="echo begun; exec sleep 667")
        wait_until(lambda: "sleep 667" in machine.processes().values(), what="the command to start")
        wait_until(lambda: written_down(tmp_path / "state/state.db"), what="the command to be written down")
        killed.process.send_signal(signal.SIGKILL)
        killed.process.wait()
    async with serve(tmp_path, entry(machine)) as server:
        (task,) = (await server.call("list_background_tasks"))["tasks"]
        assert (task["kind"], task["status"], task["sandbox"]) == ("command", "running", machine.name)
        assert task["command"] == "echo begun; exec sleep 667"
        handle = task["tmux_session"]
        assert (await server.call("check_background_task", tmux_session=handle))["log_tail"] == "begun"
        assert (await server.call("stop_background_task", tmux_session=handle))["stopped"]
        (ended,) = (await server.call("list_background_tasks", status="ended"))["tasks"]
        assert ended["exit_code"] == 143
