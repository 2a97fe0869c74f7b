"""Whatever is in two trees and whatever happens to them: a sync makes them equal, and a cut leaves nothing broken."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remote_sandbox_mcp.backends.link.lane import OutpostLane
from remote_sandbox_mcp.core.errors import Unreachable
from tests.services.sync.conftest import Pool
from tests.support.trees import CHANGE_LISTS, TREES, Change, Folder, Snapshot, differences, leftovers, put, snapshot
from tests.support.values import is_empty

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]
_numbers = itertools.count()
# A small sync takes about ten of them.
FRAMES = st.one_of(st.integers(3, 12), st.integers(8, 50))


def examples(most: int) -> settings:
    """Each takes a tenth of a second, and every run draws others: what few examples miss, a later run finds."""
    too_much = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=most, deadline=None, suppress_health_check=too_much)


def set_up(pool: Pool, ours: Folder, theirs: Folder) -> tuple[bytes, bytes]:
    """Two fresh roots for one example."""
    folder = pool.folder / str(next(_numbers))
    folder.mkdir()
    pool.source, pool.target = folder / "source", folder / "target"
    source, target = os.fsencode(pool.source), os.fsencode(pool.target)
    put(source, ours)
    put(target, theirs)
    return source, target


def happen(changes: list[Change], root: bytes) -> None:
    for change in changes:
        change.happen(root)


@examples(25)
@given(TREES, TREES, CHANGE_LISTS, CHANGE_LISTS, st.booleans())
async def test_a_sync_with_deletion_makes_both_trees_equal_and_the_next_does_nothing(
    pool: Pool, ours: Folder, theirs: Folder, here: list[Change], there: list[Change], checksum: bool
) -> None:
    source, target = set_up(pool, ours, theirs)
    outcome = await pool.sync(delete_extras=True)
    assert not outcome.problems
    assert not differences(snapshot(source), snapshot(target))
    happen(here, source)
    happen(there, target)
    outcome = await pool.sync(delete_extras=True, checksum=checksum)
    assert not outcome.problems
    assert not differences(snapshot(source), snapshot(target))
    await check_done(pool, checksum=not checksum)


async def check_done(pool: Pool, *, checksum: bool, delete_extras: bool = True) -> None:
    """Nothing is left to do."""
    job = pool.begin(delete_extras=delete_extras, checksum=checksum)
    plan = await job.prepare()
    assert is_empty(plan), plan
    outcome = await job.carry_out()
    assert (outcome.sent_files, outcome.bytes, outcome.deleted_files, outcome.made_dirs) == (0, 0, 0, 0)
    assert not leftovers(os.fsencode(pool.target))


@examples(20)
@given(TREES, TREES, CHANGE_LISTS, CHANGE_LISTS)
async def test_a_sync_without_deletion_brings_all_of_the_source_and_takes_nothing(
    pool: Pool, ours: Folder, theirs: Folder, here: list[Change], there: list[Change]
) -> None:
    source, target = set_up(pool, ours, theirs)
    for _ in range(2):
        before = snapshot(target)
        outcome = await pool.sync()
        wanted, found = snapshot(source), snapshot(target)
        # A folder that is not empty is not replaced by a file.
        in_the_way = {os.fsencode(problem.path) for problem in outcome.problems}
        assert all(before[path].kind == "folder" != wanted[path].kind for path in in_the_way)
        assert {path for path, seen in wanted.items() if found.get(path) != seen} <= in_the_way
        replaced = {path for path, seen in wanted.items() if seen.kind != "folder"} - in_the_way
        assert all(path in found for path in before.keys() - replaced)
        if not in_the_way:
            await check_done(pool, checksum=False, delete_extras=False)
        happen(here, source)
        happen(there, target)


class Interruption:
    """Ends a sync after so many frames: by a cancellation, or by the death of the lane that spoke last."""

    def __init__(self, frames: int, *, killing: bool) -> None:
        self.frames = frames
        self.killing = killing
        self.work: asyncio.Future[None] | None = None

    def hear(self, lane: OutpostLane) -> None:
        self.frames -= 1
        if self.frames == 0 and self.work:
            if self.killing:
                os.kill(lane._line._process.pid, signal.SIGKILL)  # type: ignore[attr-defined]
            else:
                self.work.cancel()


async def interrupted(pool: Pool, interruption: Interruption) -> bool:
    """Whether a sync was ended before its end."""

    async def work() -> None:
        job = pool.begin(delete_extras=True)
        await job.prepare()
        await job.carry_out()

    pool.heard = interruption.hear
    interruption.work = working = asyncio.ensure_future(work())
    await asyncio.wait((working,))
    pool.heard = lambda lane: None
    if working.cancelled():
        return True
    assert isinstance(working.exception(), Unreachable | None)
    return working.exception() is not None


def check_whole(before: Snapshot, wanted: Snapshot, found: Snapshot) -> None:
    """Every file is as it was or as it shall be, and none that both sides have is gone."""
    for path, seen in found.items():
        if seen.kind != "folder":
            assert seen in (before.get(path), wanted.get(path)), path
    for path in before.keys() & wanted.keys():
        if before[path].kind == "file" and wanted[path].kind == "file":
            assert path in found


@examples(25)
@given(TREES, TREES, CHANGE_LISTS, st.lists(st.tuples(FRAMES, st.booleans()), min_size=1, max_size=3))
async def test_a_sync_that_is_cut_at_any_moment_leaves_each_file_old_or_new_and_the_next_completes_it(
    pool: Pool, ours: Folder, theirs: Folder, changes: list[Change], cuts: list[tuple[int, bool]]
) -> None:
    source, target = set_up(pool, ours, theirs)
    for frames, killing in cuts:
        before, wanted = snapshot(target), snapshot(source)
        if not await interrupted(pool, Interruption(frames, killing=killing)):
            assert not differences(wanted, snapshot(target))
        check_whole(before, wanted, snapshot(target))
        happen(changes, source)
    outcome = await pool.sync(delete_extras=True)
    assert not outcome.problems
    assert not differences(snapshot(source), snapshot(target))
    await check_done(pool, checksum=True)
