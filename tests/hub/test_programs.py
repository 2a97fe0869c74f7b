"""Programs that use the Python API through the hub: same results, one connection, and no call is lost with a hub."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from remote_sandbox_mcp import SandboxError, Sandboxes
from remote_sandbox_mcp.core.errors import BadArgument, FileProblem, LostContact, UnknownSandbox
from remote_sandbox_mcp.services.hub_contact import calling
from tests.support.hub_desk import Desk, desk_in
from tests.support.server import entry, environment
from tests.support.sshd import Sshd
from tests.support.waiting import eventually


@pytest.fixture
def desk(tmp_path: Path, sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    with desk_in(tmp_path) as desk:
        env = environment(desk.home, (entry(sshd, name="gpu1"),), {"REMOTE_SANDBOX_LOCAL": "0"})
        for name in {*os.environ} - {*env}:
            monkeypatch.delenv(name)
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        desk("sandboxes")
        assert desk.hub
        yield desk


async def parts() -> AsyncIterator[bytes]:
    for number in range(3):
        yield f"{number}\n".encode()


async def test_everything_goes_through_the_hub(desk: Desk, tmp_path: Path) -> None:
    async with Sandboxes() as boxes:
        assert boxes._hub is not None
        assert boxes._own is None
        assert "gpu1" in await boxes.list()
        box = await boxes.open("gpu1")
        assert (box.name, box.description.kind, box.description.host) == ("gpu1", "ssh", "127.0.0.1")
        done = await box.run("cat; echo $A; echo bad >&2; exit 3", input=parts(), env=os.environ | {"A": "b"})
        assert (done.exit_code, done.stdout, done.stderr) == (3, b"0\n1\n2\nb\n", b"bad\n")
        output = box.stream("echo one; echo two >&2; sleep 0.3; echo three")
        chunks = [(chunk.stream, chunk.data) async for chunk in output]
        assert b"".join(data for stream, data in chunks if stream == "stdout") == b"one\nthree\n"
        assert ("stderr", b"two\n") in chunks
        assert output.done is not None
        await box.write("a.txt", "one")
        assert await box.read("a.txt") == b"one"
        (tmp_path / "here").mkdir()
        (tmp_path / "here/file").write_text("content")
        assert (await box.push(tmp_path / "here", "there")).sent_files == 1
        await box.pull("there/file", tmp_path / "back")
        assert (tmp_path / "back").read_text() == "content"
        job = await box.start("echo in a job; exit 4", name="short")
        seen = await job.wait(timeout=30)
        assert (seen.exit_code, "in a job" in await job.tail()) == (4, True)
        assert desk.status()["connected"][:1] == ["gpu1"]


async def test_a_program_of_another_environment_uses_the_hub_that_runs(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a framework's does: its hub would have another name."""
    monkeypatch.setenv("PYTHONPATH", "/nonexistent")
    hub = desk.hub
    async with Sandboxes() as boxes:
        assert boxes._hub is not None
        box = await boxes.open("gpu1")
        assert (await box.run("echo here")).text == "here\n"
        assert desk.hubs == [hub]
        os.kill(hub, signal.SIGKILL)
        # The next one is its own.
        assert (await box.run("echo there")).text == "there\n"
        assert desk.hub not in (0, hub)


@pytest.mark.parametrize("difference", ["proxy", "sources"])
async def test_a_hub_that_does_not_suit_a_program_is_left_alone(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, difference: str
) -> None:
    """Its values might be of another form, and its connections take another way."""
    monkeypatch.setenv("PYTHONPATH", "/nonexistent")
    if difference == "proxy":
        monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.org")
    else:
        monkeypatch.setattr(calling, "sources", lambda: "others")
    async with Sandboxes() as boxes:
        assert boxes._hub is None
        assert "gpu1" in await boxes.list()


async def test_errors_are_the_same_as_without_a_hub(desk: Desk) -> None:
    async with Sandboxes() as boxes:
        with pytest.raises(UnknownSandbox) as unknown:
            await boxes.open("nowhere")
        assert "gpu1" in str(unknown.value)
        box = await boxes.open()
        with pytest.raises(FileProblem) as missing:
            await box.read("missing")
        assert missing.value.reason == "ENOENT"
        with pytest.raises(BadArgument, match="a command takes no limit"):
            await box.run("true", limit=3)  # type: ignore[call-arg]
        with pytest.raises(BadArgument, match="PosixPath cannot be given to the hub"):
            await box.run("true", cwd=Path("/tmp"))  # type: ignore[arg-type]

        async def broken() -> AsyncIterator[bytes]:
            yield b"part"
            raise ValueError("no more")

        with pytest.raises(SandboxError, match="no more"):
            await box.run("cat > half", input=broken())
    with pytest.raises(SandboxError, match="closed"):
        await box.run("true")


async def test_a_call_that_is_left_is_stopped(desk: Desk) -> None:
    async with Sandboxes() as boxes:
        box = await boxes.open("gpu1")
        chunks = aiter(box.stream("trap 'echo ended > ended; exit' TERM; echo ready; sleep 977 & wait"))
        assert (await anext(chunks)).text == "ready\n"
        await chunks.aclose()  # type: ignore[attr-defined]
        assert (await box.run("while ! test -e ended; do sleep 0.1; done", timeout=20)).exit_code == 0


async def test_a_hub_that_is_killed_loses_no_call(desk: Desk) -> None:
    first = desk.hub
    async with Sandboxes() as boxes:
        box = await boxes.open("gpu1")
        script = "echo once >> runs; echo begun; while ! test -e go; do sleep 0.05; done; cat runs; exit 5"
        output = box.stream(script, timeout=60)
        chunks = aiter(output)
        assert (await anext(chunks)).data == b"begun\n"
        os.kill(first, signal.SIGKILL)
        await box.write("go", b"")
        assert b"".join([chunk.data async for chunk in chunks]) == b"once\n"
        assert output.done is not None
        assert output.done.exit_code == 5
        assert desk.hub != first


async def test_what_cannot_be_repeated_is_not(desk: Desk) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x\n"
            await asyncio.sleep(0.05)

    async with Sandboxes() as boxes:
        box = await boxes.open("gpu1")
        running = asyncio.ensure_future(box.run("echo once >> whole; cat > taken", input=endless()))
        await eventually(lambda: box.run("test -s taken"), lambda done: not done.exit_code, "the command")
        os.kill(desk.hub, signal.SIGKILL)
        with pytest.raises((SandboxError, LostContact), match="the hub has ended before"):
            await running
        assert await box.read("whole") == b"once\n"


async def test_a_forward_ends_with_its_block_and_with_its_program(desk: Desk) -> None:
    async with Sandboxes() as boxes:
        box = await boxes.open("gpu1")
        async with box.forward(65001) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", port)
        forward = box.forward(65001)
        port = await forward.__aenter__()
        (await asyncio.open_connection("127.0.0.1", port))[1].close()

    async def is_closed() -> bool:
        try:
            (await asyncio.open_connection("127.0.0.1", port))[1].close()
        except OSError:
            return True
        return False

    await eventually(is_closed, bool, "the end of the forward")
    await forward.__aexit__(None, None, None)
