"""Following a tree: after whatever happens to it, what the near side has is what a fresh scan would find."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.core.sync.tree import Tree, TreeReader
from remote_sandbox_mcp.far.lane import follow as far
from remote_sandbox_mcp.far.lane import snapshot
from remote_sandbox_mcp.far.lane import tree as far_tree
from remote_sandbox_mcp.far.lane.tree import Refusal, Survey
from tests.support.values import read_tree

needs_inotify = pytest.mark.skipif(not Path("/proc/sys/fs/inotify").exists(), reason="this system has no inotify")


@pytest.fixture(autouse=True)
def current_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane goes to other folders, and here it runs in the tests' own process."""
    monkeypatch.chdir(Path.cwd())


class Near:
    """The near side of one followed tree, in this process."""

    def __init__(self, root: Path, **order: Any) -> None:
        self.order: Any = {"path": str(root), "rules": [], "watched": [], "gitignore": True, **order}
        self.followed: dict[str, far.Following] = {}
        self.tree: Tree | None = None
        self.end: Any = {"number": 0}

    def look(self, is_quiet: bool = True) -> set[str]:
        """Look, compare with a fresh scan unless something happens meanwhile, and give the folders that were told."""
        parts: list[bytes] = []
        self.end = far.follow(self.followed, {**self.order, "since": self.end["number"]}, parts.append)
        reader = TreeReader("tree")
        for part in parts:
            reader.feed(part)
        if self.end["since"]:
            assert self.tree
            self.tree = reader.finish_differences(self.end, self.tree)
        else:
            self.tree = reader.finish(self.end)
        assert not is_quiet or seen(self.tree) == seen(self.fresh())
        return {os.fsdecode(folder) for folder in reader._folders}

    def fresh(self) -> Tree:
        parts: list[bytes] = []
        end: Any = far_tree.scan({**self.order, "verb": "scan"}, parts.append)
        return read_tree(end, parts)

    @property
    def following(self) -> far.Following:
        (following,) = self.followed.values()
        return following

    def close(self) -> None:
        for following in self.followed.values():
            following.rest()


def seen(tree: Tree) -> tuple[Any, ...]:
    """All that a tree says, in an order of its own."""
    problems = sorted((problem.path, problem.reason) for problem in tree.problems)
    lists = sorted(tree.hits), sorted(tree.leftovers), sorted(tree.gitignores)
    return tree.kind, tree.meta, tree.folders, tree.counts, problems, tree.problem_count, tree.unread, *lists


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small project."""
    root = tmp_path / "root"
    for folder in ("src/deep/deeper", "docs", "out", ".git"):
        (root / folder).mkdir(parents=True)
    for name in ("README", "src/a.py", "src/deep/b.py", "src/deep/deeper/c.py", "docs/d.md", "out/e.o", ".git/config"):
        (root / name).write_text(name)
    (root / ".gitignore").write_text("*.o\n")
    return root


@pytest.fixture
def near(root: Path) -> Iterator[Near]:
    near = Near(root, rules=[".git"], watched=[".git"])
    near.look()
    yield near
    near.close()


@pytest.fixture
def reads(near: Near, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that are read from now on."""
    found: list[str] = []
    usual = far.FollowedSurvey.read

    def read(survey: far.FollowedSurvey, folder: bytes) -> Any:
        found.append(os.fsdecode(folder))
        return usual(survey, folder)

    monkeypatch.setattr(far.FollowedSurvey, "read", read)
    return found


def replace_folder(root: Path) -> None:
    """Another folder at the path of one, both made outside of the tree, so that no folder in them has an event."""
    made = root.parent / "made"
    (made / "deep").mkdir(parents=True)
    (made / "deep/other.py").write_text("other")
    (root / "src").rename(root.parent / "old")
    made.rename(root / "src")


def same_size(root: Path) -> None:
    before = (root / "src/a.py").stat()
    (root / "src/a.py").write_text("A" * before.st_size)
    os.utime(root / "src/a.py", ns=(before.st_atime_ns, before.st_mtime_ns + 1))


