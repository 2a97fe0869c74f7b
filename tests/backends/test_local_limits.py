"""What the local sandbox may use: held, told where it is hit, and with a way out."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from remote_sandbox_mcp.backends.bubblewrap import cgroups, disk, local, memory
from remote_sandbox_mcp.backends.bubblewrap import disk as disk_watch
from remote_sandbox_mcp.backends.bubblewrap.disk import DiskUse
from remote_sandbox_mcp.backends.bubblewrap.local import LocalSandbox, open_local
from remote_sandbox_mcp.core.commands.command import Command
from remote_sandbox_mcp.core.errors import BadArgument, ConnectError, LostContact, SandboxError
from remote_sandbox_mcp.core.jobs.job import JobOrder
from remote_sandbox_mcp.core.sandboxes.disposable import Limits
from remote_sandbox_mcp.core.sandboxes.files import Span
from remote_sandbox_mcp.core.sandboxes.machine import LocalPlace
from remote_sandbox_mcp.local.processes import descriptors
from tests.support.disposables import host_processes, marked_sleep, python, run, say, until_gone
from tests.support.means import needs_control_groups, require_bubblewrap
from tests.support.server import until


@asynccontextmanager
async def limited(state: Path, shm_mb: int = 0, **limits: float) -> AsyncIterator[LocalSandbox]:
    require_bubblewrap()
    sandbox = await open_local(LocalPlace(limits=Limits(**limits), shm_mb=shm_mb), state)  # type: ignore[arg-type]
    try:
        yield sandbox
    finally:
        await sandbox.close()


def groups_of(state: Path) -> list[Path]:
    name = f"rsmcp-{local.group_name(state / 'local/local')}"
    return [Path(folder) for folder, _, _ in os.walk("/sys/fs/cgroup") if folder.endswith(name)]


# What is held


async def test_it_has_the_usual_limits_of_disposables(means: str, tmp_path: Path) -> None:
    async with limited(tmp_path) as sandbox:
        held = sandbox.limits
        assert (held.processes, held.disk_mb) == (512, 10_240)
        assert held.memory_mb == (4096 if means == "control-groups" else memory.machine_mb() // 2)
        assert [line.partition(":")[0] for line in held.told] == ["memory", "processes", "disk"]
        assert await say(sandbox, "ulimit -f") == str(10_240 << 10)
        assert await say(sandbox, "df -m --output=size /dev/shm | tail -n 1") == "512"


async def test_what_its_owner_sets_is_held(means: str, tmp_path: Path) -> None:
    async with limited(tmp_path, shm_mb=8, memory_mb=256, processes=60, cpu=0.5, disk_mb=32) as sandbox:
        assert (await run(sandbox, "head -c 16000000 /dev/zero > /dev/shm/file")).exit_code
        assert (await run(sandbox, "rm /dev/shm/file; python3 -c 'x = bytearray(400 << 20)'")).exit_code
        assert (await run(sandbox, "head -c 40000000 /dev/zero > ~/file")).exit_code
        if means == "no-control-groups":
            assert await say(sandbox, "ulimit -u; ulimit -d") == f"60\n{256 << 10}"
            return
        limits = {file.name: file.read_text().strip() for folder in groups_of(tmp_path) for file in folder.iterdir()
                  if file.name in ("pids.max", "cpu.cfs_quota_us", "cpu.max")}  # fmt: skip
        assert limits.get("pids.max") == "60"
        assert "50000" in f"{limits.get('cpu.cfs_quota_us')} {limits.get('cpu.max')}"


async def test_limits_that_are_too_small_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="processes is 2, but a sandbox needs at least 16"):
        await open_local(LocalPlace(limits=Limits(processes=2)), tmp_path)


@needs_control_groups
async def test_two_servers_share_its_limits_and_the_last_one_cleans_up(tmp_path: Path) -> None:
    async with limited(tmp_path, processes=60) as one:
        async with limited(tmp_path, processes=60) as two:
            assert await say(two, "echo shared > ~/file") == ""
            members = {pid for folder in groups_of(tmp_path) for pid in (folder / "cgroup.procs").read_text().split()}
            assert len(members) >= 4
        assert await say(one, "cat ~/file") == "shared"
    assert not groups_of(tmp_path)
    async with limited(tmp_path) as again:
        assert await say(again, "cat ~/file") == "shared"


# Memory without a control group


PRIVATE = "x = bytearray(400 << 20)"
SHARED = "import mmap, time; x = mmap.mmap(-1, 1 << 30); [x.write(bytes(1 << 20)) for _ in range(400)]; time.sleep(60)"
SEVERAL = """
import os, time
for number in range(4):
    if not os.fork():
        x = bytearray(b'x') * (100 << 20)
        time.sleep(60)
