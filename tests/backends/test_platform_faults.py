"""What becomes of callers when the platform, its engine or a container fails under them."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.backends.link import client
from remote_sandbox_mcp.backends.opensandbox.provider import OpenSandboxProvider
from remote_sandbox_mcp.core.commands.command import Command, Completed, Running
from remote_sandbox_mcp.core.errors import ConnectError, FileProblem, LostContact, SandboxError, Unreachable
from remote_sandbox_mcp.core.sandboxes.disposable import (
    Disposable,
    DisposableRules,
    SandboxOrder,
    Volume,
    new_disposable_id,
)
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from tests.backends.contract.basics import in_background, said
from tests.support.line import ThreadedLine
from tests.support.pace import at_most
from tests.support.platform import IMAGE, WITHOUT_PYTHON, Platform, free_port
from tests.support.root import as_root
from tests.support.waiting import eventually

# The first of them waits for the platform to come up.
pytestmark = [pytest.mark.xdist_group("platform"), pytest.mark.timeout(180)]
RULES = DisposableRules(default_image=IMAGE)
FOREVER = "echo begun; while :; do sleep 0.1; done"
MANY, WAVE = 6, 3


@asynccontextmanager
async def opened(provider: OpenSandboxProvider, **fields: Any) -> AsyncIterator[tuple[Disposable, Sandbox]]:
    made = await provider.create(new_disposable_id(), SandboxOrder(**{"network": True, "name": "victim", **fields}))
    try:
        sandbox = await provider.open(made)
        try:
            yield made, sandbox
        finally:
            await sandbox.close()
    finally:
        await provider.delete(made)


async def running(sandbox: Sandbox, command: Command) -> None:
    """Wait until it prints."""
    await eventually(
        lambda: sandbox.observe(command.run_id), lambda seen: seen.stdout.head == b"begun\n", "the command's output"
    )


# The platform

CALLS: dict[str, Callable[[OpenSandboxProvider, Disposable], Any]] = {
    "create": lambda provider, made: provider.create(new_disposable_id(), SandboxOrder()),
    "open": lambda provider, made: provider.open(made),
    "look": lambda provider, made: provider.inspect(made),
    "list": lambda provider, made: provider.list(),
    "delete": lambda provider, made: provider.delete(made),
    "snapshot": lambda provider, made: provider.snapshot(made),
}


@pytest.mark.parametrize("call", list(CALLS.values()), ids=list(CALLS))
async def test_a_platform_that_is_down_is_reported(platform: Platform, call: Callable[..., Any]) -> None:
    port = free_port()
    provider = OpenSandboxProvider(platform.settings(port), RULES, "tests")
    with pytest.raises(Unreachable, match=f"the platform at http://127.0.0.1:{port} does not answer"):
        await call(provider, Disposable(id="sb-12345678", provider="opensandbox", key="x"))
    await provider.close()


async def test_a_platform_that_does_not_answer_is_not_waited_for_for_ever(platform: Platform) -> None:
    with ThreadedLine(platform.port) as line:
        provider = OpenSandboxProvider(replace(platform.settings(line.port), request_timeout_s=1), RULES, "tests")
        await provider.list()
        line.freeze()
        begun = time.monotonic()
        with pytest.raises(Unreachable, match="did not answer in time"):
            await provider.list()
        assert time.monotonic() - begun < at_most(5)
        line.thaw()
        await provider.list()
        await provider.close()


async def test_a_slow_platform_is_only_slow(platform: Platform) -> None:
    with ThreadedLine(platform.port, rtt_s=0.1) as line:
        provider = OpenSandboxProvider(platform.settings(line.port, use_server_proxy=True), RULES, "tests")
        async with opened(provider) as (_, sandbox):
            begun = time.monotonic()
            assert await said(sandbox, "echo far") == b"far\n"
            assert time.monotonic() - begun < at_most(1)
        await provider.close()


async def test_a_cut_line_is_mended_and_the_true_result_returned(platform: Platform) -> None:
    with ThreadedLine(platform.port) as line:
        provider = OpenSandboxProvider(platform.settings(line.port, use_server_proxy=True), RULES, "tests")
        async with opened(provider) as (_, sandbox):
            command = Command("echo begun; echo x >> starts; while ! [ -e go ]; do sleep 0.05; done; wc -l < starts")
            async with in_background(sandbox.run(command)) as run:
                await running(sandbox, command)
                await asyncio.to_thread(line.cut)
                await sandbox.write("~/go", b"")
                done = await run
            assert isinstance(done, Completed)
            assert (done.exit_code, done.stdout.head) == (0, b"begun\n1\n")
        await provider.close()


async def test_a_restart_of_the_platform_harms_no_run(provider: OpenSandboxProvider, platform: Platform) -> None:
    async with opened(provider) as (made, sandbox):
        command = Command("echo begun; while ! [ -e go ]; do sleep 0.05; done; echo done")
        async with in_background(sandbox.run(command)) as run:
            await running(sandbox, command)
            await asyncio.to_thread(platform.stop_server)
            with pytest.raises(Unreachable, match="does not answer"):
                await provider.inspect(made)
            await asyncio.to_thread(platform.start_server)
            await sandbox.write("~/go", b"")
            done = await run
        assert isinstance(done, Completed)
        assert done.stdout.head == b"begun\ndone\n"
        assert made.id in [each.id for each in await provider.list()]


class Failing(BaseHTTPRequestHandler):
    """A platform's server whose engine does not run: it answers everything with a page of plain text."""

    def do_GET(self) -> None:
        self.send_response(500)
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        self.wfile.write(b"Internal Server Error")

    do_POST = do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("call", list(CALLS.values()), ids=list(CALLS))
