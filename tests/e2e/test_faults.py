"""One test for each known fault of older programs of this kind: it fails where a server behaves as they did."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from tests.support.line import ThreadedLine
from tests.support.pace import at_most
from tests.support.server import Server, entry, error_of, serve, until
from tests.support.sshd import HOST, PASSWORD, Fleet, Sshd, closed_port


def lines_of(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


async def test_serial_calls(server: Server) -> None:
    """Twenty calls at once took twenty times as long as one."""
    await server.run("true")
    begun = time.monotonic()
    await asyncio.gather(*(server.run("sleep 1") for _ in range(20)))
    assert time.monotonic() - begun < at_most(6)


async def test_dead_machines_delay_live_ones(machine: Sshd, tmp_path: Path) -> None:
    """Machines were asked one after another, each dead one for half a minute."""
    with closed_port() as closed:
        dead = {"name": "dead", "host": HOST, "port": closed, "user": "x", "password": "y"}
        async with serve(tmp_path, dead, entry(machine)) as server:
            begun = time.monotonic()
            seen = await server.call("list_sandboxes", check_resources=True)
            assert [sandbox["connection_alive"] for sandbox in seen["sandboxes"]] == [False, True]
            assert time.monotonic() - begun < at_most(6)


async def test_double_run(machine: Sshd, tmp_path: Path) -> None:
    """After a cut connection the command was sent once more."""
    count = machine.home / "double-run"
    with ThreadedLine(machine.port) as line:
        async with serve(tmp_path, entry(machine, port=line.port)) as server:
            call = asyncio.ensure_future(server.run("echo once >> double-run; sleep 1; echo done"))
            await until(lambda: lines_of(count), "the command to begin")
            line.cut()
            assert await call == {"exit_code": 0, "stdout": "done\n"}
            assert lines_of(count) == ["once"]


async def test_lost_disconnect(machine: Sshd, tmp_path: Path) -> None:
    """A cut connection was told as the command's own "exit -1"."""
    count = machine.home / "lost-disconnect"
    with ThreadedLine(machine.port) as line:
        patience = {"REMOTE_SANDBOX_PATIENCE_S": "2"}
        async with serve(tmp_path, entry(machine, port=line.port), env=patience) as server:
            command = "echo begun >> lost-disconnect; sleep 1; exit 3"
            call = asyncio.ensure_future(server.ask("exec_bash", command=command))
            await until(lambda: lines_of(count), "the command to begin")
            line.refuse()
            line.cut()
            answer = await call
            assert answer.structured_content is None
            told = error_of(answer)
            assert told["connection_error"] is True
            assert told["outcome"] == "unknown"
            line.refuse(False)

            async def end() -> object:
                seen = await server.call("check_background_task", tmux_session=told["tmux_session"])
                return seen.get("exit_code")

            assert await until(end, "the command to end") == 3


async def test_surviving_children(server: Server, machine: Sshd) -> None:
    """A timeout ended the call and left the command, or its children, running."""
    done = await server.run("setsid sleep 671 & nohup sleep 672 >/dev/null & (sleep 673 &); sleep 674", timeout_s=0.5)
    assert done["timed_out"] is True
    assert not [command for command in machine.processes().values() if command.startswith("sleep 67")]


async def test_open_stdin(server: Server) -> None:
    """A command that reads waited for input that never came, until its timeout."""
    begun = time.monotonic()
    assert await server.run("cat; read answer; sort", timeout_s=20) == {"exit_code": 0}
    assert time.monotonic() - begun < at_most(10)


async def test_unquoted_cwd(server: Server, machine: Sshd) -> None:
    """`cd ${dir} &&` ran what a folder's name said, and failed on a blank."""
    name = "my $(touch ~/pwned) folder; touch ~/pwned"
    (machine.home / name.replace("/", "_")).mkdir()
    assert (await server.fail("exec_bash", command="true", cwd=name))["code"] == "not_started"
    shown = await server.output("pwd", cwd=name.replace("/", "_"))
    assert shown == f"{machine.home}/{name.replace('/', '_')}\n"
    assert not (machine.home / "pwned").exists()


async def test_changed_host_key(fleet: Fleet, tmp_path: Path) -> None:
    """Any host key was accepted, also a new one."""
    machine = fleet.machine("changed-key")
    async with serve(tmp_path, entry(machine)) as server:
        await server.run("true")
        await asyncio.to_thread(machine.change_host_key)
        problem = await server.fail("exec_bash", command="touch pwned")
        assert problem["code"] == "host_key"
        assert f"remote-sandbox-mcp hosts forget {machine.name}" in problem["error"]
        assert not (machine.home / "pwned").exists()


async def test_one_bad_entry_disables_all(machine: Sshd, tmp_path: Path) -> None:
    """One entry that could not be read left no machine at all."""
    async with serve(tmp_path, {"name": "bad", "port": "many"}, entry(machine)) as server:
        assert await server.output("echo hi") == "hi\n"
        assert '"bad"' in (await server.call("list_sandboxes"))["problems"][0]


async def test_secrets_in_error_messages(fleet: Fleet, tmp_path: Path) -> None:
    """Errors quoted the configuration, and with it the password."""
    machine = fleet.machine(auth="password")
    wrong = "almost-" + PASSWORD
    broken = json.dumps([{"host": HOST, "password": PASSWORD}]) + "]"
    for entries, env in (((entry(machine, password=wrong),), {}), ((), {"REMOTE_SANDBOX_LIST": broken})):
        async with serve(tmp_path, *entries, env=env) as server:
            await server.ask("exec_bash", command="true")
            await server.client.call_tool("list_sandboxes", {"check_resources": True})
            said = server.everything_said
            assert PASSWORD not in said
            assert json.dumps(PASSWORD)[1:-1] not in said


async def test_exit_124(server: Server) -> None:
    """A command's own exit code 124 was taken for a timeout."""
    assert await server.run("exit 124") == {"exit_code": 124}


async def test_silent_truncation(server: Server) -> None:
    """Output above 4 MB was cut without a word."""
    done = await server.run("seq -w 1 1000000")
    assert done["truncated"] is True
    assert done["stdout_bytes"] == 8_000_000
    assert " of 8000000 bytes left out" in done["stdout"]
    assert done["stdout"].endswith("0999999\n1000000\n")
    part = await server.call("read_remote_file", remote_path=done["stdout_file"], offset=5_000_000, max_bytes=8)
    assert part["content"] == "0625001\n"
