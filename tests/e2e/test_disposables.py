"""Disposable sandboxes through the real server: they outlive it, however it ends, until their time is over."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.support.server import Server, serve, until
from tests.support.sshd import all_processes


def left_behind(home: Path) -> list[str]:
    """What still runs behind walls of this server's, and what still lies in its folders."""
    running = [process.command for process in all_processes() if f"{home}/state/disposable" in process.command]
    folder = home / "state" / "disposable"
    return running + [str(path) for path in (folder.glob("sb-*") if folder.is_dir() else ())]


async def make(server: Server, **given: object) -> str:
    return str((await server.call("create_sandbox", **given))["sandbox_id"])


async def test_processes_end_with_their_server_and_the_files_stay(tmp_path: Path) -> None:
    async with serve(tmp_path, hub=False) as server:
        place = await make(server)
        await server.call("exec_bash_background", command="sleep 600", sandbox_name=place)
    folder = str(tmp_path / "state" / "disposable" / place)
    await until(lambda: left_behind(tmp_path) == [folder], "its processes to end", 20)


async def test_a_sandbox_that_expired_while_no_server_ran_is_ended_by_the_next(tmp_path: Path) -> None:
    async with serve(tmp_path, hub=False) as server:
        place = await make(server, timeout=1)
        os.kill(server.pid, signal.SIGKILL)
    async with serve(tmp_path) as server:
        await until(lambda: not left_behind(tmp_path), "what was left to be swept", 30)
        problem = await server.fail("run_command", sandbox_id=place, command="true")
        assert problem["code"] == "unknown_sandbox"


async def test_the_next_server_finds_a_sandbox_again(tmp_path: Path) -> None:
    async with serve(tmp_path) as server:
        place = await make(server, timeout=3600, name="lasting")
        await server.output("echo here >~/file", sandbox_name=place)
    async with serve(tmp_path) as server:
        assert await server.output("cat ~/file", sandbox_name="lasting") == "here\n"
        listed = (await server.call("list_sandboxes"))["sandboxes"]
        assert [(it["name"], it["id"]) for it in listed] == [("lasting", place)]
        await server.call("delete_sandbox", sandbox_id=place)
    await until(lambda: not left_behind(tmp_path), "nothing to be left", 20)


async def test_a_machine_takes_the_same_tools(tmp_path: Path) -> None:
    async with serve(tmp_path, local=True) as server:
        done = await server.call("run_command", sandbox_id="local", command="echo same")
        assert (done["exit_code"], done["stdout"]) == (0, "same\n")
        put = await server.call("upload_files", sandbox_id="local", files=[{"path": "~/x", "text": "y"}])
        assert put["files"] == [{"path": "~/x", "size": 1}]