async def test_a_platform_without_an_engine_is_reported(platform: Platform, call: Callable[..., Any]) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Failing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        provider = OpenSandboxProvider(platform.settings(server.server_port), RULES, "tests")
        told = f"the platform at http://127.0.0.1:{server.server_port} failed .*container engine may not run"
        with pytest.raises(Unreachable, match=told):
            await call(provider, Disposable(id="sb-12345678", provider="opensandbox", key="x"))
        await provider.close()
        server.shutdown()


# The container


@pytest.mark.parametrize(("image", "use_server_proxy"), [(IMAGE, False), (IMAGE, True), (WITHOUT_PYTHON, False)])
async def test_a_dead_agent_is_not_taken_for_a_dead_platform(
    platform: Platform, image: str, use_server_proxy: bool
) -> None:
    provider = OpenSandboxProvider(platform.settings(use_server_proxy=use_server_proxy), RULES, "tests")
    made = await provider.create(new_disposable_id(), SandboxOrder(network=True, name="victim", image=image))
    words = ("exec", platform.container_of(made.key), "pkill", "-KILL", "-f", "/opt/opensandbox/execd")
    await asyncio.to_thread(platform.engine.docker, *words)
    told = rf"agent \(execd\) in it does not answer, though the platform at {platform.url} does"
    with pytest.raises(Unreachable, match=told):
        await (await provider.open(made)).open()
    await provider.delete(made)
    await provider.close()


async def test_a_killed_container_is_reported_and_its_command_is_lost(
    provider: OpenSandboxProvider, platform: Platform
) -> None:
    async with opened(provider) as (made, sandbox):
        command = Command(FOREVER)
        async with in_background(sandbox.run(command)) as run:
            await running(sandbox, command)
            await asyncio.to_thread(platform.engine.docker, "kill", platform.container_of(made.key))
            with pytest.raises(LostContact, match=r"the command was lost with victim.*it was killed") as lost:
                await run
        assert (lost.value.outcome, lost.value.so_far.stdout.head) == ("lost", b"begun\n")
        assert (await provider.inspect(made)).status == "failed"
        with pytest.raises(ConnectError, match="it was killed, or ended by itself"):
            await provider.open(made)


async def test_a_deleted_container_is_reported(provider: OpenSandboxProvider) -> None:
    async with opened(provider) as (made, sandbox):
        await provider.delete(made)
        with pytest.raises(ConnectError, match="gone from the platform"):
            await said(sandbox, "true")


async def test_an_expired_container_is_reported(provider: OpenSandboxProvider) -> None:
    async with opened(provider) as (made, sandbox):
        manager = await provider._link.manager()
        # Less than the platform allows at creation, and than our own renewal would ask for.
        await manager.renew_sandbox(made.key, timedelta(seconds=1.5))
        await provider.inspect(made)
        with pytest.raises(LostContact, match="its time was over") as lost:
            await sandbox.run(Command(FOREVER))
        assert lost.value.outcome == "lost"
        await eventually(lambda: provider.inspect(made), lambda seen: seen.status == "expired", "it to be gone")