print(sorted(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(2)), flush=True)
"""
IN_COMMON = """
import os, time
x = bytearray(b'x') * (100 << 20)
children = [os.fork() or os._exit(time.sleep(2) or 0) for number in range(8)]
print({os.wait()[1] for child in children})
"""


@pytest.fixture
def no_control_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "CHECK_S", 0.2)
    monkeypatch.setattr(cgroups, "find_bases", list)


async def test_one_process_cannot_take_more_than_its_limit(no_control_groups: None, tmp_path: Path) -> None:
    async with limited(tmp_path, memory_mb=256) as sandbox:
        assert b"MemoryError" in (await run(sandbox, python(PRIVATE))).stderr.head


async def test_memory_that_no_rlimit_counts_is_watched(no_control_groups: None, tmp_path: Path) -> None:
    async with limited(tmp_path, memory_mb=256) as sandbox:
        assert (await run(sandbox, python(SHARED), timeout_s=30)).exit_code == 128 + signal.SIGKILL
        assert await say(sandbox, "echo well") == "well"


async def test_the_largest_are_ended_where_all_together_take_too_much(no_control_groups: None, tmp_path: Path) -> None:
    async with limited(tmp_path, memory_mb=256) as sandbox:
        (tmp_path / "local/local/home/several.py").write_text(SEVERAL)
        assert await say(sandbox, "python3 ~/several.py") == "[-9, -9]"


async def test_memory_that_processes_have_in_common_counts_once(no_control_groups: None, tmp_path: Path) -> None:
    async with limited(tmp_path, memory_mb=256) as sandbox:
        (tmp_path / "local/local/home/common.py").write_text(IN_COMMON)
        assert await say(sandbox, "python3 ~/common.py") == "{0}"


@pytest.mark.skipif(not shutil.which("node"), reason="node is not installed")
async def test_programs_that_reserve_much_more_than_they_use_run(no_control_groups: None, tmp_path: Path) -> None:
    async with limited(tmp_path, memory_mb=1024) as sandbox:
        script = "new WebAssembly.Memory({initial: 1, maximum: 65536}); console.log('well')"
        assert await say(sandbox, f'node -e "{script}"') == "well"


# Descriptors


async def test_its_programs_have_the_limit_that_the_user_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    monkeypatch.setattr(descriptors, "_usual", 0)
    try:
        descriptors.raise_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 512
        async with limited(tmp_path) as sandbox:
            assert await say(sandbox, "ulimit -Sn") == "512"
            assert await say(sandbox, "ulimit -n 600; ulimit -Sn") == "600"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# Processes


CROWD = "for n in $(seq 200); do setsid {mark} > /dev/null 2>&1 & done; echo; sleep 60"


async def refused(answer: Awaitable[object]) -> str:
    with pytest.raises(SandboxError) as caught:
        await answer
    return str(caught.value)


async def test_where_no_process_can_be_started_it_says_what_to_do(means: str, tmp_path: Path) -> None:
    mark = marked_sleep()
    async with limited(tmp_path, processes=40) as sandbox:
        await sandbox.run(Command(CROWD.replace("{mark}", mark)), patience_s=1.0)
        await until(lambda: len(host_processes(mark)) > 20, "the crowd", 20)
        assert len(host_processes(mark)) <= 40
        advice = "as many processes as it may: wait until some have ended, or end all of them with delete_sandbox"

        async def advised() -> bool:
            # The shell that still tries to start more leaves a gap now and then.
            said = await asyncio.gather(*(answered(sandbox) for _ in range(8)))
            assert not [words for words in said if "temporarily" in words and advice not in words]
            return any(advice in words for words in said)

        await until(advised, "the advice", 60)
        # An rlimit counts on its own what runs beside the commands.
        if means == "control-groups":
            assert advice in await refused(sandbox.open_lane())
        await sandbox.close()
        await until_gone(mark)
        assert await say(sandbox, "echo well") == "well"


async def answered(sandbox: LocalSandbox) -> str:
    """What is said where every tool is tried, or nothing where each could do its work."""
    tries = (sandbox.list("."), sandbox.read("none", Span()), sandbox.jobs.list(), sandbox.write("file", b"x"),
             sandbox.jobs.start(JobOrder(session="train", script="true")))  # fmt: skip
    outcomes = await asyncio.gather(*tries, return_exceptions=True)
    return " ".join(str(outcome) for outcome in outcomes if isinstance(outcome, SandboxError))


# The disk


FILLER = "for n in $(seq 400); do head -c 4000000 /dev/zero > ~/file$n; done; sleep 30"
CRUMBS = python('import os\nfor n in range(20000): open(f"/tmp/file{n}", "w").close()\nimport time; time.sleep(30)')


@pytest.fixture
def no_steady_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what the host's disk loses says when to look."""
    monkeypatch.setattr(disk_watch, "CHECK_S", 3600.0)


