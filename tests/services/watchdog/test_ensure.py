"""The hub, started by whoever needs the watchdog and is not the hub itself."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from remote_sandbox_mcp.services.hub_contact import starting
from remote_sandbox_mcp.services.hub_contact.place import LIVED_BY
from remote_sandbox_mcp.services.watchdog.ensure import LONGEST_S, ensure_running
from tests.services.watchdog.conftest import WATCH, Post, variables
from tests.support.pace import at_most
from tests.support.sshd import wait_until

ENSURE = """
import asyncio, os, pathlib, sys
from remote_sandbox_mcp.services.watchdog.ensure import ensure_running
sys.stdin.readline()
print(asyncio.run(ensure_running(pathlib.Path(os.environ["REMOTE_SANDBOX_MCP_HOME"]), None)))
"""


@pytest.fixture
def post(post: Post) -> Post:
    """With something to look after: else the hub would soon look no more."""
    post.watches.add(WATCH)
    return post


async def test_it_is_the_hub_which_is_nobodys_child(post: Post) -> None:
    assert await ensure_running(post.state, None) == ""
    pid = post.pid
    assert os.getsid(pid) not in (pid, os.getsid(0))
    assert parent_of(pid) != os.getpid()
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    log = str(post.state / "hub/hub.log")
    assert [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in (0, 1, 2)] == ["/dev/null", log, log]
    wait_until(lambda: post.beat_since(0), what="a heartbeat")
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not post.pid, what="its end")
    assert "watching no more: told to end" in Path(log).read_text()
    assert not post.log


def files_of(pid: int) -> list[str]:
    """What a process has open; it may close some of it while this looks."""
    opened = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            opened.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return opened


async def test_no_secret_and_no_open_file_comes_along(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {"REMOTE_PASSWORD": "hunter2", "REMOTE_SANDBOX_LIST": "[]", "REMOTE_KEY_PASSPHRASE": "x", "TOKEN": "y"}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    with os.fdopen(os.open(os.devnull, os.O_RDONLY)) as mine:
        os.set_inheritable(mine.fileno(), True)
        assert await ensure_running(post.state, None) == ""
        found = variables(post.pid)
        assert found.keys() & secrets.keys() == set()
        assert found["REMOTE_SANDBOX_MCP_HOME"] == str(post.state)
        assert found.keys() <= LIVED_BY | starting.LOGIN | {"PWD", "_"}
        assert files_of(post.pid).count(os.devnull) == 1


async def test_where_one_runs_there_is_nothing_to_do_and_that_is_known_at_once(post: Post) -> None:
    post.watch()
    durations = []
    for _ in range(20):
        begun = time.perf_counter()
        assert await ensure_running(post.state, None) == ""
        durations.append(time.perf_counter() - begun)
    assert min(durations) < 0.001
    assert post.pid == post.started[0].pid
    assert not (post.state / "hub").exists()


def test_of_several_who_need_it_at_once_one_starts_it(post: Post) -> None:
    words = [sys.executable, "-c", ENSURE]
    crowd = [subprocess.Popen(words, stdin=-1, stdout=-1, text=True, cwd=post.state) for _ in range(4)]
    for process in crowd:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.communicate()[0] for process in crowd] == ["\n"] * 4
    wait_until(lambda: post.beat_since(0), what="a heartbeat")
    told = (post.state / "hub/hub.log").read_text()
    assert (told.count("began as process"), told.count("watching over")) == (1, 1)


async def test_after_a_kill_it_is_started_again(post: Post) -> None:
    assert await ensure_running(post.state, None) == ""
    first = post.pid
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not post.pid, what="the kernel to let go of its lock")
    assert await ensure_running(post.state, None) == ""
    assert post.pid not in (0, first)


async def test_one_that_cannot_start_is_told_in_a_sentence(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    begun = time.monotonic()
    told = await ensure_running(post.state, None)
    assert told.startswith("The watchdog could not be started: no hub can be asked: the hub at ")
    assert told.endswith(f"has hung up; {post.state}/hub/hub.log may say why")
    assert time.monotonic() - begun < at_most(LONGEST_S)


async def test_a_folder_that_others_could_use_is_told_in_a_sentence(post: Post) -> None:
    (post.state / "hub").mkdir(mode=0o700)
    (post.state / "hub").chmod(0o770)
    told = await ensure_running(post.state, None)
    assert told == (
        f"The watchdog could not be started: no hub can be asked: {post.state}/hub is not a folder of this user's alone"
    )


async def test_one_that_is_slow_to_start_is_not_waited_for_long(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = post.state / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 5\n")
    slow.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(slow))
    begun = time.monotonic()
    assert await ensure_running(post.state, None) == ""
    assert LONGEST_S - 0.1 < time.monotonic() - begun < at_most(LONGEST_S + 0.5)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
