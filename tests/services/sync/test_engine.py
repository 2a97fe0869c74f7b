"""One sync after another between two ends on this machine: what arrives, what is not sent, what is told."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import shutil
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from remote_sandbox_mcp.backends import here
from remote_sandbox_mcp.backends.link import pipe
from remote_sandbox_mcp.backends.link.lane import OutpostLane
from remote_sandbox_mcp.core.errors import BadArgument, FileProblem, Unreachable, Unsupported
from remote_sandbox_mcp.core.sync.transfer import Lane, Outcome, Place, unheard
from remote_sandbox_mcp.services.sync import ends
from remote_sandbox_mcp.services.sync.ends import End
from remote_sandbox_mcp.services.sync.engine import Synchronization
from remote_sandbox_mcp.services.sync.lanes import Lanes
from tests.services.sync.conftest import Pool
from tests.support.pace import at_most
from tests.support.root import run_as_root, tmpfs
from tests.support.trees import MIB, File, Folder, Link, Node, differences, leftovers, noise, put, snapshot, touch
from tests.support.values import is_empty

# More than one span of a file, and twice what is on its way before a line is known: it can be cut in its middle.
LARGE_SIZE = 40 * MIB
CUT_AT = 32 * MIB
SPARSE_SIZE = 512 * MIB


def make(path: Path, entries: dict[bytes, Node]) -> bytes:
    put(os.fsencode(path), Folder(entries))
    return os.fsencode(path)


def check_equal(pool: Pool) -> None:
    assert not differences(snapshot(os.fsencode(pool.source)), snapshot(os.fsencode(pool.target)))
    assert not leftovers(os.fsencode(pool.target))


def reasons(outcome: Outcome) -> dict[str, str]:
    return {problem.path: problem.reason for problem in outcome.problems}


# What is named


async def test_a_file_becomes_the_file_that_is_named(pool: Pool, tmp_path: Path) -> None:
    make(pool.source, {b"one": File(100, 1, 0o640, 123_456_789)})
    wanted = tmp_path / "not" / "there yet" / "two"
    outcome = await pool.sync(pool.source / "one", wanted)
    assert (outcome.synced_type, outcome.sent_files, outcome.bytes) == ("file", 1, 100)
    found = wanted.stat()
    assert (found.st_mode & 0o7777, found.st_mtime_ns) == (0o640, 123_456_789)
    assert wanted.read_bytes() == noise(100, 1)
    assert (await pool.sync(pool.source / "one", wanted)).skipped_files == 1
    assert os.listdir(wanted.parent) == ["two"]


@pytest.mark.parametrize("size", [100, 5 * MIB])
async def test_a_file_goes_into_a_folder_that_is_there_or_named_with_a_slash(pool: Pool, size: int) -> None:
    make(pool.source, {b"one": File(size, 1)})
    pool.target.mkdir()
    assert (await pool.sync(pool.source / "one")).sent_files == 1
    assert (await pool.sync(pool.source / "one", f"{pool.target}/")).skipped_files == 1
    assert (await pool.sync(pool.source / "one", f"{pool.target}/new/")).sent_files == 1
    for name in ("one", "new/one"):
        assert (pool.target / name).read_bytes() == noise(size, 1)


@pytest.mark.parametrize("size", [100, 5 * MIB])
async def test_a_file_that_is_named_by_a_link_is_sent_itself(pool: Pool, size: int) -> None:
    make(pool.source, {b"file": File(size, 1), b"link": Link(b"file")})
    for expected in (1, 0):
        outcome = await pool.sync(pool.source / "link", pool.target / "copy")
        assert (outcome.problems, outcome.sent_files) == ((), expected)
        assert not (pool.target / "copy").is_symlink()
        assert (pool.target / "copy").read_bytes() == noise(size, 1)
    await pool.sync(pool.source / "link", f"{pool.target}/")
    assert (pool.target / "link").read_bytes() == noise(size, 1)


async def test_a_link_at_the_place_of_a_file_is_replaced_not_followed(pool: Pool, tmp_path: Path) -> None:
    make(pool.source, {b"one": File(100, 1), b"two": File(5 * MIB, 2)})
    make(pool.target, {b"one": Link(b"../outside"), b"two": Link(b"../outside")})
    (tmp_path / "outside").write_text("mine")
    await pool.sync()
    check_equal(pool)
    (pool.target / "one").unlink()
    (pool.target / "one").symlink_to("../outside")
    await pool.sync(pool.source / "one", pool.target / "one")
    check_equal(pool)
    assert (tmp_path / "outside").read_text() == "mine"


async def test_a_folder_that_is_named_by_a_link_is_the_folder(pool: Pool, tmp_path: Path) -> None:
    make(tmp_path / "real source", {b"file": File(10)})
    make(tmp_path / "real target", {})
    pool.source.symlink_to("real source")
    pool.target.symlink_to("real target")
    await pool.sync()
    assert (tmp_path / "real target" / "file").read_bytes() == noise(10, 0)
    assert pool.target.is_symlink()


async def test_what_cannot_be_meant_is_refused_in_one_sentence(pool: Pool, tmp_path: Path) -> None:
    make(pool.source, {b"file": File(10), b"folder": Folder()})
    os.mkfifo(tmp_path / "fifo")
    make(tmp_path / "has a folder", {b"file": Folder()})
    cases = [
        (pool.source / "nothing", pool.target, "does not exist"),
        (pool.source, pool.source / "file", "is not a folder"),
        (tmp_path / "fifo", pool.target, "neither a file nor a folder"),
        (pool.source / "file", tmp_path / "has a folder", "is a folder, but"),
        (pool.source / "file", f"{pool.source}/file/", "Not a directory"),
    ]
    for source, target, words in cases:
        with pytest.raises(FileProblem, match=words) as told:
            await pool.sync(source, target)
        assert "\n" not in str(told.value)
    assert not pool.target.exists()


@pytest.mark.parametrize("sandboxes", [("", "x"), ("x", ""), ("x", "y")])
async def test_both_directions_and_machine_to_machine_are_the_same(pool: Pool, sandboxes: tuple[str, str]) -> None:
    make(pool.source, {b"a": Folder({b"b": File(10)}), b"l": File(5 * MIB), b"link": Link(b"a")})
    source, target = (Place(name, str(path)) for name, path in zip(sandboxes, (pool.source, pool.target), strict=True))
    outcome = await pool.syncs.run(replace(pool.order(), source=source, target=target), unheard)
    assert outcome.sent_files == 3
    check_equal(pool)
    single = replace(source, path=f"{pool.source}/a/b"), replace(target, path=f"{pool.target}/c")
    outcome = await pool.syncs.run(replace(pool.order(), source=single[0], target=single[1]), unheard)
    assert (pool.target / "c").read_bytes() == noise(10, 0)
    missing = replace(source, path=f"{pool.source}/nothing")
    with pytest.raises(FileProblem, match="does not exist"):
        await pool.syncs.run(replace(pool.order(), source=missing, target=target), unheard)


async def test_where_both_ends_cannot_be_looked_at_one_reason_is_told(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    make(pool.source, {b"file": File(10)})
    far, near = Place("x", f"{pool.source}/file/inside"), Place("", f"{pool.source}/file/other")
    # What other tests of this process have left behind is told of here, and not by the next collection.
    gc.collect()
    caplog.clear()
    for _ in range(3):
        with pytest.raises(FileProblem, match="Not a directory"):
            await pool.syncs.run(replace(pool.order(), source=far, target=near), unheard)
    gc.collect()
    assert not caplog.records


# What is left out


async def test_excludes_are_gitignore_lines_and_the_last_that_fits_decides(pool: Pool) -> None:
    files: dict[bytes, Node] = {name: File(1) for name in (b"a.log", b"keep.log", b"b.txt", b"-dash")}
    make(pool.source, {**files, b"build": Folder({b"x": File(1)}), b"sub": Folder({b"a.log": File(1)})})
    outcome = await pool.sync(excludes=("*.log", "!keep.log", "build/", "/-dash"))
    assert {os.fsdecode(path) for path in snapshot(os.fsencode(pool.target))} == {"keep.log", "b.txt", "sub"}
    assert outcome.excluded == ()


async def test_the_default_excludes_are_told_where_they_leave_something_out(pool: Pool) -> None:
    make(pool.source, {b".git": Folder({b"HEAD": File(1)}), b"a": Folder({b"__pycache__": Folder()}), b"b": File(1)})
    outcome = await pool.sync(default_excludes=True)
    assert outcome.excluded == (".git", "__pycache__")
    assert sorted(os.listdir(pool.target)) == ["a", "b"]
    assert os.listdir(pool.target / "a") == []
    assert (await pool.sync(default_excludes=True, excludes=("!.git",))).excluded == ("__pycache__",)
    assert (pool.target / ".git" / "HEAD").exists()


async def test_gitignore_files_count_for_their_folders_when_asked_for(pool: Pool) -> None:
    make(pool.source, {b"sub": Folder({b"x.o": File(1), b"y.o": File(1)}), b"x.o": File(1)})
    (pool.source / "sub" / ".gitignore").write_text("*.o\n!y.o\n")
    make(pool.target, {b"sub": Folder({b"x.o": File(2), b"extra": File(1)})})
    await pool.sync(respect_gitignore=True, delete_extras=True)
    assert sorted(os.listdir(pool.target / "sub")) == [".gitignore", "x.o", "y.o"]
    assert (pool.target / "sub" / "x.o").stat().st_size == 2
    await pool.sync(delete_extras=True)
    check_equal(pool)


# Deletion


async def test_what_is_excluded_is_never_deleted(pool: Pool) -> None:
    make(pool.source, {b"a": File(1), b"was a folder": File(1)})
    kept = Folder({b"keep.log": File(1), b"deep": Folder({b"keep.log": File(2), b"go": File(1)}), b"go": Folder()})
    make(pool.target, {b"extra": kept, b"keep.log": File(3), b"was a folder": kept, b"go": File(1)})
    outcome = await pool.sync(delete_extras=True, excludes=("keep.log",))
    left = {os.fsdecode(path) for path, seen in snapshot(os.fsencode(pool.target)).items() if seen.kind == "file"}
    kept_in = {f"{folder}/{name}" for folder in ("extra", "was a folder") for name in ("keep.log", "deep/keep.log")}
    assert left == {"a", "keep.log"} | kept_in
    assert outcome.deleted_files == 2
    assert set(reasons(outcome)) <= {"was a folder", "was a folder/deep"}
    assert reasons(outcome)["was a folder"]


async def test_deletion_comes_last(pool: Pool) -> None:
    make(pool.source, {b"large": File(5 * MIB, 1)})
    make(pool.target, {b"extra": File(1)})
    seen: set[tuple[bool, bool]] = set()
    job = pool.begin(delete_extras=True)
    plan = await job.prepare()
    assert plan.delete_files == [b"extra"]
    pool.heard = lambda lane: seen.add(((pool.target / "large").exists(), (pool.target / "extra").exists()))
    await job.carry_out()
    assert seen <= {(False, True), (True, True), (True, False)}
    check_equal(pool)


async def test_deletion_is_refused_where_a_slip_would_cost_most(pool: Pool, clean_environment: Path) -> None:
    pool.source.mkdir()
    make(pool.target, {b"a": File(1)})
    home = clean_environment
    (home / "mine").write_text("x")
    for target, words in ((pool.target, "is empty"), (home, "home folder"), (home.parent, "home folder")):
        if words != "is empty":
            (pool.source / "b").write_text("")
        with pytest.raises(BadArgument, match=words):
            await pool.sync(target=target, delete_extras=True, confirmed=False)
    await pool.sync(target=home, delete_extras=True, confirmed=True, excludes=("/remote-sandbox-mcp", "/xdg"))
    assert not (home / "mine").exists()
    assert (pool.target / "a").exists()


async def test_more_deletions_than_are_sure_to_fit_into_one_frame_go_in_several(pool: Pool) -> None:
    """Each path is nearly as long as a path may be."""
    deep = "/".join(["d" * 250] * 14)
    names = [f"{number:05}" + "n" * 200 for number in range(2400)]
    folder = pool.target / deep
    folder.mkdir(parents=True)
    for name in names:
        os.mknod(folder / name)
    make(pool.source, {b"a": File(1)})
    outcome = await pool.sync(delete_extras=True)
    assert (outcome.deleted_files, outcome.deleted_dirs, outcome.problems) == (2400, 14, ())
    # Two for the files and one for their folders.
    assert pool.asked["delete"] == 3
    check_equal(pool)


# What is the same


async def test_only_content_tells_an_edit_that_keeps_size_and_time(pool: Pool) -> None:
    make(pool.source, {b"in": Folder({b"a": File(1000, 1), b"b": File(1000, 1), b"l": File(5 * MIB, 1)})})
    make(pool.target, {b"in": Folder({b"a": File(1000, 2), b"b": File(1000, 1), b"l": File(5 * MIB, 4)})})
    assert (await pool.sync()).sent_files == 0
    outcome = await pool.sync(checksum=True)
    assert (outcome.sent_files, outcome.skipped_files) == (2, 1)
    check_equal(pool)
    assert is_empty(await pool.begin().prepare())


async def test_equal_content_is_not_sent_again_for_another_time_or_mode(pool: Pool) -> None:
    make(pool.source, {b"a": File(1000, 1, 0o600, 5), b"l": File(5 * MIB, 1, 0o600, 5), b"m": File(10, 1, 0o600, 5)})
    make(pool.target, {b"a": File(1000, 1, 0o644, 7), b"l": File(5 * MIB, 1, 0o644, 7), b"m": File(10, 1, 0o644, 5)})
    inodes = [(pool.target / name).stat().st_ino for name in "alm"]
    outcome = await pool.sync(checksum=True)
    assert (outcome.sent_files, outcome.skipped_files) == (0, 3)
    assert outcome.wire_bytes < 10_000
    check_equal(pool)
    assert [(pool.target / name).stat().st_ino for name in "alm"] == inodes
    # A mode alone needs no content, whatever is compared.
    (pool.target / "m").chmod(0o777)
    assert (await pool.sync()).sent_files == 0
    check_equal(pool)


async def test_devices_are_skipped_and_told(pool: Pool) -> None:
    make(pool.source, {b"file": File(1)})
    run_as_root("mknod", str(pool.source / "device"), "c", "1", "3")
    assert reasons(await pool.sync()) == {"device": "skipped: it is a device"}
    assert os.listdir(pool.target) == ["file"]


async def test_sockets_and_fifos_are_skipped_and_told(pool: Pool) -> None:
    make(pool.source, {b"file": File(1)})
    os.mkfifo(pool.source / "fifo")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(pool.source / "socket"))
    outcome = await pool.sync()
    told = {"fifo": "a fifo", "socket": "a socket"}
    assert reasons(outcome) == {path: f"skipped: it is {what}" for path, what in told.items()}
    assert os.listdir(pool.target) == ["file"]


async def test_one_bad_entry_is_told_and_the_rest_goes_on(pool: Pool) -> None:
    make(pool.source, {b"%d" % number: File(5 * MIB if number == 7 else 10, number) for number in range(9)})
    make(pool.target, {b"3": Folder({b"in the way": File(1)}), b"7": Folder({b"in the way": File(1)})})
    outcome = await pool.sync()
    assert set(reasons(outcome)) == {"3", "7"}
    assert outcome.sent_files == 7
    assert (pool.target / "3" / "in the way").exists()
    assert (pool.target / "8").read_bytes() == noise(10, 8)


async def test_a_file_that_vanishes_after_the_look_is_told(pool: Pool) -> None:
    make(pool.source, {b"a": File(10), b"b": File(10), b"large": File(5 * MIB)})
    job = pool.begin()
    await job.prepare()
    for name in ("a", "large"):
        (pool.source / name).unlink()
    outcome = await job.carry_out()
    assert set(reasons(outcome)) == {"a", "large"}
    assert all("No such file" in reason for reason in reasons(outcome).values())
    await pool.sync()
    check_equal(pool)


async def test_a_lane_that_is_slow_to_leave_a_failed_file_does_not_keep_it_from_being_tidied(
    monkeypatch: pytest.MonkeyPatch, pool: Pool
) -> None:
    # As over a long distance: the file's parts go over many lanes, and the next sync begins with one of them.
    monkeypatch.setattr(ends, "LONG_S", 0.0)
    make(pool.source, {b"a": File(10), b"large": File(5 * MIB)})
    held: list[int] = []

    def hold_up(verb: str, lane: OutpostLane) -> None:
        """The lane that made the partial file stands still for a moment when it is told to let go of it."""
        pid = lane._line._process.pid  # type: ignore[attr-defined]
        if verb == "begin":
            held.append(pid)
        elif verb == "leave" and pid in held:
            os.kill(pid, signal.SIGSTOP)
            asyncio.get_running_loop().call_later(0.5, os.kill, pid, signal.SIGCONT)

    pool.asking = hold_up
    job = pool.begin()
    await job.prepare()
    (pool.source / "large").unlink()
    assert set(reasons(await job.carry_out())) == {"large"}
    await pool.sync()
    assert held
    check_equal(pool)


async def test_many_small_files_are_quick_and_the_next_look_is_quicker(pool: Pool) -> None:
    hundred: dict[bytes, Node] = {b"%d" % number: File(300, number) for number in range(100)}
    make(pool.source, {b"%d" % folder: Folder(hundred) for folder in range(15)})
    begun = time.monotonic()
    outcome = await pool.sync()
    print(f"1,500 files in {time.monotonic() - begun:.2f} s")
    assert (outcome.sent_files, outcome.made_dirs) == (1500, 15)
    assert time.monotonic() - begun < at_most(5)
    check_equal(pool)
    outcome = await pool.sync()
    assert (outcome.sent_files, outcome.skipped_files) == (0, 1500)


async def test_large_files_of_one_name_size_and_time_do_not_mix(pool: Pool) -> None:
    make(pool.source, {b"%d" % number: Folder({b"model": File(5 * MIB, number)}) for number in range(6)})
    for _ in range(2):
        outcome = await pool.sync()
        assert outcome.problems == ()
        check_equal(pool)
        for number in range(6):
            put(os.fsencode(pool.source / str(number) / "model"), File(5 * MIB, number + 7, mtime=77))


# Large files


def large_file(pool: Pool, size: int = LARGE_SIZE) -> Path:
    make(pool.source, {b"in": Folder({b"large": File(size, 1)})})
    return pool.source / "in" / "large"


def edit(path: Path, offset: int, data: bytes) -> None:
    """As if a moment after all that was written before."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)
    touch(os.fsencode(path))


