"""The selected sandbox after a restart of the server: the same client gets it back, nobody else does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.services.session import client_of, is_launcher
from tests.support.hubs import is_alive
from tests.support.server import Entry, Wire, arguments, environment, serve, wire
from tests.support.sshd import wait_until

# The default, which must never run what was meant for another: nothing answers there.
REAL: Entry = {"name": "real", "host": "127.0.0.1", "port": 1, "user": "nobody"}


def where(line: Wire) -> Any:
    """Where a command is run that names no sandbox, or would be if that one answered."""
    line.initialize()
    answer = line.call("exec_bash", command="true")
    told = answer["_meta"]["remote-sandbox/error"] if answer.get("isError") else answer["structuredContent"]
    return told["sandbox"]


def selecting(line: Wire, name: str = "local") -> None:
    line.initialize()
    assert line.call("select_sandbox", sandbox_name=name)["structuredContent"]["active_sandbox"] == name


def killed(line: Wire) -> None:
    """Kill its process and wait until it is dead, without asking for its exit code: some clients never do."""
    line.process.kill()
    wait_until(lambda: not is_alive(line.process.pid), what="the server to die")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, None], ids=["killed", "told to end", "input ended"])
def test_it_comes_back_when_the_client_starts_the_server_again(tmp_path: Path, how: signal.Signals | None) -> None:
    with wire(tmp_path, REAL, local=True) as first:
        selecting(first)
        killed(first) if how is signal.SIGKILL else first.leave(how)
        with wire(tmp_path, REAL, local=True) as second:
            assert where(second) == "local"
            selecting(second, "real")
            killed(second)
            with wire(tmp_path, REAL, local=True) as third:
                assert where(third) == "real"


def test_another_configuration_of_the_same_client_has_a_selection_of_its_own(tmp_path: Path) -> None:
    with wire(tmp_path, REAL, local=True) as first:
        selecting(first)
        killed(first)
        with wire(tmp_path, {**REAL, "host": "127.0.0.2"}, local=True) as other:
            assert where(other) == "real"
        with wire(tmp_path, REAL, local=True) as again:
            assert where(again) == "local"


def test_two_servers_of_one_client_have_a_selection_each(tmp_path: Path) -> None:
    with ExitStack() as stack:
        one, two = (stack.enter_context(wire(tmp_path, REAL, local=True)) for _ in range(2))
        selecting(one)
        assert where(two) == "real"
        killed(one)
        with wire(tmp_path, REAL, local=True) as again:
            assert where(again) == "local"
            killed(again)
            killed(two)
        # Now nobody can tell which of them the next one replaces.
        with wire(tmp_path, REAL, local=True) as third:
            third.initialize()
            answer = third.call("exec_bash", command="true")
            assert answer["_meta"]["remote-sandbox/error"]["code"] == "unknown_sandbox"
            told = answer["content"][0]["text"]
            assert "they had selected different sandboxes (local and none); select one" in told
            selecting(third)
            assert third.call("exec_bash", command="true")["structuredContent"]["sandbox"] == "local"


STRANGER = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"


def started_by(tmp_path: Path, *words: str) -> Wire:
    """A server with another process between it and us."""
    process = subprocess.Popen(
        [*words, *arguments(tmp_path, local=True)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(tmp_path, (REAL,)),
    )
    return Wire(process, tmp_path)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param((sys.executable, "-c", STRANGER), "real", id="another client"),
        pytest.param(("/bin/sh", "-c", '"$@"; exit $?', "sh"), "local", id="a shell in between"),
    ],
)
def test_another_client_does_not_get_it_and_a_launcher_is_no_client(
    tmp_path: Path, words: tuple[str, ...], expected: str
) -> None:
    with wire(tmp_path, REAL, local=True, is_child=True) as first:
        selecting(first)
        killed(first)
    line = started_by(tmp_path, *words)
    try:
        assert where(line) == expected
    finally:
        line.leave(None)
        assert line.process.stdout
        line.process.stdout.close()


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("uv tool uvx remote-sandbox-mcp", True),
        ("/usr/bin/uvx remote-sandbox-mcp", True),
        ("node /usr/bin/npx -y remote-sandbox-mcp", True),
        ("node /usr/lib/npm/bin/npx-cli.js x", True),
        ("/usr/bin/env remote-sandbox-mcp", True),
        ("bash -lc remote-sandbox-mcp", True),
        ("bash", False),
        ("-zsh", False),
        ("bash -i", False),
        ("bash client.sh", False),
        ("node /opt/client/main.js", False),
        ("python3.12 client.py", False),
        ("claude", False),
    ],
)
def test_launchers_are_known_by_their_command_lines(command: str, expected: bool) -> None:
    assert is_launcher(command.split(" ")) is expected


def test_a_process_that_is_not_there_is_no_client() -> None:
    assert client_of(0) is None
    found = client_of(os.getpid())
    assert found is not None
    assert found.pid == os.getpid()


async def test_when_the_selected_sandbox_is_over_nothing_runs_elsewhere_however_often_it_is_tried(
    tmp_path: Path,
) -> None:
    async with serve(tmp_path, REAL, local=True) as server:
        made = (await server.call("create_sandbox"))["sandbox_id"]
        await server.call("select_sandbox", sandbox_name=made)
        answer = await server.ask("exec_bash", command="echo here")
        assert (answer.structured_content or {})["sandbox"] == made
        assert getattr(answer.content[0], "text", "").startswith(f"on {made}: exit 0")
        await server.call("delete_sandbox", sandbox_id=made)
        for _ in range(3):
            told = await server.fail("exec_bash", command="touch /somewhere")
            assert told["code"] == "unknown_sandbox"
            assert "was deleted at" in told["error"]
            assert "It was the selected one, so nothing was done" in told["error"]
        listed = await server.call("list_sandboxes")
        assert listed["active_sandbox"] == ""
        assert "It was the selected one" in listed["problems"][0]
        await server.call("select_sandbox", sandbox_name="local")
        assert await server.output("echo here") == "here\n"


def test_a_disposable_sandbox_outlives_the_server_that_is_killed(tmp_path: Path) -> None:
    with wire(tmp_path, REAL, local=True) as first:
        first.initialize()
        made = first.call("create_sandbox", name="web", keep=False)["structuredContent"]["sandbox_id"]
        first.call("write_remote_file", remote_path="a", content="mine", sandbox_name="web")
        first.call("select_sandbox", sandbox_name="web")
        killed(first)
        with wire(tmp_path, REAL, local=True) as second:
            second.initialize()
            found = second.call("read_remote_file", remote_path="a")["structuredContent"]
            assert (found["content"], found["sandbox"]) == ("mine", made)
            with wire(tmp_path, {**REAL, "user": "another"}, local=True) as stranger:
                stranger.initialize()
                told = stranger.call("delete_sandbox", sandbox_id=made)["_meta"]["remote-sandbox/error"]
                assert told["code"] == "unknown_sandbox"
            assert second.call("delete_sandbox", sandbox_id="web")["structuredContent"]["status"] == "deleted"
