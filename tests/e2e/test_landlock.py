"""Sandboxes on this computer without namespaces, through the real server: every tool works in them."""

from __future__ import annotations

import asyncio
import os
import shutil
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from remote_sandbox_mcp.backends.bubblewrap.landlock import REACHABLE
from remote_sandbox_mcp.far.outpost import guard
from tests.support.server import Server, serve
from tests.support.sshd import free_port

pytestmark = pytest.mark.skipif(not guard.landlock_version(), reason="this kernel has no Landlock")
SUITE = """
import unittest
class Sums(unittest.TestCase):
    def test_right(self): self.assertEqual(2 + 2, 4)
    def test_wrong(self): self.assertEqual(2 + 2, 5)
"""


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    home = tmp_path_factory.mktemp("server")
    async with serve(home, local=True, config='walls = "landlock"\n') as server:
        yield server
    # Root's own lie where the user that they run as can pass.
    there = Path(os.path.realpath(home / "state/local/local"))
    if there.parent == REACHABLE:
        shutil.rmtree(there)


@pytest.fixture(scope="module", params=["local", "disposable"])
async def place(request: pytest.FixtureRequest, server: Server) -> AsyncIterator[str]:
    """The sandbox on this computer, and one that is made and deleted."""
    if request.param == "local":
        yield "local"
        return
    made = await server.call("create_sandbox")
    assert made["limits"]["told"][0].startswith("walls: Landlock"), made
    yield made["sandbox_id"]
    await server.call("delete_sandbox", sandbox_id=made["sandbox_id"])


async def test_a_suite_runs_there(server: Server, place: str) -> None:
    await server.call("write_remote_file", remote_path="suite/test_sums.py", content=SUITE, sandbox_name=place)
    report = await server.call("run_tests", sandbox_id=place, path="suite", command="python3 -m unittest -v")
    assert (report["passed"], report["failed"]) == (1, 1)
    assert "test_wrong" in str(report["failures"])


async def test_an_app_is_deployed_and_opens_here(server: Server, place: str) -> None:
    await server.call("write_remote_file", remote_path="site/index.html", content="hello", sandbox_name=place)
    port = free_port()
    command = f"exec python3 -m http.server --bind 127.0.0.1 -d ~/site {port}"
    app = await server.call("deploy_app", sandbox_id=place, command=command, port=port)
    assert app["health"]["ok"], app
    with await asyncio.to_thread(urllib.request.urlopen, app["url"], timeout=20) as answer:
        assert answer.read() == b"hello"
    await server.call("stop_background_task", tmux_session=app["task"], sandbox_name=place)


async def test_python_keeps_its_state(server: Server, place: str) -> None:
    await server.call(
        "run_python", code="import os\nx = 6\nos.chmod(os.path.expanduser('~'), 0o700)", sandbox_name=place
    )
    assert (await server.call("run_python", code="x * 7", sandbox_name=place))["value"] == "42"


async def test_a_job_is_followed_and_stopped(server: Server, place: str) -> None:
    given = {"command": "echo begun; sleep 600", "session_name": "long", "watch": False, "sandbox_name": place}
    await server.call("exec_bash_background", **given)
    where = {"tmux_session": "long", "sandbox_name": place}
    waited = await server.call("wait_background_task", until_pattern="^begun", timeout_s=20, **where)
    assert waited["reason"] == "pattern"
    assert (await server.call("stop_background_task", grace_s=1, **where))["stopped"]


async def test_a_folder_is_synced_both_ways(server: Server, place: str, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/tool").write_text("#!/bin/sh\necho from there\n")
    (tmp_path / "tree/tool").chmod(0o755)
    await server.call("sync_local_to_remote", local_path=str(tmp_path / "tree"), remote_path="tree", sandbox_name=place)
    assert await server.output("./tree/tool >tree/out; cat tree/out", sandbox_name=place) == "from there\n"
    back = str(tmp_path / "tree")
    await server.call("sync_remote_to_local", remote_path="tree", local_path=back, sandbox_name=place)
    assert (tmp_path / "tree/out").read_text() == "from there\n"
