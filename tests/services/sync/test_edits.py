"""What its user changes at the target between the scan and the sync's own change is kept, and told."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.core.sync.transfer import Outcome, Place
from tests.services.sync.conftest import Pool
from tests.support.trees import MIB, File, Folder, Link, Node, put, snapshot

MINE = b"what its user wrote just now"
OLD, NEW = File(100, 1, mtime=10**18), File(200, 2, mtime=2 * 10**18)
BIG, BIGGER = File(5 * MIB, 1, mtime=10**18), File(6 * MIB, 2, mtime=2 * 10**18)
SAME_SIZE = File(100, 1, mtime=3 * 10**18)

# What the source has, what the target has at the scan, and where an edit of the target's is to be kept.
CHANGED: dict[str, tuple[dict[bytes, Node], dict[bytes, Node], str]] = {
    "a file that is replaced": ({b"f": NEW}, {b"f": OLD}, "f"),
    "a file that is new": ({b"f": NEW}, {}, "f"),
    "a file in a new folder": ({b"d": Folder({b"f": NEW})}, {}, "d/f"),
    "a large file that is replaced": ({b"f": BIGGER}, {b"f": BIG}, "f"),
    "a large file that is new": ({b"f": BIG}, {}, "f"),
    "a link that is replaced by a file": ({b"f": NEW}, {b"f": Link(b"x")}, "f"),
    "a file that is replaced by a link": ({b"f": Link(b"x")}, {b"f": OLD}, "f"),
    "a file in the way of a folder": ({b"f": Folder({b"x": NEW})}, {b"f": OLD}, "f"),
    "a file in a folder that is in the way": ({b"d": NEW}, {b"d": Folder({b"f": OLD})}, "d/f"),
    "an extra": ({b"x": OLD}, {b"x": OLD, b"f": OLD}, "f"),
    "an extra in an extra folder": ({b"x": OLD}, {b"x": OLD, b"d": Folder({b"f": OLD})}, "d/f"),
    "an extra link": ({b"x": OLD}, {b"x": OLD, b"f": Link(b"x")}, "f"),
    "a file whose mode changes": ({b"f": File(100, 1, 0o600, 10**18)}, {b"f": OLD}, "f"),
}
WAYS = {"push": False, "pull": True}


async def sync(pool: Pool, pulls: bool, meanwhile: Callable[[], None], **more: Any) -> Outcome:
    """With something that happens when all is planned."""
    far, here = ("source", "target") if pulls else ("target", "source")
    ends = {far: Place("x", str(getattr(pool, far))), here: Place("", str(getattr(pool, here)))}
    job = pool.syncs.begin(replace(pool.order(), **{"delete_extras": True, **ends, **more}))
    await job.prepare()
    meanwhile()
    return await job.carry_out()


async def test_a_link_whose_end_is_the_same_was_changed_all_the_same(pool: Pool) -> None:
    put(os.fsencode(pool.source), Folder({b"x": OLD}))
    put(os.fsencode(pool.target), Folder({b"x": OLD, b"link": Link(b"to a b")}))

    def lead_elsewhere() -> None:
        (pool.target / "link").unlink()
        (pool.target / "link").symlink_to("b")

    outcome = await sync(pool, False, lead_elsewhere)
    assert [problem.path for problem in outcome.problems] == ["link"]
    assert os.readlink(pool.target / "link") == "b"


def edit(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(MINE)


@pytest.mark.parametrize("pulls", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(("source", "target", "path"), CHANGED.values(), ids=CHANGED)
async def test_an_edit_is_kept_and_told(
    pool: Pool, source: dict[bytes, Node], target: dict[bytes, Node], path: str, pulls: bool
) -> None:
    put(os.fsencode(pool.source), Folder({b"other": NEW, **source}))
    put(os.fsencode(pool.target), Folder({b"other": OLD, **target}))
    outcome = await sync(pool, pulls, lambda: edit(pool.target / path))
    assert (pool.target / path).read_bytes() == MINE
    assert any(problem.path == path and "kept as it is" in problem.reason for problem in outcome.problems), outcome
    # The rest goes on, and the next sync does what was not done.
    assert (pool.target / "other").read_bytes() == NEW.content
    await sync(pool, pulls, lambda: None)
    assert snapshot(os.fsencode(pool.target)) == snapshot(os.fsencode(pool.source))


@pytest.mark.parametrize("pulls", WAYS.values(), ids=WAYS)
async def test_an_edit_that_keeps_the_size_is_kept(pool: Pool, pulls: bool) -> None:
    """With `checksum` files of one content get the source's time, which would hide an edit for ever."""
    put(os.fsencode(pool.source), Folder({b"f": SAME_SIZE, b"g": SAME_SIZE}))
    put(os.fsencode(pool.target), Folder({b"f": OLD, b"g": OLD}))
    mine = bytes(100)
    outcome = await sync(pool, pulls, lambda: (pool.target / "f").write_bytes(mine) and None, checksum=True)
    assert [problem.path for problem in outcome.problems] == ["f"]
    assert (pool.target / "f").read_bytes() == mine
    assert (pool.target / "f").stat().st_mtime_ns != SAME_SIZE.mtime
    assert (pool.target / "g").stat().st_mtime_ns == SAME_SIZE.mtime