def out_and_back(root: Path) -> None:
    (root / "src").rename(root.parent / "elsewhere")
    (root.parent / "elsewhere/deep/b.py").write_text("edited while it was away")
    (root.parent / "elsewhere").rename(root / "src")


CHANGES: dict[str, tuple[Callable[[Path], object], set[str]]] = {
    "nothing": (lambda root: None, set()),
    "create": (lambda root: (root / "docs/new").write_text("x"), {"", "docs"}),
    "edit in place": (lambda root: append(root), {"src/deep"}),
    "same size": (same_size, {"src"}),
    "delete": (lambda root: (root / "docs/d.md").unlink(), {"", "docs"}),
    "rename a file": (lambda root: (root / "src/a.py").rename(root / "docs/a.py"), {"", "src", "docs"}),
    "rename a folder": (lambda root: (root / "src").rename(root / "lib"), {"", "lib", "lib/deep", "lib/deep/deeper"}),
    "move a folder": (
        lambda root: (root / "src/deep").rename(root / "docs/deep"),
        {"", "src", "docs", "docs/deep", "docs/deep/deeper"},
    ),
    "new tree": (
        lambda root: shutil.copytree(root / "src", root / "copy"),
        {"", "copy", "copy/deep", "copy/deep/deeper"},
    ),
    "chmod": (lambda root: (root / "src/deep/b.py").chmod(0o755), {"src/deep"}),
    "chmod of a folder": (lambda root: (root / "src/deep").chmod(0o700), {"src"}),
    "link": (lambda root: (root / "docs/link").symlink_to("d.md"), {"", "docs"}),
    "folder becomes a link": (lambda root: (shutil.rmtree(root / "docs"), (root / "docs").symlink_to("src")), {""}),
    "file becomes a folder": (lambda root: ((root / "README").unlink(), (root / "README").mkdir()), {"", "README"}),
    "removed and made anew": (lambda root: (shutil.rmtree(root / "docs"), (root / "docs").mkdir()), {"", "docs"}),
    "replaced from outside": (replace_folder, {"", "src", "src/deep"}),
    "out and back": (out_and_back, {"src/deep"}),
    "ignored file": (lambda root: (root / "src/x.o").write_text("x"), {""}),
    "what is left out": (lambda root: (root / ".git/config").write_text("x"), set()),
    "rules": (lambda root: (root / ".gitignore").write_text("*.md\n"), {"", "docs", "out"}),
    "rules of a folder": (lambda root: (root / "src/.gitignore").write_text("deep\n"), {"", "src"}),
    "no rules": (lambda root: (root / ".gitignore").unlink(), {"", "out"}),
    "touched rules": (lambda root: os.utime(root / ".gitignore"), {""}),
    "a fifo": (lambda root: os.mkfifo(root / "docs/fifo"), {""}),
    "a leftover": (lambda root: (root / "docs/.remote-sandbox-part-x").write_text("x"), {""}),
}


def append(root: Path) -> None:
    with (root / "src/deep/b.py").open("a") as file:
        file.write("more")


