"""Machines that are configured and cannot be used, through the real server: nothing runs in another place instead."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support import warm
from tests.support.platform import free_port
from tests.support.server import COMMAND, environment, serve

COMMAND_S = 60
BROKEN = {"REMOTE_SANDBOX_LIST": '[{"name": "gpu1", "host": "127.0.0.1"'}
# Every tool that runs or writes something, or reads what could be taken for a machine's, where no sandbox is named.
CALLS = {
    "exec_bash": {"command": "touch pwned"},
    "exec_bash_background": {"command": "touch pwned"},
    "write_remote_file": {"remote_path": "pwned", "content": "x"},
    "edit_remote_file": {"remote_path": "pwned", "old_text": "a", "new_text": "b"},
    "read_remote_file": {"remote_path": "pwned"},
    "list_remote_files": {"remote_path": "."},
    "search_remote_files": {"pattern": "x"},
    "sync_remote_to_local": {"remote_path": ".", "local_path": "{home}/copy"},
    "sync_local_to_remote": {"local_path": "{home}/ours", "remote_path": "pwned"},
    "get_active_sandbox": {},
}


@pytest.mark.parametrize(
    ("env", "config", "told"),
    [
        pytest.param(BROKEN, "", "REMOTE_SANDBOX_LIST is passed over: it is not valid JSON", id="list"),
        pytest.param({}, "[machines.gpu1\n", "config.toml is passed over: it is not valid TOML", id="file"),
    ],
)
async def test_no_call_falls_back_to_the_local_sandbox(
    tmp_path: Path, env: dict[str, str], config: str, told: str
) -> None:
    (tmp_path / "ours").mkdir()
    async with serve(tmp_path, local=True, env=env, config=config) as server:
        for tool, given in CALLS.items():
            problem = await server.fail(tool, **{key: value.format(home=tmp_path) for key, value in given.items()})
            assert (problem["code"], told in problem["error"]) == ("config", True), (tool, problem)
        seen = await server.call("list_sandboxes")
        assert seen["active_sandbox"] == ""
        assert any(told in problem for problem in seen["problems"])
        # It is what the caller asks for.
        assert await server.output("ls ~", sandbox_name="local") == ""
        await server.call("select_sandbox", sandbox_name="local")
        assert await server.output("echo here") == "here\n"


async def test_a_disposable_sandbox_does_not_become_the_default_in_place_of_a_machine(tmp_path: Path) -> None:
    async with serve(tmp_path, local=True, env=BROKEN) as server:
        made = await server.call("create_sandbox")
        assert (await server.fail("exec_bash", command="true"))["code"] == "config"
        assert await server.output("echo in it", sandbox_name=made["sandbox_id"]) == "in it\n"


async def test_the_list_reports_a_platform_that_does_not_answer(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    async with serve(tmp_path, local=True, config=f'[opensandbox]\nserver_url = "{url}"\n') as server:
        seen = await server.call("list_sandboxes")
        told = f"unable to list the platform's sandboxes: the platform at {url} does not answer; check that its server"
        assert [problem for problem in seen["problems"] if problem.startswith(told)] == seen["problems"]
        assert f"the platform at {url} does not answer" in server.answers[-1].content[0].text


async def test_no_sandbox_of_another_kind_is_made_in_place_of_a_platforms(tmp_path: Path) -> None:
    async with serve(tmp_path, local=True, env={"OPENSANDBOX_SERVER": "http://user@box"}) as server:
        problem = await server.fail("create_sandbox")
        assert problem["code"] == "config"
        assert "correct the address in OPENSANDBOX_SERVER" in problem["error"]


@pytest.mark.parametrize(
    ("words", "env"),
    [
        pytest.param(("--config", "gone.toml"), {}, id="file that is not there"),
        pytest.param((), BROKEN, id="list"),
    ],
)
def test_the_command_runs_nothing_and_says_why(tmp_path: Path, words: tuple[str, ...], env: dict[str, str]) -> None:
    def command(*verb: str) -> subprocess.CompletedProcess[bytes]:
        return warm.run([COMMAND, *words, *verb], environment(tmp_path, (), env), timeout=COMMAND_S, cwd=str(tmp_path))

    done = command("exec", "echo pwned")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"no machine that is configured can be used" in done.stderr
    assert command("exec", "--sandbox", "local", "echo", "asked for").stdout == b"asked for\n"
    checked = command("doctor", "local")
    assert checked.returncode == 1
    assert b"No machine that is configured can be used" in checked.stdout
    assert b"All is well" not in checked.stdout
    assert os.listdir(tmp_path) == ["state"]