async def test_a_pause_during_a_command_is_reported_and_the_command_goes_on_after_it(
    provider: OpenSandboxProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A paused outpost gives no sign of life, for which nobody needs to wait for long here.
    monkeypatch.setattr(client, "SILENCE_S", 0.6)
    monkeypatch.setattr(client, "PONG_S", 0.8)
    async with opened(provider) as (made, sandbox):
        command = Command("echo begun; while ! [ -e go ]; do sleep 0.05; done; echo done")
        async with in_background(sandbox.run(command)) as run:
            await running(sandbox, command)
            await provider.pause(made)
            with pytest.raises(LostContact, match="victim was paused while the command ran") as lost:
                await run
        assert lost.value.outcome == "unknown"
        await provider.resume(made)
        assert isinstance(await sandbox.observe(command.run_id), Running)
        await sandbox.write("~/go", b"")
        done = await eventually(
            lambda: sandbox.observe(command.run_id), lambda seen: isinstance(seen, Completed), "the command's end"
        )
        assert done.stdout.head == b"begun\ndone\n"


async def test_a_killed_container_without_python_is_reported(provider: OpenSandboxProvider, platform: Platform) -> None:
    async with opened(provider, image=WITHOUT_PYTHON) as (made, sandbox):
        command = Command(FOREVER)
        async with in_background(sandbox.run(command)) as run:
            await running(sandbox, command)
            await asyncio.to_thread(platform.engine.docker, "kill", platform.container_of(made.key))
            with pytest.raises(LostContact, match="the command was lost with victim"):
                await run


@pytest.fixture
def small_disk(platform: Platform) -> Iterator[Path]:
    folder = platform.folder / "shared" / "small"
    folder.mkdir(parents=True)
    subprocess.run([*as_root(), "mount", "-t", "tmpfs", "-o", "size=1m,mode=1777", "small", str(folder)], check=True)
    yield folder
    subprocess.run([*as_root(), "umount", "--lazy", str(folder)], check=True)


async def test_a_full_disk_is_reported_and_leaves_the_old_file(provider: OpenSandboxProvider, small_disk: Path) -> None:
    async with opened(provider, volumes=(Volume(str(small_disk), "/small", read_only=False),)) as (_, sandbox):
        await sandbox.write("/small/file", b"old")
        with pytest.raises(FileProblem, match=r"(?i)no space left") as problem:
            await sandbox.write("/small/file", bytes(3 << 20))
        assert problem.value.reason == "ENOSPC"
        assert await said(sandbox, "cat /small/file; ls -A /small") == b"oldfile\n"


# Many


@pytest.mark.timeout(240)
async def test_many_at_once_leave_nothing_behind(provider: OpenSandboxProvider, platform: Platform) -> None:
    """In waves: each container takes a part of two processors to start."""
    before, turn = sorted(platform.containers()), asyncio.Semaphore(WAVE)

    async def live() -> bytes:
        async with turn, opened(provider) as (_, sandbox):
            return await said(sandbox, "echo $$")

    said_by_each = await asyncio.gather(*(live() for _ in range(MANY)), return_exceptions=True)
    assert [problem for problem in said_by_each if isinstance(problem, BaseException)] == []
    assert sorted(platform.containers()) == before
    assert platform.volumes() == []


async def test_a_creation_that_is_cancelled_leaves_nothing_behind(
    provider: OpenSandboxProvider, platform: Platform
) -> None:
    disposable_id = new_disposable_id()
    creating = asyncio.ensure_future(provider.create(disposable_id, SandboxOrder(network=True)))
    await eventually(
        lambda: asyncio.to_thread(platform.containers, f"label=remote-sandbox-mcp/id={disposable_id}"),
        bool,
        "its container",
    )
    creating.cancel()
    with pytest.raises((asyncio.CancelledError, SandboxError)):
        await creating

    await eventually(
        lambda: asyncio.to_thread(platform.containers, f"label=remote-sandbox-mcp/id={disposable_id}"),
        lambda found: not found,
        "it to be gone",
        0.2,
    )
