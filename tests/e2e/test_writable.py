"""A machine on which only some folders may be written, through the real server: every tool works, within its walls."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from remote_sandbox_mcp.far.outpost import guard
from tests.support.server import Server, entry, serve, until
from tests.support.sshd import Sshd

pytestmark = pytest.mark.skipif(not guard.landlock_version(), reason="this kernel has no Landlock")


@pytest.fixture(scope="module")
async def server(machine: Sshd, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    made = machine.client("mkdir project other; printf untouched >other/file")
    await asyncio.to_thread(subprocess.run, made, check=True)
    async with serve(tmp_path_factory.mktemp("server"), entry(machine, writable=["~/project"])) as server:
        yield server
    machine.reset()


@pytest.fixture(autouse=True)
def untouched(machine: Sshd) -> AsyncIterator[None]:
    yield
    assert [(file.name, file.read_text()) for file in (machine.home / "other").iterdir()] == [("file", "untouched")]


async def test_it_is_listed_with_what_may_be_written(server: Server, machine: Sshd) -> None:
    rows = (await server.call("list_sandboxes"))["sandboxes"]
    assert [row.get("writable") for row in rows if row["name"] == machine.name] == ["~/project"]


async def test_a_job_outlives_its_server_and_stays_within(server: Server, machine: Sshd, tmp_path: Path) -> None:
    command = "touch other/new; until [ -e project/go ]; do sleep 0.05; done; touch other/newer; echo $?; sleep 600"
    started = await server.call("exec_bash_background", command=command, session_name="walled", watch=False)
    assert (started["status"], started.get("detached")) == ("started", None)
    # Another server, on another connection, with walls of its own around the same folders.
    async with serve(tmp_path, entry(machine, writable=["~/project"])) as other:
        await other.output("touch project/go")
        waited = await other.call("wait_background_task", tmux_session="walled", until_pattern="^1$", timeout_s=20)
        assert waited["reason"] == "pattern"
        assert "denied" in waited["log_tail"]
        stopped = await other.call("stop_background_task", tmux_session="walled", grace_s=1)
        assert (stopped["running"], stopped["stopped"]) == (False, True)
    await until(lambda: "sleep 600" not in str(machine.processes()), "the end of the job's processes")


async def test_a_job_without_tmux_stays_within(server: Server) -> None:
    command = "touch other/new; echo ended $?"
    await server.call("exec_bash_background", command=command, session_name="plain", cwd="project", watch=False)
    waited = await server.call("wait_background_task", tmux_session="plain", timeout_s=20)
    assert "ended 1" in waited["log_tail"]


async def test_files_and_folders_move_within_only(server: Server, machine: Sshd, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_text("sent")
    sent = await server.call("sync_local_to_remote", local_path=str(tmp_path / "tree"), remote_path="project/tree")
    assert sent["uploaded_files"] == 1
    refused = await server.call("sync_local_to_remote", local_path=str(tmp_path / "tree"), remote_path="other")
    assert (refused["uploaded_files"], refused["problems"][0]["path"]) == (0, "file")


TRY = """
import os
try:
    open(os.path.expanduser("~/other/new"), "w")
except OSError as problem:
    no = problem.errno
"""


async def test_a_python_and_a_shell_keep_their_state_within(server: Server) -> None:
    await server.call("run_python", code=TRY)
    assert (await server.call("run_python", code="no"))["value"] == "13"
    await server.call("stop_background_task", tmux_session="python:main")
    await server.run("cd project; x=1", session="main")
    assert await server.output('echo "$x"; touch ../other/new 2>/dev/null || echo no', session="main") == "1\nno\n"
    await server.call("stop_background_task", tmux_session="shell:main")


async def test_walls_that_cannot_be_held_refuse_the_machine(machine: Sshd, tmp_path: Path) -> None:
    async with serve(tmp_path, entry(machine, writable=["~/nowhere"])) as server:
        problem = await server.fail("exec_bash", command="true")
        assert "writable cannot be held there: ~/nowhere is no folder there" in problem["error"]