async def test_of_a_large_file_only_the_change_is_sent_and_the_index_is_kept(pool: Pool) -> None:
    path = large_file(pool)
    await pool.sync()
    edit(path, 20 * MIB + 12345, noise(MIB, 9))
    outcome = await pool.sync()
    check_equal(pool)
    assert outcome.bytes == LARGE_SIZE
    assert outcome.wire_bytes < 1.6 * MIB
    assert pool.asked["index_old"] == 1
    path.write_bytes(b"!" + path.read_bytes())
    touch(os.fsencode(path))
    outcome = await pool.sync()
    check_equal(pool)
    assert outcome.wire_bytes < 300 << 10
    # What the last sync has put there need not be read again.
    assert pool.asked["index_old"] == 1
    edit(pool.target / "in" / "large", 30 * MIB, noise(MIB, 8))
    edit(path, 10 * MIB, b"?")
    outcome = await pool.sync()
    check_equal(pool)
    assert pool.asked["index_old"] == 2
    assert outcome.wire_bytes < 1.6 * MIB


async def test_a_large_file_that_was_replaced_at_the_target_is_read_again(pool: Pool) -> None:
    path = large_file(pool, 8 * MIB)
    await pool.sync()
    edit(path, 1, b"1")
    await pool.sync()
    assert (pool.asked["index_old"], len(pool.chunks)) == (1, 1)
    target = pool.target / "in" / "large"
    found = target.stat()
    other = target.with_name("other")
    other.write_bytes(noise(8 * MIB + 1, 4))
    other.replace(target)
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
    await pool.sync()
    check_equal(pool)
    assert pool.asked["index_old"] == 2