async def test_a_single_file_that_was_edited_is_kept(pool: Pool) -> None:
    put(os.fsencode(pool.source), Folder({b"f": NEW}))
    put(os.fsencode(pool.target), Folder({b"g": OLD}))
    more = {"source": Place("", f"{pool.source}/f"), "target": Place("x", f"{pool.target}/g"), "delete_extras": False}
    outcome = await sync(pool, False, lambda: edit(pool.target / "g"), **more)
    assert (outcome.sent_files, [problem.path for problem in outcome.problems]) == (0, ["g"])
    assert (pool.target / "g").read_bytes() == MINE


async def test_a_link_that_names_a_single_file_is_replaced_as_ever(pool: Pool) -> None:
    put(os.fsencode(pool.source), Folder({b"f": NEW}))
    put(os.fsencode(pool.target), Folder({b"real": OLD, b"link": Link(b"real")}))
    more = {"source": Place("", f"{pool.source}/f"), "target": Place("x", f"{pool.target}/link")}
    outcome = await sync(pool, False, lambda: None, **more, delete_extras=False)
    assert (outcome.sent_files, outcome.problems) == (1, ())
    assert (pool.target / "link").read_bytes() == NEW.content


async def test_what_is_gone_by_then_is_made_again_or_stays_gone(pool: Pool) -> None:
    put(os.fsencode(pool.source), Folder({b"f": NEW, b"large": BIGGER}))
    put(os.fsencode(pool.target), Folder({b"f": OLD, b"large": BIG, b"extra": OLD}))

    def remove() -> None:
        for name in ("f", "large", "extra"):
            (pool.target / name).unlink()

    outcome = await sync(pool, False, remove)
    assert outcome.problems == ()
    assert snapshot(os.fsencode(pool.target)) == snapshot(os.fsencode(pool.source))


async def test_another_sync_of_the_same_is_no_edit(pool: Pool) -> None:
    put(os.fsencode(pool.source), Folder({b"f": NEW, b"large": BIGGER, b"link": Link(b"f")}))
    put(os.fsencode(pool.target), Folder({b"f": OLD, b"large": BIG}))
    first, second = pool.begin(), pool.begin()
    await first.prepare()
    await second.prepare()
    assert (await first.carry_out()).problems == (await second.carry_out()).problems == ()
    assert snapshot(os.fsencode(pool.target)) == snapshot(os.fsencode(pool.source))


async def test_files_in_a_folder_that_could_not_be_read_are_replaced(pool: Pool) -> None:
    """What was there is not known, so nobody can say that it has changed."""
    put(os.fsencode(pool.source), Folder({b"d": Folder({b"f": NEW})}))
    put(os.fsencode(pool.target), Folder({b"d": Folder({b"f": OLD})}))
    job = pool.begin()
    await job.prepare()
    assert job.target_tree is not None
    job.plan.found.clear()
    job.plan.otherwise_found = b"?"
    assert (await job.carry_out()).problems == ()
    assert (pool.target / "d" / "f").read_bytes() == NEW.content
