"""What a disposable sandbox on this machine may use: held, told, and kept from hurting the host."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.backends.bubblewrap import cgroups, disk, limits, memory
from remote_sandbox_mcp.backends.bubblewrap.bwrap import STEP_DOWN_TO, Footing
from remote_sandbox_mcp.backends.bubblewrap.cgroups import Group, ParentGroup
from remote_sandbox_mcp.backends.bubblewrap.disposable import EmbeddedSandbox
from remote_sandbox_mcp.core.commands.command import Command, new_run_id
from remote_sandbox_mcp.core.errors import ConnectError, LostContact
from remote_sandbox_mcp.core.sandboxes.disposable import Limits, SandboxOrder, new_disposable_id
from remote_sandbox_mcp.core.sandboxes.files import Span
from tests.support.disposables import as_ordinary_user, groups_of, made, mounts_below, provided, reachable, run, say
from tests.support.means import IS_ROOT, bubblewrap_runs, needs_control_groups, needs_mounts, require_bubblewrap

NAMESPACED = Footing("bwrap", ())
STEPPED_DOWN = Footing("bwrap", (), STEP_DOWN_TO)
BOMB = "bomb() { bomb | bomb & }; bomb; sleep 30"
FILLER = "for n in 1 2 3 4; do head -c 4000000 /dev/zero > ~/file$n; done; sleep 30"


# What is told


async def test_default_limits_are_reported(means: str, tmp_path: Path) -> None:
    async with provided(tmp_path) as provider:
        held = (await provider.create(new_disposable_id(), SandboxOrder())).limits
        assert held.processes == limits.PROCESSES
        assert held.memory_mb == (limits.MEMORY_MB if means == "control-groups" else memory.machine_mb() // 2)
        memory_note, processes, disk_told = held.told[-3:]
        by = "held by a control group"
        assert (by in memory_note, by in processes) == (means == "control-groups",) * 2
        assert "watched" in disk_told
        if means != "control-groups":
            assert "for each process, held by an rlimit, and for all together, watched" in memory_note
            assert "held by an rlimit" in processes


async def test_requested_limits_are_reported(means: str, tmp_path: Path) -> None:
    asked = Limits(cpu=0.5, memory_mb=256, processes=400, disk_mb=16)
    async with made(tmp_path, SandboxOrder(limits=asked)) as (_, disposable, sandbox):
        held = disposable.limits
        assert (held.cpu, held.memory_mb, held.processes, held.disk_mb) == (0.5, 256, 400, 16)
        assert [line.partition(":")[0] for line in held.told[-4:]] == ["memory", "processes", "cpu", "disk"]
        assert "16 MB" in held.told[-1]
        assert await say(sandbox, "ulimit -c") == "0"
        if means == "control-groups":
            names = ("cpu.cfs_quota_us", "cpu.max")
            quotas = [folder / name for folder in groups_of(disposable.id) for name in names]
            assert [file.read_text().split()[0] for file in quotas if file.exists()] == ["50000"]
        else:
            data, most = (await say(sandbox, "ulimit -d; ulimit -u")).split()
            assert int(data) == 256 << 10
            check_most(int(most), 400)


def check_most(processes: int, asked: int) -> None:
    """Without a namespace what else this user runs counts, too, and is added."""
    assert processes == asked if bubblewrap_runs() else processes >= asked


RLIMITS = {"nothing asked": Limits(), "memory": Limits(memory_mb=64), "disk": Limits(disk_mb=64)}


@pytest.mark.parametrize("asked", RLIMITS.values(), ids=RLIMITS.keys())
def test_without_control_groups_rlimits_hold(asked: Limits) -> None:
    held = limits.hold(asked, Group(), NAMESPACED, is_disk_real=False)
    numbers = {resource.RLIMIT_CORE, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE, resource.RLIMIT_DATA}
    assert set(held.bounds.rlimits) == numbers
    assert held.bounds.rlimits[resource.RLIMIT_DATA] == held.bounds.watched_mb << 20 == held.limits.memory_mb << 20
    assert "user namespace" in held.limits.told[1]


def test_it_is_reported_that_sandboxes_share_a_user() -> None:
    held = limits.hold(Limits(), Group(), STEPPED_DOWN, is_disk_real=False)
    assert "over all sandboxes" in held.limits.told[1]


def test_an_older_kernel_leaves_room_for_what_the_user_runs_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits.platform, "release", lambda: "5.10.0-30-amd64")
    held = limits.hold(Limits(processes=40), Group(), NAMESPACED, is_disk_real=False)
    assert held.bounds.rlimits[resource.RLIMIT_NPROC] > 40
    assert "all of a user's are counted" in held.limits.told[1]


# What would hurt the host ends inside


@needs_control_groups
async def test_a_fork_bomb_ends_inside(tmp_path: Path) -> None:
    async with made(tmp_path, SandboxOrder(limits=Limits(processes=40, cpu=0.5))) as (_, disposable, sandbox):
        files = [folder / "pids.max" for folder in groups_of(disposable.id)]
        assert [file.read_text().strip() for file in files if file.exists()] == ["40"]
        assert (await run(sandbox, BOMB, timeout_s=1.5)).exit_code == 124
        assert await say(sandbox, "echo well") == "well"


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[tuple[EmbeddedSandbox, Path]]:
    """A sandbox that has run a command already, and the file that says how many processes it may have."""
    async with made(tmp_path, SandboxOrder(limits=Limits(processes=40))) as (_, disposable, sandbox):
        found = [folder / "pids.max" for folder in groups_of(disposable.id) if (folder / "pids.max").exists()]
        if not found:
            pytest.skip("no control group counts processes here")
        await say(sandbox, "true")
        yield sandbox, found[0]


async def begun(sandbox: EmbeddedSandbox, *requests: Awaitable[Any]) -> list[asyncio.Future[Any]]:
    """Requests that have arrived; behind them one was answered that needs no process."""
    begun = [asyncio.ensure_future(request) for request in requests]
    await asyncio.sleep(0)
    await sandbox._ask({"verb": "forget", "ids": new_run_id()})
    return begun


async def test_requests_wait_a_moment_for_room_to_start_a_process(one: tuple[EmbeddedSandbox, Path]) -> None:
    sandbox, most = one
    most.write_text("1")
    requests = await begun(sandbox, *(say(sandbox, f"echo {number}") for number in range(3)), sandbox.list("."))
    assert not any(request.done() for request in requests)
    most.write_text("40")
    assert (await asyncio.gather(*requests))[:3] == ["0", "1", "2"]


async def test_commands_that_are_given_up_before_they_could_start_never_do(one: tuple[EmbeddedSandbox, Path]) -> None:
    """The keeper that is there takes the first one; for the others the outpost itself waits."""
    sandbox, most = one
    most.write_text("1")
    commands = await begun(sandbox, *(say(sandbox, f"echo > ~/made{number}") for number in range(3)))
    for command in commands:
        command.cancel()
    await asyncio.wait(commands)
    await sandbox._ask({"verb": "forget", "ids": new_run_id()})
    most.write_text("40")
    assert await say(sandbox, "sleep 0.3; ls") == ""


MANY = (
    "set -e; for n in 1 2 3 4 5 6; do python3 -c 'x = bytearray(40 << 20); "
    'import time; time.sleep(9)\' & all="$all $!"; done; for one in $all; do wait $one; done'
)
HOGS = [
    pytest.param("python3 -c 'x = bytearray(400 << 20)'", id="one process"),
    pytest.param("set -o pipefail; head -c 400000000 /dev/zero | tail -n 1 > /dev/null", id="a pipeline"),
    pytest.param("head -c 400000000 /dev/zero > /dev/shm/file", id="shared memory"),
    # An rlimit counts the memory of each process alone.
    pytest.param(MANY, id="many processes", marks=needs_control_groups),
]


@pytest.mark.parametrize("hog", HOGS)
async def test_a_memory_hog_ends_inside(hog: str, tmp_path: Path) -> None:
    async with made(tmp_path, SandboxOrder(limits=Limits(memory_mb=96))) as (_, _, sandbox):
        assert (await run(sandbox, hog)).exit_code
        assert await say(sandbox, "rm -f /dev/shm/file; echo well") == "well"


@needs_mounts
@pytest.mark.parametrize("folder", ["~", "/tmp", "/var/tmp", "/app", "/workspace"])
async def test_a_disk_filler_ends_inside(folder: str, tmp_path: Path) -> None:
    async with made(tmp_path, SandboxOrder(limits=Limits(disk_mb=8))) as (_, disposable, sandbox):
        assert "file system in memory" in disposable.limits.told[-1]
        assert mounts_below(tmp_path)
        seen = await run(sandbox, f"head -c 40000000 /dev/zero > {folder}/file")
        assert b"No space left" in seen.stderr.head
        assert await say(sandbox, f"rm {folder}/file; echo well") == "well"
    assert not mounts_below(tmp_path)


@needs_mounts
async def test_many_small_files_are_a_full_disk_too(tmp_path: Path) -> None:
    async with made(tmp_path, SandboxOrder(limits=Limits(disk_mb=1))) as (_, _, sandbox):
        crumbs = await run(sandbox, "cd ~; for n in $(seq 2000); do : > f$n || exit 1; done")
        assert b"No space left" in crumbs.stderr.head
        assert await say(sandbox, "rm ~/f*; echo well") == "well"


@needs_mounts
async def test_a_lane_sees_the_same_files_where_they_lie_in_memory(tmp_path: Path) -> None:
    async with made(tmp_path, SandboxOrder(limits=Limits(disk_mb=8))) as (_, _, sandbox):
        await sandbox.write("note", b"hello")
        await (await sandbox.open_lane()).close()
        await sandbox.close()
        assert (await sandbox.read("note", Span())).data == b"hello"


async def test_a_disk_filler_is_ended_where_it_can_only_be_watched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(disk, "mount_sized", lambda *_: False)
    async with made(tmp_path, SandboxOrder(limits=Limits(disk_mb=8))) as (_, _, sandbox):
        assert (await run(sandbox, "exec head -c 40000000 /dev/zero > ~/file")).signal == "SIGXFSZ"
        await run(sandbox, "rm ~/file; echo result > ~/result")
        with pytest.raises(LostContact, match=r"more than the 8 MB that it may.*All that ran in it was ended"):
            await run(sandbox, FILLER)
        with pytest.raises(ConnectError, match="more than the 8 MB"):
            await sandbox.run(Command("true"))
        with pytest.raises(ConnectError, match="more than the 8 MB"):
            await sandbox.write("more", b"x")
        assert (await sandbox.read("result", Span())).data == b"result\n"


async def test_many_empty_files_are_too_much_where_they_can_only_be_watched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(disk, "LEAST_FILES", 2000)
    monkeypatch.setattr(disk, "FILES_PER_MB_ON_DISK", 0)
    async with made(tmp_path) as (_, disposable, sandbox):
        assert "2000 files" in disposable.limits.told[-1]
        with pytest.raises(LostContact, match="more than the 2000 that it may"):
            await run(sandbox, "seq -f ${TMPDIR:-/tmp}/file%.0f 5000 | xargs touch; sleep 30")


async def test_one_file_cannot_pass_the_usual_limit(tmp_path: Path) -> None:
    async with made(tmp_path) as (_, _, sandbox):
        assert await say(sandbox, "ulimit -f") == str(limits.DISK_MB << 10)
        assert b"not supported" in (await run(sandbox, "fallocate -l 14G ~/file")).stderr.head
        assert (await run(sandbox, "truncate -s 14G ~/file")).exit_code
        assert await say(sandbox, "du -sk ~/file | cut -f1") == "0"


async def test_where_no_process_can_be_started_it_says_what_to_do(tmp_path: Path) -> None:
    # Only a namespace counts them apart from those of tests beside this one.
    require_bubblewrap()
    crowd = "for n in $(seq 200); do setsid sleep 60 > /dev/null 2>&1 & done; sleep 60"
    async with made(tmp_path, SandboxOrder(limits=Limits(processes=40))) as (_, _, sandbox):
        await sandbox.run(Command(crowd), patience_s=1.0)
        said = await asyncio.gather(*(sandbox.list(".") for _ in range(20)), return_exceptions=True)
        assert "delete it with delete_sandbox and create another" in " ".join(map(str, said))


def test_an_ordinary_user_has_limits_too() -> None:
    hog = "python3 -c 'x = bytearray(900 << 20)'"
    asked = {"processes": 40, "memory_mb": 512, "disk_mb": 8}
    told = as_ordinary_user(["ulimit -u", hog, BOMB, "echo well", FILLER], limits=asked, timeout_s=4)
    most, hogged, bombed, well, filled = told["seen"]
    check_most(int(most[1]), 40)
    assert "MemoryError" in hogged[2]
    assert bombed[0] == 124
    assert well[1] == "well\n"
    assert filled[0] == -1
    assert told["left"] == [".lock"]


def test_an_ordinary_users_sandbox_has_a_limit_of_memory_that_nobody_asked_for() -> None:
    most_mb = memory.machine_mb() // 2
    shared = f"python3 -c 'import mmap; x = mmap.mmap(-1, {most_mb + 512} << 20)' && echo mapped"
    hog = f"python3 -c 'x = bytearray({most_mb + 512} << 20)'"
    said, hogged, mapped = as_ordinary_user(["ulimit -d", hog, shared])["seen"]
    assert said[1].strip() == str(most_mb << 10)
    assert "MemoryError" in hogged[2]
    # Memory that is reserved, and not used, is no reason to end anything.
    assert mapped[1] == "mapped\n"


@pytest.mark.skipif(os.geteuid() == 0 and not IS_ROOT, reason="nothing counts the processes of uid 0")
async def test_without_namespaces_bombs_hogs_and_fillers_end_inside_too(tmp_path: Path) -> None:
    asked = Limits(processes=60, memory_mb=96, disk_mb=8)
    with reachable():
        async with made(tmp_path, SandboxOrder(limits=asked), walls="landlock") as (_, disposable, sandbox):
            assert disposable.limits.told[0].startswith("walls: Landlock")
            assert (await run(sandbox, BOMB, timeout_s=1.5)).exit_code == 124
            assert (await run(sandbox, "python3 -c 'x = bytearray(400 << 20)'")).exit_code
            assert await say(sandbox, "echo well") == "well"
            with pytest.raises(LostContact, match=r"more than the 8 MB that it may.*All that ran in it was ended"):
                await run(sandbox, FILLER)
            assert not mounts_below(tmp_path)


def test_without_namespaces_an_ordinary_user_has_limits_too() -> None:
    hog = "python3 -c 'x = bytearray(900 << 20)'"
    asked = {"processes": 40, "memory_mb": 512, "disk_mb": 8}
    told = as_ordinary_user([hog, BOMB, "echo well", FILLER], limits=asked, timeout_s=4, walls="landlock")
    hogged, bombed, well, filled = told["seen"]
    assert "MemoryError" in hogged[2]
    assert bombed[0] == 124
    assert well[1] == "well\n"
    assert filled[0] == -1
    assert told["left"] == [".lock"]


# Control groups


@pytest.fixture
def second_version(tmp_path: Path) -> tuple[Path, str]:
    """A hierarchy of version 2 as systemd delegates it to a user, and the line that mounts it."""
    top = tmp_path / "cgroup"
    for folder in (top, top / "user", top / "user/app", top / "user/app/server"):
        folder.mkdir()
        (folder / "cgroup.procs").write_text("")
        (folder / "cgroup.controllers").write_text("cpu memory pids")
        (folder / "cgroup.subtree_control").write_text("cpu memory pids" if folder.name == "app" else "")
    return top, f"30 1 0:26 / {top} rw,nosuid - cgroup2 cgroup2 rw\n"


def test_the_nearest_group_that_hands_down_controllers_is_used(
    second_version: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    top, mounts = second_version
    # On a real one the kernel refuses to enable controllers in a group that holds processes.
    monkeypatch.setattr(cgroups, "_enabled", lambda folder: (folder / "cgroup.subtree_control").read_text().split())
    bases = cgroups.find_bases("0::/user/app/server\n", mounts)
    assert bases == [ParentGroup(top / "user/app", 2, ("memory", "pids", "cpu", "freezer"))]


NOT_THERE = {
    "no kernel support": ("", ""),
    "not mounted": ("0::/\n", ""),
    "not visible": ("0::/elsewhere\n", "30 1 0:26 / /no/such/place rw - cgroup2 cgroup2 rw\n"),
    "of no use": ("9:name=systemd:/\n", "30 1 0:26 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n"),
}


@pytest.mark.parametrize(("own", "mounts"), NOT_THERE.values(), ids=NOT_THERE.keys())
def test_without_control_groups_none_are_used(own: str, mounts: str) -> None:
    assert cgroups.find_bases(own, mounts) == []


def test_groups_are_made_below_the_servers_own() -> None:
    own = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    for base in cgroups.find_bases():
        name = next((names for names in own if base.controllers[0] in names.split(",")), "")
        assert base.version == 2 or str(base.folder).endswith(own[name].rstrip("/"))


def test_limits_of_the_second_version_are_written_as_it_takes_them(tmp_path: Path) -> None:
    for name in ("memory.max", "memory.swap.max", "pids.max", "cpu.max", "cgroup.procs", "cgroup.freeze"):
        (tmp_path / name).touch()
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    group = Group((tmp_path,))
    held = limits.hold(Limits(1.5, 64, 20), group, NAMESPACED, is_disk_real=False)
    assert {file.name: file.read_text() for file in tmp_path.glob("*.max")} == {
        "memory.max": str(64 << 20),
        "memory.swap.max": "0",
        "pids.max": "20",
        "cpu.max": "150000 100000",
    }
    assert held.bounds.joins == (str(tmp_path / "cgroup.procs"),)
    assert set(held.bounds.rlimits) == {resource.RLIMIT_CORE, resource.RLIMIT_FSIZE}
    assert group.freeze()
    assert (tmp_path / "cgroup.freeze").read_text() == "1"
    group.thaw()
    assert (tmp_path / "cgroup.freeze").read_text() == "0"


def test_a_group_that_does_not_freeze_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "PAUSE_S", 0.05)
    monkeypatch.setattr(Group, "is_frozen", lambda _: False)
    (tmp_path / "freezer.state").write_text("THAWED")
    assert not Group((tmp_path,)).freeze()
    assert (tmp_path / "freezer.state").read_text() == "THAWED"


def test_only_groups_with_our_mark_are_touched() -> None:
    assert cgroups.existing(["/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids/system.slice"]).folders == ()


OWN = Path("/proc/self/cgroup").read_text()
BASES = {
    "as found": cgroups.find_bases(),
    "version 2 alone": cgroups.find_bases("".join(line + "\n" for line in OWN.splitlines() if line.startswith("0::"))),
}


@needs_control_groups
@pytest.mark.parametrize(
    "bases", [bases for bases in BASES.values() if bases], ids=[key for key in BASES if BASES[key]]
)
def test_processes_in_a_group_are_frozen_and_ended(bases: list[ParentGroup]) -> None:
    group = cgroups.make(cgroups.plan(bases, new_disposable_id()))
    with subprocess.Popen(["sh", "-c", 'for f; do echo 0 > "$f"; done; exec sleep 60', "sh", *group.joins]) as process:
        while process.pid not in group.members():
            assert process.poll() is None
        assert group.freeze()
        assert group.is_frozen()
        group.end()
        assert process.wait(5) == -signal.SIGKILL
    assert group.folders
    assert not group.exists()