@pytest.mark.parametrize("is_watched", [True, False], ids=["inotify", "without"])
@pytest.mark.parametrize(("change", "told"), CHANGES.values(), ids=CHANGES)
def test_a_change_is_told_and_nothing_else(
    root: Path, change: Callable[[Path], object], told: set[str], is_watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_watched:
        monkeypatch.setattr(far.sys, "platform", "darwin")
    near = Near(root, rules=[".git"], watched=[".git"])
    near.look()
    change(root)
    assert near.look() == told
    assert near.look() == set()
    assert (near.end["watched"], near.end["whole"], near.end["gone"]) == (is_watched, False, [])
    near.close()


@needs_inotify
def test_folders_without_a_change_are_not_read(near: Near, root: Path, reads: list[str]) -> None:
    near.look()
    append(root)
    near.look()
    (root / "docs/new").write_text("x")
    near.look()
    assert [reads[0], sorted(reads[1:])] == ["src/deep", ["", "docs"]]


@needs_inotify
def test_writing_to_a_temporary_file_of_ours_costs_no_reading(near: Near, root: Path, reads: list[str]) -> None:
    with (root / "docs/.remote-sandbox-part-x").open("w") as file:
        near.look()
        del reads[:]
        file.write("x" * 100_000)
        file.flush()
        near.look()
    assert reads == []


# Where inotify does not tell everything


@needs_inotify
def test_a_folder_that_is_filled_while_it_is_found_is_told_with_all_of_it(
    near: Near, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is made in a new folder before its watch is set causes no event."""
    usual = Survey.enter

    def enter(survey: Survey, folder: bytes) -> bytes:
        if folder == b"made" and not (root / "made/in").exists():
            (root / "made/in").mkdir()
            (root / "made/in/file").write_text("x")
        return usual(survey, folder)

    (root / "made").mkdir()
    monkeypatch.setattr(Survey, "enter", enter)
    assert near.look(is_quiet=False) == {"", "made", "made/in"}
    # The time of the new folder was read before it was filled.
    assert near.look() == {""}


@needs_inotify
def test_after_an_overflow_everything_is_read(near: Near, root: Path, reads: list[str]) -> None:
    with open("/proc/sys/fs/inotify/max_queued_events") as file:
        room = int(file.read())
    for _ in range(room // 2 + 2):
        # Two kinds in turn: equal events are put together.
        os.utime(root / "README")
        os.utime(root / "src/a.py")
    append(root)
    assert near.look() == {"", "src", "src/deep"}
    assert sorted(reads) == ["", "docs", "out", "src", "src/deep", "src/deep/deeper"]


@needs_inotify
@pytest.mark.parametrize("limit", ["the user's", "our own"])
def test_without_enough_watches_everything_is_read_at_every_look(
    near: Near, root: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    def refuse(inotify: far.Inotify, path: bytes, mask: int) -> int:
        raise OSError(errno.ENOSPC, "no space")

    assert near.end["watched"]
    watches = near.following.watches
    assert watches
    if limit == "our own":
        watches.most = len(watches.numbers)
    else:
        monkeypatch.setattr(far.Inotify, "watch", refuse)
    (root / "new").mkdir()
    assert near.look() == {"", "new"}
    assert not near.end["watched"]
    append(root)
    assert near.look() == {"src/deep"}
    del reads[:]
    # From now on, folders are compared, and read where they show something else.
    append(root)
    assert near.look() == {"src/deep"}
    assert reads == ["src/deep"]


@needs_inotify
def test_on_a_network_file_system_inotify_is_not_used(
    near: Near, root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(far, "LOCAL_FILE_SYSTEMS", frozenset())
    shared = Near(root)
    shared.look()
    assert not shared.end["watched"]
    # A folder of the tree may be on another one.
    assert near.following.survey
    near.following.survey.devices[-1] = b"src"
    append(root)
    near.look()
    assert not near.end["watched"]


@pytest.fixture
def many(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Near]:
    """A tree without watches that takes several processes to compare."""
    monkeypatch.setattr(far, "LOCAL_FILE_SYSTEMS", frozenset())
    monkeypatch.setattr(snapshot, "WORTH_ENTRIES", 2)
    monkeypatch.setattr(snapshot, "own_cores", lambda: 3)
    near = Near(root, rules=[".git"], watched=[".git"])
    near.look()
    yield near
    near.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(("change", "told"), CHANGES.values(), ids=CHANGES)
def test_several_processes_find_what_changed(
    many: Near, root: Path, change: Callable[[Path], object], told: set[str]
) -> None:
    assert many.look() == set()
    change(root)
    assert many.look() == told
    assert many.look() == set()


def put_file_for_ignored_folder(root: Path) -> None:
    (root / "src/build").rmdir()
    (root / "src/build").write_text("a file")


def put_link_for_ignored_folder(root: Path) -> None:
    (root / "build").rmdir()
    (root / "build").symlink_to("docs")


def put_folder_for_ignored_file(root: Path) -> None:
    (root / ".cache").unlink()
    (root / ".cache").mkdir()
    (root / ".cache/x").write_text("x")


def ignore_more(root: Path) -> None:
    with (root / ".gitignore").open("a") as file:
        file.write("*.md\n")


# What happens to entries that a .gitignore leaves out, and the folders that are told of it.
CHANGES_OF_LEFT_OUT: dict[str, tuple[Callable[[Path], object], set[str]]] = {
    "a file for a folder": (put_file_for_ignored_folder, {"", "src"}),
    "a link for a folder": (put_link_for_ignored_folder, {""}),
    "a folder for a file": (put_folder_for_ignored_file, {"", ".cache"}),
    "a rule in a file that ignores itself": (ignore_more, {"docs"}),
}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(("change", "told"), CHANGES_OF_LEFT_OUT.values(), ids=CHANGES_OF_LEFT_OUT)
def test_what_happens_to_left_out_entries_is_found_without_watches(
    root: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object], told: set[str]
) -> None:
    monkeypatch.setattr(far, "LOCAL_FILE_SYSTEMS", frozenset())
    (root / ".gitignore").write_text("build/\n.*\n!.cache/\n")
    (root / "src/build").mkdir()
    (root / "build").mkdir()
    (root / ".cache").write_text("a file")
    near = Near(root)
    near.look()
    assert near.look() == set()
    change(root)
    assert near.look() == told
    assert near.look() == set()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_where_such_a_process_dies_or_cannot_begin_its_folders_are_read(
    many: Near, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        os._exit(9)

    append(root)
    with monkeypatch.context() as patch:
        patch.setattr(snapshot.SnapshotWorker, "work", die)
        assert many.look() == {"src/deep"}

    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, "no more processes")

    append(root)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fork", refuse)
        assert many.look() == {"src/deep"}
    assert many.look() == set()


def test_a_time_out_of_any_range_is_compared_by_reading(many: Near, root: Path) -> None:
    near = many.following.snapshots.seen[b"docs"]
    near.add(b"odd", type("Odd", (), {"st_mtime_ns": 1 << 70, "st_size": 1, "st_mode": 1})())
    assert many.following.snapshots.changed([b"docs"], lambda folder: os.chdir(root / os.fsdecode(folder))) == [b"docs"]


def write_elsewhere(root: Path) -> None:
    """Through another name of the file, in a folder that is not watched."""
    with (root.parent / "other-name").open("a") as file:
        file.write("more")


@needs_inotify
def test_changes_without_an_event_are_found_in_time(near: Near, root: Path, reads: list[str]) -> None:
    os.link(root / "src/a.py", root.parent / "other-name")
    near.look()
    write_elsewhere(root)
    near.following.read_since -= far.WHOLE_S
    assert near.look() == {"src"}


@needs_inotify
def test_they_are_found_in_idle_moments_while_the_tree_is_in_use(
    near: Near, root: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    os.link(root / "src/a.py", root.parent / "other-name")
    near.look()
    write_elsewhere(root)
    now, following = time.monotonic(), near.following
    assert 0 < following.due_s(now) <= far.SWEEP_S
    assert following.due_s(now + far.SWEEP_S) == 0
    del reads[:]
    # One folder at a time.
    monkeypatch.setattr(far, "SLICE_S", 1e-9)
    slices = 0
    while slices == 0 or following.sweep:
        following.read_a_slice()
        slices += 1
    assert slices == len(reads) == 6
    assert following.due_s(time.monotonic()) > far.SWEEP_S - 10
    del reads[:]
    assert (near.look(), reads) == ({"src"}, [])
    assert following.due_s(now + far.SWEEP_S + far.IN_USE_S) > 0


@needs_inotify
@pytest.mark.parametrize(
    "change", [replace_folder, out_and_back, lambda root: (root / "src").rename(root / "docs/src")]
)
def test_idle_moments_may_come_before_the_events_are_read(
    near: Near, root: Path, change: Callable[[Path], object]
) -> None:
    change(root)
    near.following.read_a_slice()
    near.look()
    append_everywhere(root)
    near.look()


def append_everywhere(root: Path) -> None:
    for path in root.rglob("*.py"):
        with path.open("a") as file:
            file.write("more")


def test_another_top_folder_is_read_anew(near: Near, root: Path) -> None:
    inode = near.end["inode"]
    assert inode == root.stat().st_ino
    root.rename(root.parent / "old")
    root.mkdir()
    (root / "only").write_text("x")
    assert near.look() == {""}
    assert near.end["gone"] == ["docs", "out", "src"]
    assert near.end["inode"] == root.stat().st_ino != inode
    (root / "second").write_text("x")
    assert near.look() == {""}


def test_a_top_folder_that_goes_and_comes(near: Near, root: Path) -> None:
    shutil.rmtree(root)
    near.look()
    assert (near.end["kind"], near.end["number"], near.end["inode"]) == ("missing", 0, 0)
    (root / "again").mkdir(parents=True)
    assert near.look() == {"", "again"}
    assert near.end["whole"]
    shutil.rmtree(root)
    root.write_text("a file")
    near.look()
    assert near.end["kind"] == "file"


def test_a_top_folder_behind_a_link_may_change(root: Path, tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    (tmp_path / "link").symlink_to("root")
    near = Near(tmp_path / "link")
    near.look()
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("second")
    near.look()
    (tmp_path / "second/file").write_text("x")
    assert near.look() == {""}
    near.close()


def test_a_folder_that_cannot_be_read_is_tried_again(near: Near, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Survey.enter

    def enter(survey: Survey, folder: bytes) -> bytes:
        if folder == b"src/deep":
            raise PermissionError(errno.EACCES, "Permission denied")
        return usual(survey, folder)

    with monkeypatch.context() as patch:
        patch.setattr(Survey, "enter", enter)
        os.utime(root / "src/deep")
        near.look()
        assert near.end["gone"] == ["src/deep"]
        assert near.end["problems"] == [["src/deep", "Permission denied"]]
        assert near.look() == set()
    assert near.look() == {"src/deep", "src/deep/deeper"}
    assert near.end["problem_count"] == 0


def test_a_top_folder_that_cannot_be_read_fails(near: Near, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(survey: Survey, folder: bytes) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied")

    (root / "new").write_text("x")
    with monkeypatch.context() as patch:
        patch.setattr(Survey, "enter", refuse)
        with pytest.raises(PermissionError):
            near.look()
    near.look()
    assert near.end["whole"]


def test_rules_behind_a_link_are_read_at_every_look(near: Near, root: Path, tmp_path: Path) -> None:
    (tmp_path / "rules").write_text("*.o\n")
    (root / ".gitignore").unlink()
    (root / ".gitignore").symlink_to("../rules")
    near.look()
    (tmp_path / "rules").write_text("*.md\n")
    assert near.look() == {"docs", "out"}


# Numbers and bounds


def test_a_listing_that_is_not_remembered_is_told_whole(near: Near, root: Path) -> None:
    near.look()
    number = near.end["number"]
    for other in (0, number - 5, number + 100, -1):
        near.end["number"] = other
        assert len(near.look()) == 6
        assert near.end["whole"]


def test_a_lane_remembers_few_trees_and_lets_go_of_their_watches(tmp_path: Path) -> None:
    followed: dict[str, far.Following] = {}
    before = len(os.listdir("/proc/self/fd"))
    for number in range(far.MOST_FOLLOWED + 3):
        order: Any = {"path": str(tmp_path), "rules": [str(number)], "since": 0}
        far.follow(followed, order, lambda data: None)
    assert len(followed) == far.MOST_FOLLOWED
    for following in followed.values():
        following.rest()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_tree_of_too_many_folders_is_told_whole_every_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(far, "MOST_CACHED", 3)
    near = Near(root)
    for _ in range(2):
        assert len(near.look()) == 7
        assert (near.end["number"], near.end["whole"], near.followed) == (0, True, {})


def test_more_gone_folders_than_can_be_named_are_refused_once(
    near: Near, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(far, "MOST_GONE", 3)
    shutil.rmtree(root / "docs")
    with pytest.raises(Refusal) as refused:
        near.look()
    assert refused.value.reason == "again"
    near.look()
    assert near.end["whole"]


# Anything


class Chaos:
    """Changes a tree at random, also by way of a folder beside it."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.beside = root, root.parent / "beside"
        self.beside.mkdir()
        self.chance = random.Random(seed)

    def folder(self) -> Path:
        return self.chance.choice([self.root, *(path for path in self.root.rglob("*") if path.is_dir())])

    def entry(self) -> Path | None:
        found = sorted(self.root.rglob("*"))
        return self.chance.choice(found) if found else None

    def name(self) -> str:
        return self.chance.choice(["a", "b", "c.o", "d", ".gitignore", "é", ".remote-sandbox-sync-1-2-3-4"])

    def write(self) -> None:
        path = self.folder() / self.name()
        if not path.is_dir():
            path.write_text(self.chance.choice(["", "a\n", "*.o\n", "b/\n!c.o\n"]))

    def make(self) -> None:
        path = self.folder() / f"d{self.chance.randrange(4)}" / "x" / "y"
        path.mkdir(parents=True, exist_ok=True)
        (path / self.name()).write_text("x")

    def remove(self) -> None:
        path = self.entry()
        if path and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path:
            path.unlink()

    def move(self) -> None:
        path, to = self.entry(), self.folder() / self.name()
        if path and path not in to.parents and not to.exists() and not to.is_symlink() and to != path:
            path.rename(to)

    def leave_or_return(self) -> None:
        path, away = self.entry(), sorted(self.beside.iterdir())
        if away and self.chance.random() < 0.5:
            to = self.folder() / self.name()
            if not to.exists() and not to.is_symlink():
                away[0].rename(to)
        elif path:
            path.rename(self.beside / f"{len(away)}-{self.chance.random()}")

    def change_away(self) -> None:
        folders = [path for path in self.beside.rglob("*") if path.is_dir()]
        if folders:
            (self.chance.choice(folders) / "away").write_text("x")

    def change_mode(self) -> None:
        path = self.entry()
        if path and not path.is_symlink():
            path.chmod(self.chance.choice([0o755, 0o700, 0o711]))

    def link(self) -> None:
        path = self.folder() / self.name()
        if not path.exists() and not path.is_symlink():
            path.symlink_to(self.chance.choice([".", "..", "a", "/etc"]))

    def happen(self) -> None:
        often = [self.write, self.move, self.leave_or_return]
        rarely = [self.make, self.remove, self.change_away, self.change_mode, self.link]
        # Such as a folder that is to be moved into itself.
        with contextlib.suppress(OSError):
            self.chance.choice([*often, *often, *rarely])()


@pytest.mark.parametrize("seed", range(4))
def test_after_anything_that_happens_a_look_equals_a_scan(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "root").mkdir()
    if seed % 2:
        monkeypatch.setattr(far, "LOCAL_FILE_SYSTEMS", frozenset())
    near, chaos = Near(tmp_path / "root"), Chaos(tmp_path / "root", seed)
    for _ in range(80):
        near.look()
        for _ in range(chaos.chance.randrange(1, 5)):
            chaos.happen()
        if chaos.chance.random() < 0.1:
            near.following.read_a_slice()
    near.close()
