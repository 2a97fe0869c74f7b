"""What becomes of callers when the disk of the platform's machine is full, and after room was made on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from remote_sandbox_mcp.backends import here
from remote_sandbox_mcp.backends.opensandbox.provider import OpenSandboxProvider
from remote_sandbox_mcp.core.commands.command import Command, Completed, Running
from remote_sandbox_mcp.core.errors import ConnectError, FileProblem, NotStarted, SandboxError
from remote_sandbox_mcp.core.jobs.job import JobOrder, JobQuery, JobRefused, JobSeen, JobState
from remote_sandbox_mcp.core.sandboxes.disposable import DisposableRules, SandboxOrder, new_disposable_id
from remote_sandbox_mcp.core.sandboxes.files import Span
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from remote_sandbox_mcp.core.sync.transfer import Order, Outcome, Place, unheard
from remote_sandbox_mcp.services.sync.service import Syncs
from tests.backends.contract.basics import said, table
from tests.support.platform import IMAGE, WITHOUT_PYTHON, Platform
from tests.support.waiting import eventually

# The first of them waits for the platform to come up.
pytestmark = [pytest.mark.xdist_group("platform"), pytest.mark.timeout(180)]
# The images take less than half of them.
DISK_MB = 400
TOLD = (
    "unable to create a sandbox from sandbox:test: there is no room left on the disk of the platform's machine; "
    "delete sandboxes, snapshots and images that are not needed there, then try again"
)
LARGE = 6 << 20


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    """Its engine keeps all that it has on a small disk of its own."""
    with Platform(disk_mb=DISK_MB) as platform:
        yield platform


@pytest.fixture
async def sandbox(provider: OpenSandboxProvider) -> AsyncIterator[Sandbox]:
    made = await provider.create(new_disposable_id(), SandboxOrder(network=True, name="box"))
    sandbox = await provider.open(made)
    yield sandbox
    await sandbox.close()
    await provider.delete(made)


@asynccontextmanager
async def full(platform: Platform, leave_kb: int = 0) -> AsyncIterator[None]:
    await asyncio.to_thread(platform.engine.fill_disk, leave_kb)
    try:
        yield
    finally:
        await asyncio.to_thread(platform.engine.make_room)


async def ran(sandbox: Sandbox, script: str) -> Completed:
    done = await sandbox.run(Command(script))
    assert isinstance(done, Completed)
    return done


# Creation

# A container's parts come one after the other, and any of them may be the one for which there is no room.
ROOMS = {"nothing": 0, "a part of its layer": 40, "its layer": 96, "its layer and files": 112}


@pytest.mark.parametrize("leave_kb", **table(ROOMS))
async def test_a_creation_without_room_is_reported_and_leaves_nothing(
    provider: OpenSandboxProvider, platform: Platform, leave_kb: int
) -> None:
    before = sorted(platform.containers())
    async with full(platform, leave_kb):
        with pytest.raises(SandboxError) as problem:
            await provider.create(new_disposable_id(), SandboxOrder(network=True))
        assert str(problem.value) == TOLD
        assert sorted(platform.containers()) == before
        assert (await provider.list(), platform.volumes()) == ([], [])
    made = await provider.create(new_disposable_id(), SandboxOrder(network=True))
    sandbox = await provider.open(made)
    assert await said(sandbox, "echo again") == b"again\n"
    await sandbox.close()
    await provider.delete(made)
    assert sorted(platform.containers()) == before


# Commands and files


async def test_commands_run_on_a_full_disk_and_are_found_again(sandbox: Sandbox, platform: Platform) -> None:
    async with full(platform):
        for _ in range(3):
            command = Command("echo works; head -c 3000000 /dev/zero >~/new; exit 3")
            done = await sandbox.run(command)
            assert isinstance(done, Completed)
            assert (done.exit_code, done.stdout.head) == (3, b"works\n")
            assert b"No space left on device" in done.stderr.head
            seen = await sandbox.observe(command.run_id)
            assert isinstance(seen, Completed)
            assert (seen.exit_code, seen.stdout.total) == (3, len(b"works\n"))
    done = await ran(sandbox, "head -c 3000000 /dev/zero >~/new; wc -c <~/new")
    assert (done.exit_code, done.stdout.head) == (0, b"3000000\n")


async def test_a_sandbox_opens_on_a_full_disk(provider: OpenSandboxProvider, platform: Platform) -> None:
    made = await provider.create(new_disposable_id(), SandboxOrder(network=True))
    async with full(platform):
        # The platform's agent needs a file for what a command prints, and here even a folder for that.
        with pytest.raises(ConnectError, match="there is no room left on the disk of the platform's machine"):
            await provider.open(made)
    await (await provider.open(made)).close()
    other = OpenSandboxProvider(platform.settings(), DisposableRules(default_image=IMAGE), "tests")
    async with full(platform):
        sandbox = await other.open(made)
        assert await said(sandbox, "echo opened") == b"opened\n"
    assert await said(sandbox, "echo x >~/file; cat ~/file") == b"x\n"
    await sandbox.close()
    await other.close()
    await provider.delete(made)


async def test_without_room_anywhere_the_error_says_that_the_command_did_not_start(
    sandbox: Sandbox, platform: Platform
) -> None:
    assert (await ran(sandbox, "head -c 1G /dev/zero >/dev/shm/fill")).exit_code == 1
    async with full(platform):
        with pytest.raises(NotStarted) as problem:
            await sandbox.run(Command("echo x >~/began"))
        assert str(problem.value) == "box: unable to make a folder for the run: No space left on device"
    assert await said(sandbox, "rm /dev/shm/fill; ls ~") == b""


async def test_a_write_without_room_keeps_the_old_file(sandbox: Sandbox, platform: Platform) -> None:
    await sandbox.write("~/file", b"old")
    async with full(platform):
        for name, size in (("file", 3), ("file", LARGE), ("other", 3), ("folder/other", LARGE)):
            with pytest.raises(FileProblem, match=rf"box: ~/{name}: No space left on device$") as problem:
                await sandbox.write(f"~/{name}", bytes(size))
            assert problem.value.reason == "ENOSPC"
        assert (await sandbox.read("~/file", Span())).data == b"old"
        assert await said(sandbox, "ls -A ~ | grep -v '^[.][bp]'") == b"file\n"
    await sandbox.write("~/file", bytes(LARGE))
    assert await said(sandbox, "wc -c <~/file") == f"{LARGE}\n".encode()


async def test_a_container_without_python_reports_a_full_disk_too(
    provider: OpenSandboxProvider, platform: Platform
) -> None:
    made = await provider.create(new_disposable_id(), SandboxOrder(network=True, image=WITHOUT_PYTHON))
    sandbox = await provider.open(made)
    await sandbox.write("~/file", b"old")
    # What fills the disk ends before its own end, which is written down all the same.
    filling = Command("until [ -e /dev/shm/go ]; do sleep 0.05; done; echo lost; exit 3")
    assert isinstance(await sandbox.run(filling, patience_s=0.5), Running)
    async with full(platform):
        words = ("exec", platform.container_of(made.key), "touch", "/dev/shm/go")
        await asyncio.to_thread(platform.engine.docker, *words)
        ended = await eventually(
            lambda: sandbox.observe(filling.run_id), lambda seen: isinstance(seen, Completed), "the end of the run"
        )
        assert isinstance(ended, Completed)
        assert (ended.exit_code, ended.stdout.total) == (3, 0)
        for script in ("echo x >~/began", f"echo x >~/began # {'x' * 200_000}"):
            with pytest.raises(NotStarted, match=r"No space left on device$"):
                await sandbox.run(Command(script))
        for size in (3, LARGE):
            with pytest.raises(FileProblem, match=r"/file: No space left on device$") as problem:
                await sandbox.write("~/file", bytes(size))
            assert problem.value.reason == "ENOSPC"
        with pytest.raises(JobRefused, match=r"No space left on device$"):
            await sandbox.jobs.start(JobOrder(session="train", script="echo x"))
        assert (await sandbox.read("~/file", Span())).data == b"old"
    assert await said(sandbox, "ls -A ~ | grep -v '^[.][bp]'") == b"file\n"
    await sandbox.write("~/file", b"new")
    await sandbox.close()
    await provider.delete(made)


# Transfers


class Chunks(dict[bytes, bytes]):
    """What is remembered of large files."""

    def put(self, key: bytes, blob: bytes) -> None:
        self[key] = blob


@pytest.fixture
async def syncs(sandbox: Sandbox) -> AsyncIterator[Syncs]:
    async def opened(name: str) -> Sandbox:
        return sandbox

    syncs = Syncs(opened, here.open_lane, Chunks())
    yield syncs
    await syncs.close()


async def push(syncs: Syncs, folder: Path) -> Outcome:
    return await syncs.run(Order(source=Place("", str(folder)), target=Place("box", "~/tree")), unheard)


@pytest.mark.parametrize("size", **table({"small": 20_000, "large": LARGE}))
async def test_a_push_without_room_keeps_the_old_files(
    sandbox: Sandbox, syncs: Syncs, platform: Platform, tmp_path: Path, size: int
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(b"new" * size)
    await ran(sandbox, "mkdir ~/tree; echo old >~/tree/one")
    async with full(platform):
        with pytest.raises(FileProblem, match=r"^box:~/tree: (.*: )?No space left on device"):
            await push(syncs, tmp_path)
        # What a large file has so far keeps a name of ours, for the next attempt.
        assert await said(sandbox, "cd ~/tree; cat one; ls") == b"old\none\n"
    done = await push(syncs, tmp_path)
    assert (done.sent_files, done.problems) == (2, ())
    lengths = f"{3 * size} one\n{3 * size} two\n".encode()
    assert await said(sandbox, "cd ~/tree; wc -c *|grep -v total|sed 's/^ *//'; ls -A|wc -l") == lengths + b"2\n"


# Jobs


@pytest.mark.parametrize("before", **table({"first": "true", "has a log": "mkdir ~/.codex_logs"}))
async def test_a_job_without_room_for_its_log_is_not_started(sandbox: Sandbox, platform: Platform, before: str) -> None:
    await ran(sandbox, before)
    order = JobOrder(session="train", script="echo begun >/dev/shm/began; echo done")
    async with full(platform):
        with pytest.raises(JobRefused) as refused:
            await sandbox.jobs.start(order)
        why = "unable to write the log /home/agent/.codex_logs/train.log: No space left on device"
        assert (str(refused.value), refused.value.reason) == (f"box: {why}", "log")
        assert await sandbox.jobs.list() == []
        assert await said(sandbox, "ls /dev/shm/began ~/.codex_logs/* 2>/dev/null || true") == b""
    started = await sandbox.jobs.start(order)
    seen = await job_ended(sandbox, started.job_id)
    assert (seen.exit_code, seen.log) == (0, b"done\nEXIT_CODE=0\n")


async def test_a_log_that_is_there_already_needs_room_too(sandbox: Sandbox, platform: Platform) -> None:
    await ran(sandbox, "echo old >~/log")
    async with full(platform):
        with pytest.raises(JobRefused, match="unable to write the log /home/agent/log: No space left on device"):
            await sandbox.jobs.start(JobOrder(session="train", script="echo x", log_file="log"))
        assert await said(sandbox, "cat ~/log") == b"old\n"


async def test_a_job_with_room_for_its_log_alone_is_started_with_a_note(sandbox: Sandbox, platform: Platform) -> None:
    async with full(platform):
        order = JobOrder(session="train", script="echo x", log_file="/dev/shm/log")
        started = await sandbox.jobs.start(order)
        assert "the home folder cannot be written" in started.notes[0]
        assert (await job_ended(sandbox, started.job_id)).exit_code == 0


async def test_a_job_is_reported_as_started_only_if_it_runs(sandbox: Sandbox, platform: Platform) -> None:
    """Its record takes about 90 KB, and wherever in it the room ends, it is started or refused, and nothing else."""
    await ran(sandbox, "mkdir -p ~/.local/state; touch /dev/shm/ran")
    started, told = 0, set()
    for leave_kb in range(60, 116, 4):
        order = JobOrder(session=f"train{leave_kb}", script="echo x >>/dev/shm/ran", log_file=f"/dev/shm/log{leave_kb}")
        async with full(platform, leave_kb):
            try:
                job = await sandbox.jobs.start(order)
            except JobRefused as refused:
                told.add(str(refused).rpartition(": ")[2])
            else:
                assert (await job_ended(sandbox, job.job_id)).exit_code == 0
                started += 1
    assert told == {"No space left on device"}
    assert await said(sandbox, "wc -l </dev/shm/ran") == f"{started}\n".encode()
    assert len(await sandbox.jobs.list()) == started


async def test_the_end_of_a_job_is_known_though_its_disk_became_full(sandbox: Sandbox, platform: Platform) -> None:
    script = "until [ -e /dev/shm/go ]; do sleep 0.05; done; head -c 100000 /dev/zero; exit 3"
    started = await sandbox.jobs.start(JobOrder(session="train", script=script))
    async with full(platform):
        await ran(sandbox, "touch /dev/shm/go")
        seen = await job_ended(sandbox, started.job_id)
        assert (seen.state, seen.exit_code) == (JobState.ENDED, 3)
    assert await said(sandbox, "echo again") == b"again\n"


async def job_ended(sandbox: Sandbox, job_id: str) -> JobSeen:
    async def look() -> JobSeen:
        return (await sandbox.jobs.inspect([JobQuery(job_id=job_id)]))[0]

    return await eventually(look, lambda seen: not seen.is_running, "the job's end")
