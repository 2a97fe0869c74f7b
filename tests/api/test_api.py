"""The Python API over a scripted sandbox, a walled-in one, and as it is imported."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import pytest

from remote_sandbox_mcp import SandboxError, Sandboxes
from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.core.commands.command import Ending
from remote_sandbox_mcp.core.errors import BadArgument, FileProblem, UnknownSandbox
from remote_sandbox_mcp.core.jobs.cards import CardRequest
from remote_sandbox_mcp.core.jobs.job import JobState
from remote_sandbox_mcp.services.fleet import Fleet
from tests.fronts.mcp.conftest import member
from tests.support.fakes.jobs import FakeCard
from tests.support.fakes.sandbox import Answer, FakeSandbox, after
from tests.support.means import require_local
from tests.support.waiting import eventually

HEAVY = {"mcp", "pydantic", "starlette", "anyio", "httpx", "httpx2", "asyncssh", "asyncio", "sqlite3", "rich"}


@pytest.fixture
def fake() -> FakeSandbox:
    return FakeSandbox()


@pytest.fixture
async def boxes(fake: FakeSandbox) -> AsyncIterator[Sandboxes]:
    app = App(Fleet([member(fake)]))
    async with Sandboxes(_app=app) as boxes:
        yield boxes
    await app.close()


def test_importing_it_loads_little() -> None:
    script = "import sys; from remote_sandbox_mcp import Sandboxes; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not HEAVY & {name.partition(".")[0] for name in loaded}
    assert len([name for name in loaded if name.startswith("remote_sandbox_mcp")]) < 12


def test_importing_it_takes_at_most_60_ms() -> None:
    """Of processor time: a machine that is busy makes nobody wait for less."""
    script = "import time; begun = time.process_time(); from remote_sandbox_mcp import Sandboxes\n"
    script += "print(time.process_time() - begun)"
    words = [sys.executable, "-c", script]
    taken = [float(subprocess.run(words, capture_output=True, text=True, check=True).stdout) for _ in range(5)]
    assert min(taken) < 0.06


def test_the_package_has_no_other_names() -> None:
    import remote_sandbox_mcp

    with pytest.raises(AttributeError, match="no attribute 'Sandbox'"):
        remote_sandbox_mcp.Sandbox  # type: ignore[attr-defined]  # noqa: B018


def test_the_entry_point_of_programs_is_there() -> None:
    script = "import sys; sys.argv[1:] = ['--version']; from remote_sandbox_mcp.server import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "1." in done.stdout


async def test_all_arguments_reach_the_command(boxes: Sandboxes, fake: FakeSandbox) -> None:
    fake.answers = {"make": Answer("out", "err", 3)}
    done = await (await boxes.open()).run("make", cwd="/srv", env={"A": "b"}, input=b"in", timeout=7, user="nobody")
    assert (done.exit_code, done.stdout, done.stderr, done.text, done.omitted) == (3, b"out", b"err", "out", 0)
    assert (done.timed_out, done.completed.ending) == (False, Ending.EXITED)
    (command,) = fake.commands
    assert (command.cwd, command.env, command.input, command.timeout_s) == ("/srv", {"A": "b"}, b"in", 7)
    assert command.user == "nobody"


@pytest.mark.parametrize("size", [0, 9, 10, 20, 21, 1000])
async def test_of_a_long_output_both_ends_are_kept(boxes: Sandboxes, fake: FakeSandbox, size: int) -> None:
    said = bytes(number % 251 for number in range(size))
    fake.answers = {"long": Answer(said, said)}
    box = await boxes.open()
    done = await box.run("long", keep=10)
    expected = said if size <= 20 else said[:10] + said[-10:]
    assert (done.stdout, done.stderr) == (expected, expected)
    assert done.omitted == 2 * (size - len(expected))
    for keep in (0, 3_000_000):
        with pytest.raises(BadArgument, match="keep is"):
            await box.run("long", keep=keep)


async def test_output_comes_as_it_is_printed_and_each_byte_once(boxes: Sandboxes, fake: FakeSandbox) -> None:
    fake.answers = {"make": Answer("one\n", "careful\n", then=after(0.05, Answer("two\n", exit_code=1)))}
    output = (await boxes.open()).stream("make")
    chunks = [chunk async for chunk in output]
    assert b"".join(chunk.data for chunk in chunks if chunk.stream == "stdout") == b"one\ntwo\n"
    assert "".join(chunk.text for chunk in chunks if chunk.stream == "stderr") == "careful\n"
    assert output.done is not None
    assert output.done.exit_code == 1


async def test_leaving_the_loop_or_the_call_stops_the_command() -> None:
    require_local()
    async with Sandboxes() as boxes:
        box = await boxes.create()
        script = "trap 'echo ended >> ended; exit' TERM; echo ready >> ready; echo ready; sleep 977 & wait"

        def lines(file: str) -> Callable[[], Awaitable[int]]:
            async def count() -> int:
                with suppress(FileProblem):
                    return (await box.read(file)).count(b"\n")
                return 0

            return count

        chunks = aiter(box.stream(script))
        assert (await anext(chunks)).text == "ready\n"
        await chunks.aclose()  # type: ignore[attr-defined]
        await eventually(lines("ended"), lambda count: count == 1, "the end of the first")
        task = asyncio.create_task(box.run(script))
        await eventually(lines("ready"), lambda count: count == 2, "the second")
        task.cancel()
        await asyncio.wait((task,))
        await eventually(lines("ended"), lambda count: count == 2, "the end of the second")
        await box.delete()


async def test_files_are_bytes_and_a_program_may_write_what_has_changed(boxes: Sandboxes, fake: FakeSandbox) -> None:
    box = await boxes.open()
    await box.write("a.txt", "one")
    assert await box.read("a.txt") == b"one"
    fake.files = dict.fromkeys(fake.files, b"changed behind its back")
    await box.write("a.txt", b"two")
    assert (await box.read("a.txt"), await box.read("a.txt", offset=1, limit=1)) == (b"two", b"w")
    await box.write("large", b"x" * ((16 << 20) + 1))
    with pytest.raises(FileProblem, match="read it in parts"):
        await box.read("large")
    assert len(await box.read("large", offset=1)) == 16 << 20


async def test_a_job_has_cards_of_its_own_or_waits_for_them(
    boxes: Sandboxes, fake: FakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody(self: App) -> str:
        return ""

    # No watchdog: nothing is to start while the test looks.
    monkeypatch.setattr(App, "ensure_watchdog", nobody)
    fake.jobs.cards = [FakeCard("GPU-1")]
    box = await boxes.open()
    await box.start("train", name="train", gpus=1, gpu_memory="40g")
    assert [(order.session, order.cards) for order in fake.jobs.started] == [("train", CardRequest(1, 40960))]
    second = await box.start("train", name="second", gpus=1)
    assert (await second.check()).state is JobState.PENDING
    assert len(fake.jobs.started) == 1


async def test_errors_are_ours(boxes: Sandboxes) -> None:
    with pytest.raises(UnknownSandbox):
        await boxes.open("nowhere")
    with pytest.raises(BadArgument, match="say how many with gpus"):
        await (await boxes.open()).start("train", gpu_memory="40g")
    closed = Sandboxes()
    with pytest.raises(SandboxError, match="these sandboxes are closed"):
        await closed.open()


async def test_a_disposable_one_is_made_used_and_deleted() -> None:
    require_local()
    async with Sandboxes() as boxes:
        box = await boxes.create(env={"COLOUR": "blue"})
        assert (await box.run("cat; echo $COLOUR", input=b"in ")).text == "in blue\n"
        assert box.description.kind
        assert box.name in await boxes.list()
        await box.delete()
        with pytest.raises(SandboxError):
            await box.run("true")