def cancel_after(pool: Pool, work: asyncio.Future[Outcome], moved: int) -> None:
    """End it when so much has gone to and from all lanes."""
    before = sum(lane.moved for lane in pool.lanes)

    def hear(lane: object) -> None:
        if sum(lane.moved for lane in pool.lanes) - before > moved:
            work.cancel()

    pool.heard = hear


@pytest.mark.parametrize("how", ["new", "changed"])
async def test_a_large_file_that_was_cut_is_resumed_from_what_is_there(pool: Pool, how: str) -> None:
    path = large_file(pool)
    if how == "changed":
        make(pool.target, {b"in": Folder({b"large": File(LARGE_SIZE - 10, 3)})})
    before = snapshot(os.fsencode(pool.target)).get(b"in/large")
    work = asyncio.ensure_future(pool.sync())
    cancel_after(pool, work, CUT_AT)
    with pytest.raises(asyncio.CancelledError):
        await work
    pool.heard = lambda lane: None
    assert snapshot(os.fsencode(pool.target)).get(b"in/large") == before
    [partial] = leftovers(os.fsencode(pool.target))
    there = os.stat(os.fsencode(pool.target) + b"/" + partial).st_blocks * 512
    assert 8 * MIB < there < LARGE_SIZE
    outcome = await pool.sync()
    check_equal(pool)
    assert path.exists()
    assert outcome.wire_bytes < LARGE_SIZE - there + 6 * MIB


