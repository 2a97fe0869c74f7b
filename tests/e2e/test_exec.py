"""exec_bash tells the truth: through the real server, over real SSH, in a real shell."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from remote_sandbox_mcp.core.commands.shell import quote
from tests.support.pace import at_most
from tests.support.server import Server, entry, serve, until
from tests.support.sshd import Sshd

MIB = 1 << 20


def running(machine: Sshd, word: str) -> list[str]:
    """The machine's processes that have this word on their command line."""
    return [command for command in machine.processes().values() if word in command.split()]


def starts(machine: Sshd, word: str) -> Callable[[], object]:
    return lambda: running(machine, word)


async def test_a_command_runs_as_the_user_at_home_in_a_bash_of_its_own(server: Server, machine: Sshd) -> None:
    assert await server.output("id -un; pwd; echo ${BASH_VERSION:+bash}") == f"{machine.user}\n{machine.home}\nbash\n"
    await server.run("cd /; export LEFT=1; x=1")
    assert await server.output("pwd; echo $LEFT$x") == f"{machine.home}\n\n"


async def test_both_streams_and_the_exit_code_come_back(server: Server) -> None:
    done = await server.run("echo out; echo err >&2; exit 3")
    assert done == {"exit_code": 3, "stdout": "out\n", "stderr": "err\n"}


# The end of a command

CHILDREN = {
    "plain": "sleep 611 & wait",
    "setsid": "setsid sleep 611 & wait",
    "nohup": "nohup sleep 611 >/dev/null 2>&1 & wait",
    "double fork": "(setsid sh -c 'sleep 611 & sleep 611' &) ; sleep 611",
    "daemon": 'python3 -c "import os,time; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); '
    "[os.close(n) for n in range(3)]; os.execvp('sleep', ['sleep', '611'])\"; sleep 611",
    "pipeline": "sleep 611 | sleep 611 | cat",
    "stubborn": "trap '' TERM; sh -c \"trap '' TERM; while :; do sleep 611; done\"",
    "stopped": "sleep 611 & kill -STOP $!; wait",
}


@pytest.mark.parametrize("children", CHILDREN)
async def test_a_timeout_ends_the_whole_tree_and_keeps_what_was_printed(
    server: Server, machine: Sshd, children: str
) -> None:
    begun = time.monotonic()
    done = await server.run(f"echo before; {CHILDREN[children]}", timeout_s=0.7)
    assert done == {"exit_code": 124, "timed_out": True, "stdout": "before\n"}
    assert not running(machine, "611")
    assert time.monotonic() - begun < at_most(8)


async def test_an_exit_124_of_the_command_itself_is_no_timeout(server: Server) -> None:
    assert await server.run("exit 124") == {"exit_code": 124}
    assert await server.run("timeout 0.1 sleep 5") == {"exit_code": 124}


@pytest.mark.parametrize(("signal", "code"), [("SEGV", 139), ("KILL", 137), ("TERM", 143)])
async def test_a_death_by_signal_says_which(server: Server, signal: str, code: int) -> None:
    assert await server.run(f"kill -{signal} $$") == {"exit_code": code, "signal": f"SIG{signal}"}


async def test_a_process_left_behind_does_not_delay_the_result_and_is_reported(server: Server, machine: Sshd) -> None:
    begun = time.monotonic()
    done = await server.run("nohup sleep 622 & echo $!")
    assert time.monotonic() - begun < at_most(5)
    assert done["left_running"] == [int(done["stdout"])]
    assert running(machine, "622")
    await server.run(f"kill {done['stdout']}")


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_cancelled_call_ends_its_command(machine: Sshd, tmp_path: Path, mode: str) -> None:
    async with serve(tmp_path, entry(machine), mode=mode) as server:
        call = asyncio.ensure_future(server.run("setsid sleep 633 & sleep 633"))
        await until(starts(machine, "633"), "the command to start")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: not running(machine, "633"), "the command to end")
        assert await server.output("echo on") == "on\n"


# What goes in


async def test_the_input_is_empty_and_not_open(server: Server) -> None:
    begun = time.monotonic()
    assert await server.run("cat") == {"exit_code": 0}
    assert await server.run("read x; echo $?") == {"exit_code": 0, "stdout": "1\n"}
    assert await server.run("python3 -c 'input()'; ssh-keygen -q -f .ssh/authorized_keys <&0; true", timeout_s=10)
    assert time.monotonic() - begun < at_most(9)


FOLDERS = [
    "it's",
    'a "b"',
    "a  b",
    "$(touch pwned)",
    "`touch pwned`",
    "; touch pwned #",
    "-rf",
    "new\nline",
    "ä🙂",
]


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("start", ["", "~/", "/"], ids=["relative", "home", "absolute"])
async def test_the_folder_is_taken_literally(server: Server, machine: Sshd, name: str, start: str) -> None:
    await server.run(f"mkdir -p -- {quote(name)}")
    cwd = f"{machine.home}/{name}" if start == "/" else start + name
    assert await server.output("pwd", cwd=cwd) == f"{machine.home}/{name}\n"
    assert not list(machine.folder.rglob("pwned"))


@pytest.mark.parametrize("cwd", ["/nope", "~/$(touch pwned)x", ".ssh/authorized_keys", "x" * 5000])
async def test_a_folder_that_cannot_be_entered_is_reported_and_nothing_runs(
    server: Server, machine: Sshd, cwd: str
) -> None:
    problem = await server.fail("exec_bash", command="touch pwned ~/pwned", cwd=cwd)
    assert problem["code"] == "not_started"
    assert "unable to enter" in problem["error"]
    assert not list(machine.folder.rglob("pwned"))


