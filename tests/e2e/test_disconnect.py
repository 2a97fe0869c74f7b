"""Cut, frozen and killed connections: the result is the true one, and nothing ever runs twice."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.line import ThreadedLine
from tests.support.pace import at_most
from tests.support.server import Server, entry, error_of, serve, until
from tests.support.sshd import Sshd, _signal

# Says that it has begun, works for a while, and ends in a way that cannot be guessed.
WORK = "echo $$ >> count; echo begun; sleep 1.5; echo done; exit 5"
RESULT = {"exit_code": 5, "stdout": "begun\ndone\n"}


@pytest.fixture
def line(machine: Sshd) -> Iterator[ThreadedLine]:
    """A line to the machine that can be cut; afterwards nothing of the test is left there."""
    with ThreadedLine(machine.port) as line:
        yield line
    machine.reset()
    for name in ("count", "log"):
        (machine.home / name).unlink(missing_ok=True)


def times_begun(machine: Sshd) -> int:
    count = machine.home / "count"
    return len(count.read_text().splitlines()) if count.exists() else 0


async def begin(server: Server, machine: Sshd, command: str = WORK) -> asyncio.Future[dict[str, Any]]:
    """Start a command; on return it runs."""
    call = asyncio.ensure_future(server.run(command))
    await until(lambda: times_begun(machine) or call.done(), "the command to begin")
    assert not call.done(), call.result()
    return call


async def restart(machine: Sshd) -> None:
    await asyncio.to_thread(machine.stop)
    await asyncio.to_thread(machine.start)


@pytest.mark.parametrize("trouble", ["line cut", "sessions killed", "sshd restarted", "cut again and again"])
async def test_trouble_during_a_command_leaves_its_true_result(
    machine: Sshd, line: ThreadedLine, tmp_path: Path, trouble: str
) -> None:
    async with serve(tmp_path, entry(machine, port=line.port)) as server:
        call = await begin(server, machine)
        if trouble == "line cut":
            line.cut()
        elif trouble == "sessions killed":
            await asyncio.to_thread(machine.kill_sessions)
        elif trouble == "sshd restarted":
            await restart(machine)
        else:
            for opened in range(2, 6):
                line.cut()
                await until(lambda opened=opened: line.total_opened >= opened, "a new connection")
        assert await call == RESULT
        assert times_begun(machine) == 1
        assert line.total_opened >= 2


async def test_a_command_that_ends_while_the_line_is_cut_is_reported_afterwards(
    machine: Sshd, line: ThreadedLine, tmp_path: Path
) -> None:
    async with serve(tmp_path, entry(machine, port=line.port)) as server:
        call = await begin(server, machine, "echo $$ >> count; sleep 0.5; seq 1 50000; echo done >> count; exit 5")
        line.refuse()
        line.cut()
        await until(lambda: times_begun(machine) == 2, "the command to end")
        line.refuse(False)
        done = await call
        assert done["exit_code"] == 5
        assert done["stdout_bytes"] == len("".join(f"{number}\n" for number in range(1, 50_001)))
        assert done["stdout"].endswith("49999\n50000\n")


async def test_a_machine_that_is_gone_leaves_an_unknown_outcome_and_a_handle(
    machine: Sshd, line: ThreadedLine, tmp_path: Path
) -> None:
    patience = {"REMOTE_SANDBOX_PATIENCE_S": "3"}
    async with serve(tmp_path, entry(machine, port=line.port), env=patience) as server:
        call = asyncio.ensure_future(server.fail("exec_bash", command=WORK))
        await until(lambda: times_begun(machine), "the command to begin")
        line.refuse()
        line.cut()
        problem = await call
        assert problem["connection_error"] is True
        assert problem["code"] == "connection_lost"
        assert problem["outcome"] == "unknown"
        # As much as had come by then.
        assert problem["error"].partition("\nstdout so far:\n")[2] in ("", "begun\n")
        handle = problem["tmux_session"]
        assert handle in problem["error"]
        assert (await server.fail("exec_bash", command="true"))["outcome"] == "not_started"
        line.refuse(False)
        seen = await server.call("check_background_task", tmux_session=handle)
        end = {"running": False, "outcome": "failed", "exit_code": 5, "log_tail": "begun\ndone"}
        assert seen == {"tmux_session": handle, **end}
        assert times_begun(machine) == 1


async def test_a_command_killed_with_its_keeper_is_reported_as_lost(
    machine: Sshd, line: ThreadedLine, tmp_path: Path
) -> None:
    async with serve(tmp_path, entry(machine, port=line.port)) as server:
        call = asyncio.ensure_future(server.fail("exec_bash", command=WORK.replace("1.5", "30")))
        await until(lambda: times_begun(machine), "the command to begin")
        await asyncio.to_thread(machine.reset)
        problem = await call
        assert problem["code"] == "connection_lost"
        assert problem["outcome"] == "lost"
        assert times_begun(machine) == 1


async def test_a_connection_that_was_cut_between_calls_is_not_noticed_by_the_next_one(
    machine: Sshd, line: ThreadedLine, tmp_path: Path
) -> None:
    async with serve(tmp_path, entry(machine, port=line.port)) as server:
        for number in range(3):
            assert [await server.output("echo hi") for _ in range(2)] == ["hi\n"] * 2
            assert line.total_opened == number + 1
            line.cut()
        assert await server.call("read_remote_file", remote_path=".ssh/authorized_keys")


async def test_a_frozen_connection_is_noticed_within_seconds_and_replaced(
    machine: Sshd, line: ThreadedLine, tmp_path: Path
) -> None:
    async with serve(tmp_path, entry(machine, port=line.port)) as server:
        await server.run("true")
        _signal(machine.sessions(), signal.SIGSTOP)
        begun = time.monotonic()
        assert await server.run(WORK.replace("1.5", "0.1")) == RESULT
        assert time.monotonic() - begun < at_most(8)
        assert times_begun(machine) == 1
        assert line.total_opened == 2
        begun = time.monotonic()
        await server.run("true")
        assert time.monotonic() - begun < at_most(2)


async def test_a_line_that_freezes_and_thaws_runs_nothing_twice(
    machine: Sshd, line: ThreadedLine, tmp_path: Path
) -> None:
    async with serve(tmp_path, entry(machine, port=line.port)) as server:
        await server.run("true")
        line.freeze()
        call = asyncio.ensure_future(server.run(WORK))
        await until(lambda: line.total_opened == 2, "a new connection")
        # Now both connections go on: the one that was given up still carries the first start.
        line.thaw()
        assert await call == RESULT
        assert times_begun(machine) == 1


@pytest.mark.parametrize(
    ("machine", "seed"),
    [({}, 1), ({}, 2), ({"python": False}, 3)],
    ids=["first", "second", "without python"],
    indirect=["machine"],
)
async def test_under_random_cuts_nothing_runs_twice_and_every_result_is_true(
    machine: Sshd, line: ThreadedLine, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    async with serve(tmp_path, entry(machine, port=line.port)) as server:
        await server.run("true")
        answers: dict[str, dict[str, Any]] = {}
        last: list[str] = []

        async def cut() -> None:
            for _ in range(10):
                await until(lambda: line.connections, "a connection")
                # Somewhere in its handshake, at a command's start, in its middle or at its end.
                await asyncio.sleep(chance.random() * 0.6)
                line.cut()

        cutting = asyncio.ensure_future(cut())

        async def work(lane: int) -> None:
            for number in itertools.count():
                name = f"{lane}-{number}"
                command = f"echo {name} >> log; sleep {chance.random() * 0.3:.3f}; echo {name}"
                is_last = cutting.done()
                answer = await server.ask("exec_bash", command=command)
                answers[name] = dict(answer.structured_content or error_of(answer))
                if is_last:
                    last.append(name)
                    return

        await asyncio.gather(cutting, *(work(lane) for lane in range(4)))
        begun = (machine.home / "log").read_text().split()
        for name, answer in answers.items():
            if "exit_code" in answer:
                assert (answer["exit_code"], answer["stdout"]) == (0, f"{name}\n")
                assert begun.count(name) == 1, name
            elif answer.get("outcome") == "not_started":
                assert begun.count(name) == 0, answer
            else:
                assert answer.get("outcome") == "unknown", answer
                assert begun.count(name) <= 1, answer
        # After the last cut every command has its result again.
        assert [answers[name].get("exit_code") for name in last] == [0] * 4, answers


async def test_a_file_is_whole_whenever_the_line_is_cut(machine: Sshd, line: ThreadedLine, tmp_path: Path) -> None:
    async with serve(tmp_path, entry(machine, port=line.port)) as server:
        await server.run("true")
        target = machine.home / "large"
        for round_number in range(4):
            content = str(round_number) * 3_000_000
            call = asyncio.ensure_future(server.ask("write_remote_file", remote_path="large", content=content))
            await asyncio.sleep(0.03 * round_number)
            line.cut()
            answer = await call
            found = target.read_text() if target.exists() else ""
            assert len(set(found)) <= 1
            assert len(found) in (0, 3_000_000)
            if not answer.is_error:
                assert found == content
        await until(lambda: not list(machine.home.glob(".remote-sandbox-*")), "what was not put in place to go")