async def test_what_was_left_of_another_version_of_a_single_file_goes_with_its_next_sync(pool: Pool) -> None:
    path, target = large_file(pool), pool.target / "large"
    pool.target.mkdir(exist_ok=True)
    kept, old = (pool.target / f".remote-sandbox-part-{name}" for name in ("other", "old"))
    kept.touch()
    old.touch()
    os.utime(old, (1, 1))
    work = asyncio.ensure_future(pool.sync(path, target))
    cancel_after(pool, work, CUT_AT)
    with pytest.raises(asyncio.CancelledError):
        await work
    pool.heard = lambda lane: None
    assert len(leftovers(os.fsencode(pool.target))) == 3
    os.utime(path, (1, 1))
    await pool.sync(path, target)
    assert target.stat().st_size == LARGE_SIZE
    assert [*pool.target.glob(".remote-*")] == [kept]


async def test_what_is_resumed_is_verified(pool: Pool) -> None:
    large_file(pool)
    work = asyncio.ensure_future(pool.sync())
    cancel_after(pool, work, CUT_AT)
    with pytest.raises(asyncio.CancelledError):
        await work
    pool.heard = lambda lane: None
    [partial] = leftovers(os.fsencode(pool.target))
    edit(Path(os.fsdecode(os.fsencode(pool.target) + b"/" + partial)), 3 * MIB, noise(5 * MIB, 4))
    await pool.sync()
    check_equal(pool)


