"""A Follower over real lanes: of this computer, of an SSH machine, and of one that has no Python."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.backends import here
from remote_sandbox_mcp.backends.link.lane import OutpostLane
from remote_sandbox_mcp.backends.ssh.machine import open_machine
from remote_sandbox_mcp.core.commands.command import Command
from remote_sandbox_mcp.core.errors import FileProblem, Unreachable
from remote_sandbox_mcp.core.sync.transfer import Lane, Reply
from remote_sandbox_mcp.core.sync.tree import FOLDER, Tree
from remote_sandbox_mcp.far.outpost import wire
from remote_sandbox_mcp.services.sync import follow as follow_module
from remote_sandbox_mcp.services.sync.follow import Followed, Follower
from tests.support.server import until
from tests.support.sshd import Fleet, Sshd


class Opener:
    """Opens lanes of this computer, and keeps them."""

    def __init__(self) -> None:
        self.lanes: list[OutpostLane] = []

    async def __call__(self) -> OutpostLane:
        self.lanes.append(await here.open_lane())
        return self.lanes[-1]

    @property
    def moved(self) -> int:
        return sum(lane.moved for lane in self.lanes)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "src/deep").mkdir(parents=True)
    for name in ("README", "src/a.py", "src/deep/b.py"):
        (root / name).write_text(name)
    return root


@pytest.fixture
def opener() -> Opener:
    return Opener()


@pytest.fixture
async def follower(opener: Opener, root: Path) -> AsyncIterator[Follower]:
    follower = Follower(opener, Followed(name="here", path=str(root), exact=here.locate(str(root)).ids))
    yield follower
    await follower.close()


async def soon(work: Any) -> Any:
    return await asyncio.wait_for(work, 15)


async def test_a_look_at_an_unchanged_tree_gives_the_same_folders(
    follower: Follower, opener: Opener, root: Path
) -> None:
    first = await follower.scan()
    assert sorted(first.folders) == [b"", b"src", b"src/deep"]
    assert (follower.changed, follower.inode, follower.version) == (True, root.stat().st_ino, 1)
    moved = opener.moved
    second = await follower.scan()
    assert second.folders is first.folders
    assert (follower.changed, follower.version) == (False, 1)
    assert opener.moved - moved < 1000


async def test_changes_come_and_the_tree_before_stays_as_it_was(follower: Follower, root: Path) -> None:
    first = await follower.scan()
    (root / "src/deep/b.py").write_text("edited")
    (root / "new").mkdir()
    second = await follower.scan()
    assert (follower.changed, follower.version) == (True, 2)
    assert second.entries(b"src/deep")[b"b.py"].startswith(b"f644 6 ")
    assert second.folders.keys() - first.folders.keys() == {b"new"}
    shutil.rmtree(root / "src")
    third = await follower.scan()
    assert sorted(third.folders) == sorted(third.counts) == [b"", b"new"]
    assert b"src/deep" in second.folders


async def test_after_a_cut_everything_is_told_again_over_another_lane(
    follower: Follower, opener: Opener, root: Path
) -> None:
    first = await follower.scan()
    await opener.lanes[0].close()
    second = await follower.scan()
    assert second.folders is first.folders
    assert not follower.changed
    (root / "README").write_text("edited")
    begin = opener.lanes[1].begin

    def cut(*args: Any, **more: Any) -> Any:
        opener.lanes[1]._line.close()
        return begin(*args, **more)

    opener.lanes[1].begin = cut  # type: ignore[method-assign]
    assert (await soon(follower.scan())).entries(b"")[b"README"].startswith(b"f644 6 ")
    assert (follower.changed, len(opener.lanes)) == (True, 3)


async def test_a_lane_that_is_cut_again_and_again_is_an_error(root: Path, opener: Opener) -> None:
    async def cut_off() -> Lane:
        lane = await opener()
        begin = lane.begin

        def cut(order: Any, *args: Any, **more: Any) -> Any:
            if order["verb"] == "follow":
                lane._line.close()
            return begin(order, *args, **more)

        lane.begin = cut  # type: ignore[method-assign]
        return lane

    follower = Follower(cut_off, Followed(name="here", path=str(root)))
    with pytest.raises(Unreachable):
        await soon(follower.scan())
    assert len(opener.lanes) == 2
    await follower.close()


async def test_looks_may_overlap_and_a_cancelled_one_loses_nothing(follower: Follower, root: Path) -> None:
    await follower.scan()
    (root / "one").write_text("1")
    first, second = asyncio.ensure_future(follower.scan()), asyncio.ensure_future(follower.scan())
    await asyncio.sleep(0)
    first.cancel()
    assert b"one" in (await soon(second)).entries(b"")
    (root / "two").write_text("2")
    for tree in await soon(asyncio.gather(*(follower.scan() for _ in range(3)))):
        assert b"two" in tree.entries(b"")
    (root / "two").unlink()
    assert b"two" not in (await soon(follower.scan())).entries(b"")


async def test_the_folder_must_be_the_one_that_the_gate_admitted(follower: Follower, root: Path) -> None:
    await follower.scan()
    root.rename(root.parent / "old")
    (root / "secret").mkdir(parents=True)
    with pytest.raises(FileProblem) as refused:
        await follower.scan()
    assert refused.value.reason == "moved"
    shutil.rmtree(root)
    (root.parent / "old").rename(root)
    assert b"README" in (await follower.scan()).entries(b"")


async def test_a_lane_without_use_is_closed(
    follower: Follower, opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_module, "IDLE_S", 0.05)
    await follower.scan()
    await until(lambda: not opener.lanes[0].is_alive, "the lane to be closed")
    await follower.scan()
    assert len(opener.lanes) == 2


# Foreign answers


def block(folder: bytes, entries: bytes = b"") -> bytes:
    return b"=" + FOLDER.pack(len(folder), len(entries), 0) + folder + entries


WHOLE = {"kind": "dir", "path": "/x", "real": "/x", "home": "/", "number": 5, "since": 0, "inode": 1, "gone": []}
PART = {**WHOLE, "since": 5, "number": 6}
HOSTILE: dict[str, tuple[dict[str, Any], list[bytes]]] = {
    "no number": ({**PART, "number": "6"}, []),
    "no inode": ({**PART, "inode": None}, []),
    "gone without a list": ({**PART, "gone": 7}, []),
    "no gone": ({name: value for name, value in PART.items() if name != "gone"}, []),
    "the top is gone": ({**PART, "gone": [""]}, []),
    "gone out of the tree": ({**PART, "gone": ["../x"]}, []),
    "a folder out of the tree": (PART, [block(b"../x")]),
    "a folder twice": (PART, [block(b"x"), block(b"x")]),
    "cut off": (PART, [block(b"x")[:-1]]),
    "since a listing that we do not have": ({**PART, "since": 4}, []),
}


class Liar:
    """A lane that answers what it is told to."""

    name, is_alive, follows, moved, squeezers, knows_pieces = "liar", True, True, 0, (), True

    def __init__(self) -> None:
        self.says: Any = (WHOLE, [block(b"", b"a\0f644 1 1")])
        self.asked: list[dict[str, Any]] = []

    async def open(self) -> Any:
        self.is_alive = True
        return self

    def begin(self, order: Any, heard: Callable[[bytes], None] | None = None, **more: Any) -> asyncio.Future[Reply]:
        done: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.asked.append(order)
        end, parts = self.says
        try:
            for part in parts if heard else ():
                assert heard
                heard(part)
            done.set_result(Reply(b"", dict(end)))
        except FileProblem as problem:
            done.set_exception(problem)
        return done

    async def close(self) -> None:
        self.is_alive = False


@pytest.mark.parametrize(("end", "parts"), HOSTILE.values(), ids=HOSTILE)
async def test_an_answer_that_makes_no_sense_is_refused(end: dict[str, Any], parts: list[bytes]) -> None:
    liar = Liar()
    follower = Follower(liar.open, Followed(name="there", path="/x"))
    before = await follower.scan()
    liar.says = end, parts
    with pytest.raises(FileProblem) as refused:
        await follower.scan()
    assert refused.value.reason == "hostile"
    liar.says = {**WHOLE, "number": 9}, [block(b"", b"b\0f644 1 1")]
    assert (await follower.scan()).entries(b"").keys() == {b"b"}
    assert before.entries(b"").keys() == {b"a"}
    await follower.close()


async def test_many_small_answers_may_not_add_up_to_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remote_sandbox_mcp.core.sync.tree.MOST_FOLDERS", 3)
    liar = Liar()
    follower = Follower(liar.open, Followed(name="there", path="/x"))
    for number in range(5, 8):
        await follower.scan()
        liar.says = {**PART, "since": number, "number": number + 1}, [block(b"%d" % number)]
    with pytest.raises(FileProblem):
        await follower.scan()
    await follower.close()


# Other machines


@pytest.fixture
def known_hosts(tmp_path: Path) -> Path:
    return tmp_path / "known_hosts"


@pytest.fixture
async def machine(sshd: Sshd, known_hosts: Path) -> AsyncIterator[Any]:
    machine = await open_machine(sshd.machine(), known_hosts)
    yield machine
    await machine.close()


def names(tree: Tree) -> set[bytes]:
    return set(tree.entries(b""))


async def test_it_looks_when_a_run_over_there_has_ended(machine: Any, sshd: Sshd) -> None:
    follower = Follower(machine.open_lane, Followed(name="there", path="followed"))
    await machine.run(Command("mkdir followed"))
    await follower.scan()
    slow = Command("touch followed/a; until [ -e followed/go ]; do sleep 0.01; done; touch followed/b")
    running = asyncio.ensure_future(machine.run(slow))
    waiting = asyncio.ensure_future(follower.scan(slow.run_id))
    # Others need not wait for it; a quick one is seen to its end, too.
    await until(lambda: (sshd.home / "followed/a").exists(), "the run to begin")
    assert names(await soon(follower.scan())) == {b"a"}
    quick = Command("touch followed/quick")
    looked, _ = await soon(asyncio.gather(follower.scan_after(quick.run_id), machine.run(quick)))
    assert names(looked) == {b"a", b"quick"}
    assert not waiting.done()
    await machine.run(Command("touch followed/go"))
    await soon(running)
    assert names(await soon(waiting)) == {b"a", b"b", b"go", b"quick"}
    # Of one that is not known there it waits for a moment only, or until it is told of its end.
    assert await soon(follower.scan_after("run-unknown")) is None
    hurried = asyncio.ensure_future(follower.scan_after("run-unknown"))
    await asyncio.sleep(0)
    follower.hurry("run-unknown")
    assert names(await soon(hurried)) == names(await follower.scan())
    await follower.close()


async def test_a_look_that_is_given_up_leaves_nothing_waiting_over_there(machine: Any) -> None:
    lanes: list[OutpostLane] = []

    async def open_lane() -> OutpostLane:
        lanes.append(await machine.open_lane())
        return lanes[-1]

    follower = Follower(open_lane, Followed(name="there", path="."))
    await follower.scan()
    said: Counter[int] = Counter()
    usual = lanes[0]._dispatch

    async def dispatch(kind: int, number: int, body: bytes) -> None:
        said[kind] += 1
        await usual(kind, number, body)

    lanes[0]._dispatch = dispatch  # type: ignore[method-assign]
    command = Command("exec sleep 60")
    running = asyncio.ensure_future(machine.run(command))
    waiting = asyncio.ensure_future(follower.scan(command.run_id))
    await follower.scan()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await until(lambda: said[wire.END] == 2, "both answers")
    await machine.stop(command.run_id)
    await soon(running)
    await follower.close()


async def test_without_python_it_scans(fleet: Fleet, known_hosts: Path) -> None:
    bare = fleet.machine(python=False)
    machine: Any = await open_machine(bare.machine(), known_hosts)
    await machine.run(Command("mkdir followed; touch followed/a"))
    follower = Follower(machine.open_lane, Followed(name="there", path="followed"))
    first = await follower.scan()
    assert await follower.scan_after("run-unknown") is None
    second = await follower.scan("run-unknown")
    assert second.folders is first.folders
    assert (names(second), follower.changed, follower.inode, follower.is_watched) == ({b"a"}, False, 0, False)
    os.unlink(bare.home / "followed/a")
    assert (names(await follower.scan()), follower.changed) == (set(), True)
    await follower.close()
    await machine.close()