async def test_a_command_that_fills_the_disk_is_ended_long_before_it_is_done(
    no_steady_looks: None, tmp_path: Path
) -> None:
    async with limited(tmp_path, disk_mb=100) as sandbox:
        with pytest.raises(LostContact, match="more than the 100 MB that it may") as caught:
            await run(sandbox, FILLER)
        assert "All that ran in it was ended" in str(caught.value)
        assert disk.measure(tmp_path).megabytes < 1200
        await sandbox.read("file1", Span(limit=1))


async def test_files_beyond_the_limit_can_be_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(local, "MUCH", DiskUse(16, 1000))
    async with limited(tmp_path, disk_mb=100) as sandbox:
        await run(sandbox, "echo mine > ~/kept")
        with pytest.raises(LostContact, match="remove something with a short command"):
            await run(sandbox, "for n in $(seq 27); do head -c 4000000 /dev/zero > ~/file$n; done; sleep 30")
        with pytest.raises(LostContact, match="more than the 100 MB"):
            await run(sandbox, "for n in $(seq 30 40); do head -c 4000000 /dev/zero > ~/file$n; done; sleep 30")
        with pytest.raises(ConnectError, match="more than the 100 MB that it may: let its owner remove something"):
            await run(sandbox, "true")
        for number in range(1, 20):
            (tmp_path / f"local/local/home/file{number}").unlink()
        assert await say(sandbox, "rm ~/file*; cat ~/kept") == "mine"
        assert await say(sandbox, "head -c 60000000 /dev/zero > ~/file; echo room") == "room"


async def test_many_empty_files_are_a_full_disk_too(
    no_steady_looks: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(disk, "LEAST_FILES", 2000)
    async with limited(tmp_path, disk_mb=20) as sandbox:
        with pytest.raises(LostContact, match="files in its home and /tmp, more than the 2000 that it may"):
            await run(sandbox, CRUMBS)


async def test_a_lane_is_ended_when_the_limit_is_exceeded(tmp_path: Path) -> None:
    async with limited(tmp_path, disk_mb=100) as sandbox:
        lane = await sandbox.open_lane()
        with pytest.raises(LostContact, match="more than the 100 MB"):
            await run(sandbox, FILLER)
        assert not lane.is_alive
        await sandbox.close()


async def test_files_that_were_there_before_end_nothing(tmp_path: Path) -> None:
    async with limited(tmp_path) as sandbox:
        await run(sandbox, "head -c 110000000 /dev/zero > ~/file")
    async with limited(tmp_path, disk_mb=100) as sandbox:
        assert await say(sandbox, "sleep 1.5; rm ~/file; echo done") == "done"


async def test_fallocate_cannot_take_space_but_can_free_it(tmp_path: Path) -> None:
    async with limited(tmp_path, disk_mb=64) as sandbox:
        code = (
            "import ctypes, os; fd = os.open('/tmp/file', os.O_CREAT | os.O_RDWR); os.write(fd, b'x' * 8192); "
            "call = lambda mode, size: ctypes.CDLL(None).fallocate(fd, mode, ctypes.c_long(0), ctypes.c_long(size)); "
            "print(call(0, 32 << 20), call(1, 32 << 20), call(16, 8192), call(3, 4096), os.fstat(fd).st_size)"
        )
        assert await say(sandbox, f'python3 -c "{code}"') == "-1 -1 -1 0 8192"
        # The C library writes instead, and is stopped by the size that one file may have.
        written = python("import os; os.posix_fallocate(1, 0, 1 << 20)")
        assert await say(sandbox, f"{written} > ~/small; stat -c %s ~/small") == "1048576"
        assert (await run(sandbox, "fallocate -l 14G ~/large || truncate -s 14G ~/large")).exit_code


def test_files_are_counted_as_well_as_bytes(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / f"file{number}").touch()
    assert disk.measure(tmp_path).files == 51
    assert DiskUse(1, 51).exceeds(DiskUse(10, 50))
    assert disk.most_files(10_240) < 1_000_000