async def test_a_sync_whose_lanes_die_goes_on_by_itself_with_what_is_there(pool: Pool) -> None:
    large_file(pool)
    doomed = [12 * MIB, 36 * MIB, 60 * MIB]

    def hear(lane: object) -> None:
        if doomed and sum(lane.moved for lane in pool.lanes) > doomed[0]:
            del doomed[0]
            for process in pool.processes:
                os.kill(process, 9)

    pool.heard = hear
    outcome = await pool.sync()
    assert (outcome.problems, doomed) == ((), [])
    check_equal(pool)


async def test_a_sparse_file_stays_sparse_and_is_quick(pool: Pool) -> None:
    pool.source.mkdir()
    path = pool.source / "sparse"
    with path.open("wb") as file:
        file.truncate(SPARSE_SIZE)
    for offset in (5 * MIB + 1, 400 * MIB):
        edit(path, offset, noise(100_000, offset))
    os.truncate(path, SPARSE_SIZE + 17)
    begun = time.monotonic()
    outcome = await pool.sync()
    print(f"512 MiB with holes in {time.monotonic() - begun:.2f} s")
    assert time.monotonic() - begun < at_most(5)
    assert outcome.wire_bytes < MIB
    target = pool.target / "sparse"
    assert (target.stat().st_size, target.stat().st_mtime_ns) == (path.stat().st_size, path.stat().st_mtime_ns)
    assert target.stat().st_blocks * 512 < 2 * MIB
    assert list(data_of(target)) == list(data_of(path))


