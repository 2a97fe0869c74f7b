"""Containers that run already, behind the commands of real engines: Docker's and podman's."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from remote_sandbox_mcp.backends.shell.sandbox import ShellAlone
from remote_sandbox_mcp.core.commands.command import Command, Completed
from remote_sandbox_mcp.core.errors import LostContact, SandboxError, Unreachable
from remote_sandbox_mcp.core.jobs.job import JobOrder, JobQuery, JobState
from remote_sandbox_mcp.core.sandboxes.files import Span
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from tests.backends.contract import finish
from tests.backends.contract.basics import said
from tests.backends.test_command import command_of, opened
from tests.support.commands import open_door
from tests.support.platform import IMAGE, WITHOUT_PYTHON, Platform
from tests.support.podman import PodmanContainer
from tests.support.root import as_root
from tests.support.waiting import eventually

pytestmark = [pytest.mark.xdist_group("platform"), pytest.mark.timeout(120)]


@dataclass(frozen=True)
class Running:
    """A container, and the command that gives a shell in it."""

    argv: list[str]
    restart: Callable[[], object]
    # The engine's words for one that does not run.
    gone: str
    stop: Callable[[], object]


@pytest.fixture(scope="module")
def docker(platform: Platform) -> Iterator[Running]:
    with in_docker(platform, IMAGE) as running:
        yield running


@contextmanager
def in_docker(platform: Platform, image: str) -> Iterator[Running]:
    container = platform.engine.run(image, "sleep", "infinity", options=("--init",))
    argv = [*as_root("docker"), f"--host={platform.engine.socket}", "exec", "-i", container.name, "sh", "-c"]

    def stop() -> None:
        platform.engine.docker("stop", "--time=0", container.name)

    try:
        yield Running(argv, container.restart, "Container [0-9a-f]+ is not running|container .* is not running", stop)
    finally:
        container.remove()


@pytest.fixture(scope="module")
def podman() -> Iterator[Running]:
    with PodmanContainer() as container:
        argv = [*container.command, "exec", "-i", container.name, "sh", "-c"]
        yield Running(argv, container.restart, "container state improper", container.stop)


@pytest.fixture(params=["docker", "podman"])
def container(request: pytest.FixtureRequest) -> Running:
    found: Running = request.getfixturevalue(request.param)
    return found


@pytest.fixture
async def sandbox(container: Running) -> AsyncIterator[Sandbox]:
    async with opened(container.argv) as sandbox:
        yield sandbox


async def test_commands_files_lanes_and_ports_work_in_a_container(sandbox: Sandbox) -> None:
    assert await said(sandbox, "id -u") != b"0\n"
    data = os.urandom(3 << 20)
    await sandbox.write("~/data", data)
    assert (await sandbox.read("~/data", Span(limit=4 << 20))).data == data
    lanes = await asyncio.gather(*(sandbox.open_lane() for _ in range(3)))
    for lane in lanes:
        assert (await lane.begin({"verb": "look", "path": "~/data"})).end["kind"] == "file"
        await lane.close()
    serving = asyncio.ensure_future(sandbox.run(Command("exec python3 -m http.server --bind 127.0.0.1 8000")))
    try:
        assert (await eventually(lambda: _asked(sandbox), bool, "the page")).startswith(b"HTTP/1.0 200 OK\r\n")
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def _asked(sandbox: Sandbox) -> bytes:
    try:
        stream = await sandbox.connect(8000)
    except SandboxError:
        return b""
    stream.write(b"GET / HTTP/1.0\r\n\r\n")
    try:
        return await stream.read()
    finally:
        stream.close()


async def test_a_job_goes_on_when_the_sandbox_is_closed_and_nothing_else_does(container: Running) -> None:
    async with opened(container.argv) as sandbox:
        before = await zombies(sandbox)
    async with opened(container.argv) as sandbox:
        # The first process of a container may collect no children but its own. A run of another test may end meanwhile.
        assert await zombies(sandbox) <= before + 1
        job = await sandbox.jobs.start(JobOrder(session="train", script="exec sleep 617"))
    async with opened(container.argv) as sandbox:

        async def outposts() -> int:
            count = "ps -eo stat,args | grep -v '^Z' | grep -c '[i]mport io,zlib.* [0-9a-f]\\{32\\}$'"
            return int((await finish(sandbox, count)).stdout.head)

        # Its own, with the two keepers that wait for work; and the shell that started it where that stays.
        await eventually(outposts, lambda count: count <= 4, "the end of the earlier ones")
        look = JobQuery(job_id=job.job_id)
        assert (await sandbox.jobs.inspect([look]))[0].state is JobState.RUNNING
        assert (await sandbox.jobs.stop(look, 1.0)).state is JobState.ENDED


async def zombies(sandbox: Sandbox) -> int:
    """The dead processes that are left to the first one."""
    return int((await finish(sandbox, "ps -eo ppid,stat | grep -c '^ *1 Z'")).stdout.head)


async def test_a_client_that_is_killed_loses_no_result_and_runs_nothing_twice(sandbox: Sandbox) -> None:
    script = "echo begun >>~/count; while ! [ -e ~/go ]; do sleep 0.05; done; rm ~/go; cat ~/count; rm ~/count; exit 7"
    running = asyncio.ensure_future(sandbox.run(Command(script)))
    await eventually(lambda: finish(sandbox, "[ -e ~/count ]"), lambda done: done.exit_code == 0, "its start")
    os.killpg(command_of(sandbox), signal.SIGKILL)
    await sandbox.write("~/go", b"")
    done = await running
    assert isinstance(done, Completed)
    assert (done.exit_code, done.stdout.head) == (7, b"begun\n")


async def test_a_run_lost_with_a_restart_is_reported_and_not_run_again(container: Running, sandbox: Sandbox) -> None:
    running = asyncio.ensure_future(sandbox.run(Command("echo begun >>~/restarts; exec sleep 60")))
    await eventually(lambda: finish(sandbox, "[ -e ~/restarts ]"), lambda done: done.exit_code == 0, "its start")
    await asyncio.to_thread(container.restart)
    with pytest.raises(LostContact) as lost:
        await running
    assert lost.value.outcome == "lost"
    assert await said(sandbox, "cat ~/restarts; rm ~/restarts") == b"begun\n"


async def test_a_container_without_python_is_served_by_its_shell(platform: Platform) -> None:
    with in_docker(platform, WITHOUT_PYTHON) as container:
        async with opened(container.argv) as sandbox:
            assert isinstance(sandbox, ShellAlone)
            assert await said(sandbox, "id -un") == b"agent\n"
            await sandbox.write("~/a", b"\0\xff\n")
            assert (await sandbox.read("~/a", Span())).data == b"\0\xff\n"


async def test_a_container_that_does_not_run_is_reported_with_the_engines_message(container: Running) -> None:
    """The last test of this file: it stops them."""
    await asyncio.to_thread(container.stop)
    with pytest.raises(Unreachable, match=rf"unable to open door: its command .* said: .*({container.gone})"):
        await open_door(container.argv)