async def test_a_command_of_a_megabyte_runs(server: Server) -> None:
    text = "x" * MIB
    assert await server.output(f"text={text}\necho ${{#text}}") == f"{MIB}\n"


# What comes out


async def test_a_hundred_megabytes_cost_little_memory_and_keep_both_ends(server: Server) -> None:
    await server.run("true")
    before = server.memory()
    done = await server.run("echo first; head -c 100000000 /dev/zero | tr '\\0' x; echo; echo last")
    assert server.memory() - before < 20 * MIB
    assert done["exit_code"] == 0
    assert done["truncated"] is True
    assert done["stdout_bytes"] == 100_000_012
    assert done["stdout"].startswith("first\nxxx")
    assert done["stdout"].endswith("xxx\nlast\n")
    assert len(done["stdout"]) < 20_500
    # Not all of that is kept on the machine, and nobody says so.
    assert " of 100000012 bytes left out; the first 67108864 bytes: read_remote_file " in done["stdout"]
    kept = await server.call("read_remote_file", remote_path=done["stdout_file"], offset=67_108_860, max_bytes=100)
    assert kept == {"size": 67_108_864, "truncated": False, "content": "xxxx", "offset": 67_108_860}


async def test_what_is_left_out_can_be_read_by_offset_to_the_last_byte(server: Server) -> None:
    """As far as the note says that it can."""
    done = await server.run("seq -w 1 1000000", max_output_chars=1000)
    whole = done["stdout_bytes"]
    assert whole == 8_000_000
    for number in (1, 250_000, 500_000, 1_000_000):
        part = await server.call(
            "read_remote_file", remote_path=done["stdout_file"], offset=8 * (number - 1), max_bytes=8
        )
        assert part["content"] == f"{number:07}\n"


async def test_bytes_that_are_no_text_and_terminal_escapes_are_made_harmless(server: Server) -> None:
    evil = r"a\xff\xc3b\0c\x1b[2J\x1b]0;title\x07\x1bPq\x1b\\d\x9b31m\x08\r\ne"
    told = (await server.run(f"printf '{evil}'; printf '{evil}' >&2"))["stdout"]
    assert told.startswith("a")
    assert told.endswith("e")
    assert not {letter for letter in told if ord(letter) < 32 or 0x7F <= ord(letter) < 0xA0} - {"\n"}
    assert "title" not in told


async def test_progress_comes_within_two_seconds_and_carries_the_last_line(server: Server) -> None:
    beats: list[tuple[float, str | None]] = []
    begun = time.monotonic()

    async def listen(progress: float, total: float | None, message: str | None) -> None:
        beats.append((time.monotonic() - begun, message))

    await server.call("exec_bash", command="echo step 1; echo step 2; sleep 2", progress=listen)
    assert any(seconds < at_most(2) and message == "step 2" for seconds, message in beats), beats


# What outlasts its call

IMPATIENT = {"REMOTE_SANDBOX_PATIENCE_S": "1"}


async def test_a_command_that_outlasts_the_call_goes_on_and_can_be_asked_after(machine: Sshd, tmp_path: Path) -> None:
    async with serve(tmp_path, entry(machine), env=IMPATIENT) as server:
        waiting = "while ! [ -e may-end ]; do sleep 0.05; done"
        started = await server.run(f"echo one; {waiting}; echo two; echo err >&2; exit 7")
        handle = started["tmux_session"]
        assert started == {"running": True, "tmux_session": handle, "stdout": "one\n"}
        seen = await server.call("check_background_task", tmux_session=handle)
        assert seen == {"tmux_session": handle, "running": True, "outcome": "running", "log_tail": "one"}
        (machine.home / "may-end").touch()

        async def ended() -> dict[str, object] | None:
            now = await server.call("check_background_task", tmux_session=handle)
            return None if now["running"] else now

        assert await until(ended, "the command to end") == {
            "tmux_session": handle,
            "running": False,
            "outcome": "failed",
            "exit_code": 7,
            "log_tail": "one\ntwo",
            "stderr_tail": "err",
        }


async def test_a_command_that_outlasted_its_call_is_known_to_the_next_server_and_can_be_stopped(
    machine: Sshd, tmp_path: Path
) -> None:
    async with serve(tmp_path, entry(machine), env=IMPATIENT) as server:
        handle = (await server.run("echo one; setsid sleep 644 & sleep 644"))["tmux_session"]
    async with serve(tmp_path, entry(machine)) as server:
        seen = await server.call("check_background_task", tmux_session=handle)
        assert seen == {"tmux_session": handle, "running": True, "outcome": "running", "log_tail": "one"}
        stopped = await server.call("stop_background_task", tmux_session=handle)
        assert stopped["running"] is False
        assert stopped["stopped"] is True
        assert stopped["log_tail"] == "one"
        assert not running(machine, "644")
        assert await server.call("stop_background_task", tmux_session=handle) == stopped


async def test_a_command_that_outlasted_its_call_still_ends_at_its_own_timeout(machine: Sshd, tmp_path: Path) -> None:
    async with serve(tmp_path, entry(machine), env=IMPATIENT) as server:
        handle = (await server.run("sleep 655", timeout_s=2))["tmux_session"]
        await until(lambda: not running(machine, "655"), "the timeout")
        # Its keeper still has to write that down.
        seen = await server.call("wait_background_task", tmux_session=handle, timeout_s=20)
        assert seen.pop("reason") == "ended"
        end = {"running": False, "outcome": "failed", "exit_code": 124, "timed_out": True}
        assert seen == {"tmux_session": handle, **end}