async def test_a_sparse_file_of_which_a_part_has_changed_stays_sparse_and_only_the_change_is_sent(pool: Pool) -> None:
    pool.source.mkdir()
    path = pool.source / "sparse"
    with path.open("wb") as file:
        file.truncate(64 * MIB)
    edit(path, 50 * MIB, noise(MIB, 1))
    await pool.sync()
    edit(path, 30 * MIB, b"x")
    outcome = await pool.sync()
    check_equal(pool)
    assert (pool.target / "sparse").stat().st_blocks * 512 < 8 * MIB
    assert outcome.wire_bytes < 600 << 10


def data_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """What a file holds between its holes."""
    with path.open("rb") as file:
        at = 0
        while True:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:
                return
            end = os.lseek(file.fileno(), at, os.SEEK_HOLE)
            yield at, os.pread(file.fileno(), end - at, at)
            at = end


@pytest.mark.parametrize("known", [False, True], ids=["new", "compared"])
@pytest.mark.parametrize("change", ["grows", "shrinks", "edited", "replaced"])
async def test_a_large_file_that_changes_while_it_is_read_is_told_and_right_next_time(
    pool: Pool, change: str, known: bool
) -> None:
    # Far more than the three frames after which it changes.
    path = large_file(pool, 12 * MIB)
    if known:
        make(pool.target, {b"in": Folder({b"large": File(11 * MIB, 1)})})
    before, frames = path.read_bytes(), 0

    def happen() -> None:
        if change == "grows":
            with path.open("ab") as file:
                file.write(noise(MIB, 5))
        elif change == "shrinks":
            os.truncate(path, 4 * MIB + 5)
        elif change == "edited":
            edit(path, 8 * MIB, noise(10, 5))
        else:
            other = path.with_name("other")
            other.write_bytes(noise(12 * MIB, 9))
            other.replace(path)

    def hear(lane: object) -> None:
        nonlocal frames
        frames += bool(pool.asked["part"] or pool.asked["index"])
        if frames == 3:
            happen()

    pool.heard = hear
    outcome = await pool.sync()
    assert frames > 3
    assert reasons(outcome) == {"in/large": "changed while it was read; sync again to be sure"}
    if change in ("grows", "shrinks"):
        found = (pool.target / "in" / "large").read_bytes()
        assert found == before[: len(found)]
    pool.heard = lambda lane: None
    assert (await pool.sync()).problems == ()
    check_equal(pool)


