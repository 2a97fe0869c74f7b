"""A sandbox behind a command, through the real server: it is used as any other, and is started again after a cut."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.commands import NAME, shell_of
from tests.support.server import Server, serve, until
from tests.support.sshd import Sshd, free_port

SECRET = "hunter2-do-not-show"
# Notes the variables that the command gets, and runs what it is asked to.
NOTES = 'env >{place}/environ; exec "$@"'


@pytest.fixture(scope="module")
async def server(machine: Sshd, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    home = tmp_path_factory.mktemp("server")
    argv = ["sh", "-c", NOTES.format(place=home), "door", *shell_of(machine)]
    secrets = {"REMOTE_PASSWORD": SECRET, "OPEN_SANDBOX_API_KEY": SECRET, "HOOK_SECRET": SECRET, "MINE": "yes"}
    config = f'[notify]\nwebhook_secret = "env:HOOK_SECRET"\n[sandboxes.{NAME}]\ncommand = {json.dumps(argv)}\n'
    async with serve(home, env=secrets, config=config) as server:
        yield server
    machine.reset()


async def test_it_is_listed_and_runs_commands_as_its_user(server: Server, machine: Sshd) -> None:
    (listed,) = (await server.call("list_sandboxes"))["sandboxes"]
    assert (listed["name"], listed["kind"], listed["connection_alive"]) == (NAME, "command", True)
    assert await server.output("id -un; pwd; cd /; echo $MINE") == f"{machine.user}\n{machine.home}\n\n"
    assert await server.run("echo err >&2; exit 3") == {"exit_code": 3, "stderr": "err\n"}


async def test_its_command_gets_none_of_our_secrets(server: Server) -> None:
    await server.run("true")
    variables = (server.home / "environ").read_text().splitlines()
    assert f"HOME={server.home}" in variables
    assert not [line for line in variables if SECRET in line or line.startswith(("REMOTE_SANDBOX_", "MINE="))]


async def test_files_are_written_read_and_synced_both_ways(server: Server, machine: Sshd, tmp_path: Path) -> None:
    await server.call("write_remote_file", remote_path="~/a.txt", content="hello\n")
    assert (await server.call("read_remote_file", remote_path="~/a.txt"))["content"] == "hello\n"
    tree = tmp_path / "tree"
    for number in range(200):
        file = tree / f"{number % 7}" / f"{number}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(number) * number)
    (tree / "large").write_bytes(os.urandom(20 << 20))
    await server.call("sync_local_to_remote", local_path=str(tree), remote_path="~/tree")
    assert (machine.home / "tree/large").read_bytes() == (tree / "large").read_bytes()
    back = tmp_path / "back"
    await server.call("sync_remote_to_local", local_path=str(back), remote_path="~/tree")
    assert {path.relative_to(back): path.read_bytes() for path in back.rglob("*") if path.is_file()} == {
        path.relative_to(tree): path.read_bytes() for path in tree.rglob("*") if path.is_file()
    }


async def test_a_job_goes_on_after_its_command_was_killed_and_a_port_is_reached(server: Server, machine: Sshd) -> None:
    port = free_port()
    script = f"mkdir -p ~/site; echo served >~/site/index.html; exec python3 -m http.server -d ~/site {port}"
    await server.call("exec_bash_background", command=script, session_name="web")
    for pid in [pid for pid, command in machine.processes().items() if "import io,zlib" in command]:
        os.kill(pid, signal.SIGKILL)
    task = await server.call("check_background_task", tmux_session="web")
    assert task["running"]
    url = (await server.call("forward_port", sandbox_id=NAME, port=port))["url"]

    async def answers() -> bool:
        return await asyncio.to_thread(fetch, url) == "served\n"

    await until(answers, "the page")
    await server.call("stop_background_task", tmux_session="web")


def fetch(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""
