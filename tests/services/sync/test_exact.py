"""What is opened on this machine is what was decided on, whatever is put in its way meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from remote_sandbox_mcp.backends.here import locate, read_file
from remote_sandbox_mcp.core.errors import FileProblem
from remote_sandbox_mcp.core.gate import ResolvedPath
from remote_sandbox_mcp.core.sync.transfer import Order, Place
from remote_sandbox_mcp.far.lane.tree import Refusal, Root, stat_exactly
from tests.services.sync.conftest import Pool


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    folder = tmp_path / "secret"
    folder.mkdir()
    (folder / "file").write_text("secret")
    return folder


def opened(way: ResolvedPath, *, make: bool = False) -> str:
    root = Root(os.fsencode(way.path), [list(each) for each in way.ids], make)
    try:
        return os.readlink(f"/proc/self/fd/{root.top}")
    finally:
        root.close()


def test_links_are_resolved_once(tmp_path: Path, secret: Path) -> None:
    (tmp_path / "way").symlink_to(secret)
    way = locate(str(tmp_path / "way" / "new"))
    assert way.path == str(secret / "new")
    assert len(way.ids) == len(way.names)
    assert opened(way, make=True) == way.path
    assert locate("/").ids == ((os.stat("/").st_dev, os.stat("/").st_ino),)
    assert opened(locate("/")) == "/"


@pytest.mark.parametrize("depth", ["itself", "above"])
def test_a_link_in_its_place_is_refused(tmp_path: Path, secret: Path, depth: str) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    way = locate(str(tmp_path / "a" / "b"))
    (tmp_path / "a" / "b").rmdir()
    if depth == "above":
        (secret / "b").mkdir()
        (tmp_path / "a").rmdir()
    (tmp_path / ("a/b" if depth == "itself" else "a")).symlink_to(secret)
    for make in (False, True):
        with pytest.raises(Refusal, match="a link was put there"):
            opened(way, make=make)
    with pytest.raises(Refusal, match="a link was put there"):
        stat_exactly(os.fsencode(way.path), [list(each) for each in way.ids])


def test_another_folder_in_its_place_is_refused(tmp_path: Path, secret: Path) -> None:
    (tmp_path / "a").mkdir()
    way = locate(str(tmp_path / "a"))
    (tmp_path / "a").rename(tmp_path / "b")
    secret.rename(tmp_path / "a")
    with pytest.raises(Refusal, match="is not what it was"):
        opened(way)


def test_a_file_is_read_only_as_the_one_that_was_found(tmp_path: Path, secret: Path) -> None:
    (tmp_path / "rules").write_text("*.o")
    way = locate(str(tmp_path / "rules"))
    assert read_file(way, 10) == b"*.o"
    os.rename(secret / "file", tmp_path / "rules")
    with pytest.raises(Refusal):
        read_file(way, 10)
    os.unlink(tmp_path / "rules")
    (tmp_path / "rules").symlink_to("/etc/hostname")
    with pytest.raises(OSError, match="symbolic links"):
        read_file(way, 10)


@pytest.mark.parametrize("when", ["planned", "not yet looked at"])
@pytest.mark.parametrize("writes", [False, True], ids=["push", "pull"])
async def test_a_sync_does_not_follow_what_appears_after_it_was_admitted(
    pool: Pool, secret: Path, when: str, writes: bool
) -> None:
    for folder in (pool.source, pool.target):
        folder.mkdir()
    (pool.source / "file").write_text("the one that is meant")
    near, far = (pool.target, pool.source) if writes else (pool.source, pool.target)
    ends = (Place("x", str(far)), Place("", str(near))) if writes else (Place("", str(near)), Place("x", str(far)))
    job = pool.syncs.begin(Order(source=ends[0], target=ends[1]))
    if when == "planned":
        await job.prepare()
    near.rename(near.with_name("aside"))
    near.symlink_to(secret)
    if when == "planned":
        assert (await job.carry_out()).problem_count
    else:
        with pytest.raises(FileProblem, match="a link was put there"):
            await job.prepare()
    assert (secret / "file").read_text() == "secret"
    assert not (far / "file").exists() or (far / "file").read_text() != "secret"
    assert not job.tally.sent