async def test_small_files_that_are_written_all_the_time_are_right_in_the_end(pool: Pool) -> None:
    make(pool.source, {b"%d" % number: File(100, number) for number in range(200)})
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for number in range(0, 200, 7):
                with (pool.source / str(number)).open("ab") as file:
                    file.write(b"more")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(5):
            await pool.sync()
    finally:
        stop.set()
        writer.join()
    assert (await pool.sync()).problems == ()
    check_equal(pool)


# Trouble


def remount(path: Path, option: str) -> None:
    run_as_root("mount", "-o", f"remount,{option}", str(path))


@pytest.mark.parametrize(("size", "count"), [(300_000, 40), (3 * MIB, 6)], ids=["small files", "large files"])
async def test_a_full_disk_ends_the_transfer_with_one_sentence_and_leaves_the_old_files(
    pool: Pool, size: int, count: int
) -> None:
    make(pool.source, {b"%02d" % number: File(size, number) for number in range(count)})
    with tmpfs(pool.target, "8m"):
        make(pool.target, {b"%02d" % number: File(10, number) for number in range(count)})
        before = snapshot(os.fsencode(pool.target))
        with pytest.raises(FileProblem, match="No space left on device") as told:
            await pool.sync()
        assert "\n" not in str(told.value)
        assert len(str(told.value)) < 300
        wanted, found = snapshot(os.fsencode(pool.source)), snapshot(os.fsencode(pool.target))
        assert found.keys() == before.keys()
        assert all(seen in (before[path], wanted[path]) for path, seen in found.items())
        remount(pool.target, "size=200m")
        await pool.sync()
        check_equal(pool)


async def test_a_disk_that_cannot_be_written_ends_the_transfer(pool: Pool) -> None:
    make(pool.source, {b"%02d" % number: File(10, number) for number in range(5)})
    with tmpfs(pool.target, "1m"):
        remount(pool.target, "ro")
        with pytest.raises(FileProblem, match="Read-only file system"):
            await pool.sync()


@pytest.mark.parametrize("changed", [False, True])
async def test_two_syncs_into_one_target_at_once_both_succeed(pool: Pool, changed: bool) -> None:
    entries: dict[bytes, Node] = {b"%d" % number: File(1000, number) for number in range(200)}
    make(pool.source, {**entries, b"large": File(8 * MIB, 1), b"in": Folder({b"large": File(8 * MIB, 2)})})
    if changed:
        await pool.sync()
        edit(pool.source / "large", MIB, b"new")
        edit(pool.source / "in" / "large", MIB, b"new")
    first, second = await asyncio.gather(pool.sync(), pool.sync())
    assert (first.problems, second.problems) == ((), ())
    check_equal(pool)
    assert is_empty(await pool.begin().prepare())


async def test_many_large_files_over_a_single_lane_on_either_side(pool: Pool) -> None:
    make(pool.source, {**{b"%d" % number: File(2 * MIB, number) for number in range(12)}, b"s": File(5)})

    async def opener() -> Lane:
        if len(pool.lanes) >= 2:
            raise Unsupported("no further session is granted")
        return await pool.open_lane()

    order = pool.order()
    ends = End(order.source, Lanes("one lane", opener, 8)), End(order.target, Lanes("another", opener, 8))
    job = Synchronization(order, *ends, pool.chunks)
    await job.prepare()
    outcome = await asyncio.wait_for(job.carry_out(), 20)
    assert outcome.sent_files == 13
    check_equal(pool)
    for end in ends:
        await end.lanes.close()


async def test_a_first_transfer_of_some_megabytes_starts_one_process_here(pool: Pool) -> None:
    """A second one would be waited for longer than it saves; further lanes to the machine are opened meanwhile."""
    make(pool.source, {b"large": File(17 * MIB, 1)})
    opened: Counter[str] = Counter()

    def opener(end: str) -> Callable[[], Awaitable[Lane]]:
        async def open_one() -> Lane:
            opened[end] += 1
            return await pool.open_lane()

        return open_one

    order = pool.order()
    two = [End(order.source, Lanes("here", opener("here"), 2)), End(order.target, Lanes("far", opener("far"), 8))]
    job = Synchronization(order, two[0], two[1], pool.chunks)
    await job.prepare()
    await job.carry_out()
    check_equal(pool)
    assert opened["here"] == 1
    assert opened["far"] > 1
    for end in two:
        await end.lanes.close()


async def test_an_end_that_cannot_be_opened_leaves_nothing_open_at_the_other(pool: Pool) -> None:
    make(pool.source, {b"a": File(1)})

    async def opener() -> Lane:
        raise Unreachable("far: no answer")

    lanes, order = Lanes("this machine", pool.open_lane, 2), pool.order()
    ends = End(order.source, lanes), End(order.target, Lanes("far", opener, 8))
    with pytest.raises(Unreachable):
        await Synchronization(order, *ends, pool.chunks).prepare()
    await lanes.close()
    await asyncio.sleep(0.3)
    assert not pool.processes


async def test_a_cancelled_start_leaves_no_process(
    pool: Pool, usual_start: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipe, "_spawn", usual_start)
    make(pool.source, {b"%d" % number: File(2 * MIB, number) for number in range(4)})
    before = children()
    for delay in (0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.13, 0.16, 0.2):
        lanes = [Lanes("this machine", here.open_lane, 2) for _ in range(2)]
        order = pool.order()
        job = Synchronization(order, End(order.source, lanes[0]), End(order.target, lanes[1]), pool.chunks)

        async def work(job: Synchronization = job) -> None:
            await job.prepare()
            await job.carry_out()

        working = asyncio.ensure_future(work())
        await asyncio.sleep(delay)
        working.cancel()
        await asyncio.wait((working,))
        for each in lanes:
            await each.close()
        shutil.rmtree(pool.target, ignore_errors=True)
    assert children() == before


def children() -> set[str]:
    me = f"/proc/{os.getpid()}/task"
    return {pid for task in os.listdir(me) for pid in Path(f"{me}/{task}/children").read_text().split()}


# Progress


async def test_progress_grows_to_the_totals(pool: Pool) -> None:
    small: dict[bytes, Node] = {b"%d" % number: File(2000, number) for number in range(400)}
    links: dict[bytes, Node] = {b"link %d" % number: Link(b"x" * 100) for number in range(200)}
    make(pool.source, {**small, **links, b"large": File(10 * MIB, 1)})
    await pool.sync()
    headways = pool.headways
    total = 400 * 2000 + 10 * MIB
    sent = [headway for headway in headways if headway.phase != "scanning"]
    assert headways[0].phase == "scanning"
    assert {(headway.files_total, headway.bytes_total) for headway in sent} == {(601, total)}
    for one, other in itertools.pairwise(sent):
        assert one.bytes <= other.bytes
        assert one.files <= other.files
    assert headways[-1] == replace(headways[-1], phase="done", files=601, bytes=total)


async def test_nothing_to_do_is_told_as_done(pool: Pool) -> None:
    pool.source.mkdir()
    outcome = await pool.sync()
    assert pool.headways[-1].phase == "done"
    assert outcome == replace(outcome, sent_files=0, made_dirs=0, bytes=0)
    assert pool.target.is_dir()


async def test_only_what_came_otherwise_than_it_was_listed_is_noted(pool: Pool) -> None:
    make(pool.source, {name: File(3) for name in (b"a", b"b", b"c")})
    job = pool.begin()
    await job.prepare()
    (pool.source / "b").write_bytes(b"longer")
    assert (await job.carry_out()).sent_files == 3
    assert list(job.tally.otherwise) == [b"b"]


async def test_a_plan_that_is_released_has_changed_nothing(pool: Pool) -> None:
    make(pool.source, {b"a": File(1), b"b": Folder({b"c": File(5 * MIB)})})
    job = pool.begin(delete_extras=True)
    plan = await job.prepare()
    job.release()
    assert [(item.path, item.why) for item in plan.send] == [(b"a", "new"), (b"b/c", "new")]
    assert not pool.target.exists()
