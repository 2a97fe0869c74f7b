"""The decision what a sync does, by tables: two trees and an order in, a plan out."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.values import is_empty, read_tree

from remote_sandbox_mcp.core.errors import BadArgument, FileProblem
from remote_sandbox_mcp.core.sync.plan import LARGE, UNKNOWN, Attributes, Item, Items, Plan, check_deletion, make_plan
from remote_sandbox_mcp.core.sync.transfer import Order, Place
from remote_sandbox_mcp.core.sync.tree import FOLDER, Tree

HERE, FAR = Place("", "/s"), Place("gpu1", "/t")
PUSH = Order(source=HERE, target=FAR)
PULL = Order(source=FAR, target=HERE)

Entries = Mapping[str, str]


def order(base: Order = PUSH, **fields: Any) -> Order:
    return Order(**{**vars(base), **fields})


def tree(entries: Entries | None = None, **fields: Any) -> Tree:
    """A tree from paths and metas. A path that ends in a slash is a folder; `a/!` is one that could not be read."""
    folders: dict[bytes, list[bytes]] = {b"": []}
    for path, meta in (entries or {}).items():
        above, _, name = path.rstrip("/!").rpartition("/")
        folders.setdefault(above.encode(), []).extend((name.encode(), meta.encode()))
        if path.endswith("/"):
            folders[path.rstrip("/").encode()] = []
    counts = {folder: sum(not meta.startswith(b"d") for meta in found[1::2]) for folder, found in folders.items()}
    blocks = {folder: b"\0".join(found) for folder, found in folders.items()}
    usual: dict[str, Any] = {"kind": "dir", "path": "/t", "real": "/t", "home": "/home/me"}
    return Tree(**{**usual, "folders": blocks, "counts": counts, **fields})


def sent(plan: Plan) -> list[tuple[str, str]]:
    return [(item.path.decode(), item.why) for item in plan.send]


F, F_NEW, F_TOUCHED, F_MODE = "f644 3 5000000000", "f644 4 6000000000", "f644 3 6000000000", "f755 3 5000000000"
D, D_NEW, D_MODE = "d755 0 5000000000", "d755 0 6000000000", "d700 0 5000000000"
L, L_NEW = "l777 0 0 here", "l777 0 0 there"

# Both trees, and why which entry is sent.
SENT: dict[str, tuple[Entries, Entries, list[tuple[str, str]]]] = {
    "nothing": ({}, {}, []),
    "the same": ({"a": F, "d/": D, "d/b": F, "l": L}, {"a": F, "d/": D, "d/b": F, "l": L}, []),
    "new": ({"a": F}, {}, [("a", "new")]),
    "new link": ({"a": L}, {}, [("a", "new")]),
    "new in a folder": ({"d/": D, "d/a": F}, {"d/": D}, [("d/a", "new")]),
    "new in a new folder": ({"d/": D, "d/a": F}, {}, [("d/a", "new")]),
    "new large": ({"a": f"f644 {LARGE + 1} 5"}, {}, [("a", "new")]),
    "another size": ({"a": F_NEW}, {"a": F}, [("a", "size")]),
    "another size, older": ({"a": F}, {"a": F_NEW}, [("a", "size")]),
    "another time": ({"a": F_TOUCHED}, {"a": F}, [("a", "time")]),
    "another time, older": ({"a": F}, {"a": F_TOUCHED}, [("a", "time")]),
    "a nanosecond": ({"a": "f644 3 5000000001"}, {"a": F}, [("a", "time")]),
    "another target": ({"a": L_NEW}, {"a": L}, [("a", "link")]),
    "a link for a file": ({"a": L}, {"a": F}, [("a", "kind")]),
    "a file for a link": ({"a": F}, {"a": L}, [("a", "kind")]),
    "only one of many": ({"a": F, "b": F_NEW, "c": F}, {"a": F, "b": F, "c": F}, [("b", "size")]),
    "extras are not looked at": ({"a": F}, {"a": F, "b": F, "d/": D, "d/c": F}, []),
}


@pytest.mark.parametrize(("source", "target", "items"), SENT.values(), ids=SENT)
@pytest.mark.parametrize("deletes", [False, True], ids=["keep extras", "delete extras"])
def test_new_and_changed_entries_are_sent(
    source: Entries, target: Entries, items: list[tuple[str, str]], deletes: bool
) -> None:
    plan = make_plan(tree(source), tree(target), order(delete_extras=deletes))
    assert sent(plan) == items
    assert plan.skipped == sum(not meta.startswith("d") for meta in source.values()) - len(items)
    assert (plan.clear, plan.touch, plan.doubtful, plan.problems) == ([], [], [], [])


def test_an_item_has_its_path_size_and_reason() -> None:
    plan = make_plan(tree({"d/": D, "d/a": F}), tree(), PUSH)
    (first,) = plan.send
    assert first == Item(b"d", b"a", F.encode(), 3, "new")
    assert (first.path, first.meta.mtime, plan.bytes) == (b"d/a", 5000000000, 3)


def test_many_files_to_send_take_little_more_memory_than_the_scan() -> None:
    count = 10_000
    source = tree({f"{number:05}": F for number in range(count)})
    tracemalloc.start()
    try:
        plan = make_plan(source, tree(), PUSH)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert (len(plan.send), plan.bytes) == (count, 3 * count)
    assert held < 2 * len(source.folders[b""])


def test_packed_items_are_the_same_in_the_same_order() -> None:
    items = [
        Item(b"", b"a", F.encode(), 3, "new"),
        Item(b"", b"b", L.encode(), 0, "link"),
        Item(b"d", b"c", F.encode(), 3, "link"),
        Item(b"", b"d", F.encode(), 3, "new"),
    ]
    assert list(Items(items)) == items


TOUCHED: dict[str, tuple[str, str, list[Attributes]]] = {
    "a mode alone": (F_MODE, F, [Attributes(b"a", 0o755, 5000000000)]),
    "a setuid bit": ("f4755 3 5000000000", F_MODE, [Attributes(b"a", 0o4755, 5000000000)]),
    "a link's mode does not count": ("l755 0 0 here", L, []),
    "a link's time does not count": ("l777 0 9 here", L, []),
    "the same": (F, F, []),
}


@pytest.mark.parametrize(("source", "target", "touch"), TOUCHED.values(), ids=TOUCHED)
def test_entries_that_differ_only_in_mode_or_time_are_touched(
    source: str, target: str, touch: list[Attributes]
) -> None:
    plan = make_plan(tree({"a": source}), tree({"a": target}), PUSH)
    assert (plan.touch, list(plan.send), plan.skipped, is_empty(plan)) == (touch, [], 1, not touch)


# Both trees; what is cleared without delete_extras, and with it. None: it stays, and that is told.
EXCHANGED: dict[str, tuple[Entries, Entries, list[str] | None, list[str]]] = {
    "a folder for a file": ({"a/": D, "a/x": F}, {"a": F}, ["a"], ["a"]),
    "a folder for a link": ({"a/": D, "a/x": F}, {"a": L}, ["a"], ["a"]),
    "a file for an empty folder": ({"a": F}, {"a/": D}, ["a"], ["a"]),
    "a link for an empty folder": ({"a": L}, {"a/": D}, ["a"], ["a"]),
    "a file for a full folder": ({"a": F}, {"a/": D, "a/x": F}, None, ["a/x", "a"]),
    "a link for a full folder": ({"a": L}, {"a/": D, "a/x": L}, None, ["a/x", "a"]),
    "a file for deep folders": (
        {"a": F},
        {"a/": D, "a/b/": D, "a/b/c/": D, "a/b/c/x": F, "a/y": F, "a/z/": D},
        None,
        ["a/y", "a/b/c/x", "a/b/c", "a/z", "a/b", "a"],
    ),
}


@pytest.mark.parametrize(("source", "target", "careful", "cleared"), EXCHANGED.values(), ids=EXCHANGED)
@pytest.mark.parametrize("deletes", [False, True], ids=["keep extras", "delete extras"])
def test_an_entry_of_another_kind_is_cleared_before_it_is_replaced(
    source: Entries, target: Entries, careful: list[str] | None, cleared: list[str], deletes: bool
) -> None:
    plan = make_plan(tree(source), tree(target), order(delete_extras=deletes))
    expected = cleared if deletes else careful
    if expected is None:
        assert (plan.clear, list(plan.send), is_empty(plan)) == ([], [], True)
        assert [problem.path for problem in plan.problems] == ["a"]
        assert "delete_extras=true" in plan.problems[0].reason
        return
    paths = [path.decode() for path in plan.clear]
    assert sorted(paths) == sorted(expected)
    # What is in a folder goes before it.
    assert all(paths.index(path) < paths.index(path.rpartition("/")[0]) for path in paths if "/" in path)
    assert {path for path, _ in sent(plan)} == {path for path in source if not path.endswith("/")}
    assert plan.new_folders == sum(path.endswith("/") for path in source)
    assert (plan.delete_files, plan.delete_folders, plan.problems) == ([], [], [])


def test_excluded_entries_are_not_cleared_with_their_folder() -> None:
    target = tree({"a/": D, "a/keep.o": F, "a/b/": D, "a/b/x.o": F, "a/b/x": F})
    ignored = tree({"a": F}, gitignores=((b"", b"*.o"),))
    plan = make_plan(ignored, target, order(delete_extras=True))
    assert plan.clear == [b"a/b/x", b"a/b", b"a"]


# Both trees, and the folders that get their mode and time in the end, in this order.
FINISHED: dict[str, tuple[Entries, Entries, list[str], int]] = {
    "the same": ({"d/": D, "d/a": F}, {"d/": D, "d/a": F}, [], 0),
    "another mode": ({"d/": D_MODE}, {"d/": D}, ["d"], 0),
    "another time": ({"d/": D_NEW}, {"d/": D}, ["d"], 0),
    "new and empty": ({"d/": D}, {}, ["d"], 1),
    "new and full": ({"d/": D, "d/a": F}, {}, ["d"], 1),
    "new and deep": ({"d/": D, "d/e/": D, "d/e/f/": D, "b/": D}, {}, ["d/e/f", "d/e", "b", "d"], 4),
    "something is put into it": ({"d/": D, "d/a": F_NEW}, {"d/": D, "d/a": F}, ["d"], 0),
    "something is put in deeper": (
        {"d/": D, "d/e/": D, "d/e/a": F},
        {"d/": D, "d/e/": D},
        ["d/e"],
        0,
    ),
    "a folder is made in it": ({"d/": D, "d/e/": D}, {"d/": D}, ["d/e", "d"], 1),
    "a link is put into it": ({"d/": D, "d/a": L_NEW}, {"d/": D, "d/a": L}, ["d"], 0),
    "something is only touched": ({"d/": D, "d/a": F_MODE}, {"d/": D, "d/a": F}, [], 0),
    "something is cleared": ({"d/": D, "d/a/": D}, {"d/": D, "d/a": F}, ["d/a", "d"], 1),
}


@pytest.mark.parametrize(("source", "target", "finished", "made"), FINISHED.values(), ids=FINISHED)
def test_folders_are_finished_from_the_deepest_up(
    source: Entries, target: Entries, finished: list[str], made: int
) -> None:
    plan = make_plan(tree(source), tree(target), PUSH)
    assert [item.path.decode() for item in plan.finish] == finished
    assert plan.new_folders == made
    assert is_empty(plan) is not bool(plan.finish or plan.touch)
    for item in plan.finish:
        mode, _, mtime = source[f"{item.path.decode()}/"].split(" ")
        assert (item.mode, item.mtime) == (int(mode[1:], 8), int(mtime))


def test_a_folder_gets_its_time_back_after_a_deletion() -> None:
    source, target = tree({"d/": D}), tree({"d/": D, "d/a": F})
    assert make_plan(source, target, PUSH).finish == []
    assert make_plan(source, target, order(delete_extras=True)).finish == [Attributes(b"d", 0o755, 5000000000)]


# Both trees, what the order and the source leave out; deleted files, and deleted folders in this order.
DELETED: dict[str, tuple[Entries, Entries, dict[str, Any], list[str], list[str]]] = {
    "a file": ({"a": F}, {"a": F, "b": F}, {}, ["b"], []),
    "a link": ({"a": F}, {"a": F, "b": L}, {}, ["b"], []),
    "an empty folder": ({"a": F}, {"a": F, "d/": D}, {}, [], ["d"]),
    "nested folders": (
        {"a": F},
        {"a": F, "d/": D, "d/x": F, "d/e/": D, "d/e/y": L, "d/e/f/": D},
        {},
        ["d/e/y", "d/x"],
        ["d/e/f", "d/e", "d"],
    ),
    "in a folder that stays": ({"d/": D, "d/a": F}, {"d/": D, "d/a": F, "d/b": F}, {}, ["d/b"], []),
    "everything in a folder that is empty now": ({"d/": D}, {"d/": D, "d/a": F}, {}, ["d/a"], []),
    "nothing that a rule leaves out": ({"a": F}, {"a": F, "b.o": F}, {"excludes": ("*.o",)}, [], []),
    "nothing that a rule leaves out usually": ({"a": F}, {"a": F, ".venv/": D, ".venv/x": F}, {}, [], []),
    "what a rule does not leave out any more": (
        {"a": F},
        {"a": F, ".venv/": D, ".venv/x": F},
        {"default_excludes": False},
        [".venv/x"],
        [".venv"],
    ),
    "nothing that a rule leaves out below": (
        {"a": F},
        {"a": F, "d/": D, "d/b.o": F, "d/c": F},
        {"excludes": ("*.o",)},
        ["d/c"],
        ["d"],
    ),
    "nothing that the source's gitignore leaves out": (
        {"a": F},
        {"a": F, "b.o": F, "out/": D, "out/x": F, "c": F},
        {"gitignores": ((b"", b"*.o\nout/"),)},
        ["c"],
        [],
    ),
    "a deeper gitignore counts below it": (
        {"d/": D, "d/a": F},
        {"d/": D, "d/a": F, "d/b.o": F, "b.o": F},
        {"gitignores": ((b"d", b"*.o"),)},
        ["b.o"],
        [],
    ),
    "nothing below a folder that could not be read": (
        {"a": F, "d/!": D},
        {"a": F, "d/": D, "d/x": F, "d/e/": D, "d/e/y": F, "b": F},
        {},
        ["b"],
        [],
    ),
}


@pytest.mark.parametrize(("source", "target", "fields", "files", "folders"), DELETED.values(), ids=DELETED)
def test_which_extras_are_deleted(
    source: Entries, target: Entries, fields: dict[str, Any], files: list[str], folders: list[str]
) -> None:
    ours = tree(source, gitignores=fields.get("gitignores", ()))
    rules = {name: value for name, value in fields.items() if name != "gitignores"}
    plan = make_plan(ours, tree(target), order(delete_extras=True, **rules))
    assert sorted(path.decode() for path in plan.delete_files) == files
    assert [path.decode() for path in plan.delete_folders] == folders
    assert (list(plan.send), plan.clear, plan.problems) == ([], [], [])
    kept = make_plan(ours, tree(target), order(**rules))
    assert (kept.delete_files, kept.delete_folders, is_empty(kept)) == ([], [], True)


def test_nothing_is_deleted_where_the_source_could_not_be_read() -> None:
    target = tree({"a": F, "b": F, "d/": D, "d/x": F})
    plan = make_plan(tree({"a": F_NEW}, unread=1, path="/s"), target, order(delete_extras=True))
    assert (plan.delete_files, plan.delete_folders) == ([], [])
    assert sent(plan) == [("a", "size")]
    assert [(problem.path, "nothing was deleted" in problem.reason) for problem in plan.problems] == [("/s", True)]
    assert make_plan(tree({"a": F}, unread=1), target, PUSH).problems == []
    # Neither is a folder that is in the way.
    plan = make_plan(tree({"d": F}, unread=1), tree({"d/": D, "d/x": F}), order(delete_extras=True))
    assert (plan.clear, list(plan.send), len(plan.problems)) == ([], [], 2)


# Metas on both sides; whether it is in doubt (and else has to change), is sent, or neither.
CHECKED: dict[str, tuple[str, str | None, list[bool], list[str]]] = {
    "the same": (F, F, [False], []),
    "another time": (F_TOUCHED, F, [True], []),
    "another mode": (F_MODE, F, [True], []),
    "another size": (F_NEW, F, [], ["size"]),
    "new": (F, None, [], ["new"]),
    "link": (L, L, [], []),
    "another link": (L_NEW, L, [], ["link"]),
    "a file for a link": (F, L, [], ["kind"]),
}


@pytest.mark.parametrize(("source", "target", "doubts", "why"), CHECKED.values(), ids=CHECKED)
def test_with_checksum_files_of_equal_size_are_compared_by_content(
    source: str, target: str | None, doubts: list[bool], why: list[str]
) -> None:
    theirs = {"a": target} if target else {}
    plan = make_plan(tree({"a": source}), tree(theirs), order(checksum=True))
    assert [changed for _, changed in plan.doubtful] == doubts
    assert all(item == Item(b"", b"a", source.encode(), 3, "content") for item, _ in plan.doubtful)
    assert [item.why for item in plan.send] == why
    assert (plan.touch, plan.skipped) == ([], int(not doubts and not why))


COARSE: dict[str, tuple[str, str, bool]] = {
    "the same second": ("f644 3 5999999999", "f644 3 5000000000", False),
    "the next second": ("f644 3 6000000000", "f644 3 5999999999", True),
    "the same second before 1970": ("f644 3 -1", "f644 3 -1000000000", False),
    "another size": ("f644 4 5000000000", "f644 3 5000000000", True),
}


@pytest.mark.parametrize(("source", "target", "differs"), COARSE.values(), ids=COARSE)
@pytest.mark.parametrize("coarse", ["source", "target"])
def test_times_in_whole_seconds_are_compared_as_such(source: str, target: str, differs: bool, coarse: str) -> None:
    ours = tree({"a": source}, coarse=coarse == "source")
    theirs = tree({"a": target}, coarse=coarse == "target")
    assert bool(make_plan(ours, theirs, PUSH).send) is differs
    assert make_plan(tree({"a": source}), tree({"a": target}), PUSH).send


def test_times_of_folders_in_whole_seconds_are_compared_as_such() -> None:
    ours, theirs = tree({"d/": "d755 0 5999999999"}, coarse=True), tree({"d/": "d755 0 5000000000"})
    assert make_plan(ours, theirs, PUSH).finish == []


def test_equal_folders_are_not_parsed() -> None:
    # Two folders that say the same are equal, whatever it is that they say.
    both = [Tree("dir", "/t", "/t", "/", folders={b"": b"nonsense"}, counts={b"": 7}) for _ in range(2)]
    plan = make_plan(both[0], both[1], PUSH)
    assert (plan.skipped, is_empty(plan)) == (7, True)
    with pytest.raises(FileProblem):
        make_plan(both[0], both[1], order(checksum=True))


def test_a_single_file_is_sent_even_if_rules_exclude_it() -> None:
    for asked in (PUSH, PULL):
        assert sent(make_plan(tree({".git": F}, kind="file"), tree(kind="missing"), asked)) == [(".git", "new")]


def test_very_deep_trees_are_planned() -> None:
    deep: dict[bytes, bytes] = {}
    path = b""
    for _ in range(5000):
        deep[path] = b"a\0d755 0 0"
        path = path + b"/a" if path else b"a"
    deep[path] = b"x\0f644 0 0"
    ours = tree({"b": F})
    plan = make_plan(ours, tree(folders=deep), order(delete_extras=True))
    assert (len(plan.delete_files), len(plan.delete_folders)) == (1, 5000)
    assert plan.delete_folders[-1] == b"a"
    plan = make_plan(tree({"a": F}), tree(folders=deep), order(delete_extras=True))
    assert (len(plan.clear), plan.clear[-1]) == (5001, b"a")


# What another machine names although it was told to leave it out.
SMUGGLED: dict[str, dict[str, Any]] = {
    "a start-up file": {"entries": {".bashrc": F}},
    "over an old one": {"entries": {".profile": F_NEW}},
    "a link": {"entries": {".ssh": L}},
    "a folder": {"entries": {".ssh/": D, ".ssh/authorized_keys": F}},
    "a folder that is not listed": {"folders": {b"": b"", b".ssh": b"authorized_keys\0f644 3 5"}, "counts": {}},
    "a deep one": {"folders": {b"": b"", b".config/a/b": b"x\0f644 3 5"}, "counts": {}},
    "with a gitignore that takes it back": {"entries": {".bashrc": F}, "gitignores": ((b"", b"!.bashrc"),)},
    "what is left out usually": {"entries": {"p/": D, "p/.git/": D, "p/.git/config": F}},
}


@pytest.mark.parametrize("fields", SMUGGLED.values(), ids=SMUGGLED)
@pytest.mark.parametrize("checksum", [False, True], ids=["by time", "by content"])
def test_excluded_entries_that_the_source_lists_are_not_taken(fields: dict[str, Any], checksum: bool) -> None:
    asked = order(PULL, excludes=("/.*",), delete_extras=True, checksum=checksum)
    target = tree({".profile": F, ".ssh/": D, "p/": D})
    plan = make_plan(tree(**fields), target, asked)
    assert (list(plan.send), plan.clear, plan.touch, plan.doubtful, plan.delete_files) == ([], [], [], [], [])
    assert all(item.path == b"p" for item in plan.finish)
    assert plan.new_folders == 0


# Listings that cannot be true, as a folder's names and metas.
HOSTILE: dict[str, tuple[bytes, ...]] = {
    "a name above": (b"..", b"f644 0 0"),
    "a path": (b"a/../../b", b"f644 0 0"),
    "an absolute path": (b"/etc/passwd", b"f644 0 0"),
    "no name": (b"", b"f644 0 0"),
    "an odd number": (b"a", b"f644 0 0", b"b"),
    "a name alone": (b"a",),
    "no meta": (b"a", b""),
    "a kind alone": (b"a", b"f"),
    "unknown kind": (b"a", b"x644 0 0"),
    "no kind": (b"a", b"0 0 0"),
    "a folder without more": (b"a", b"d"),
    "negative size": (b"a", b"f644 -1 0"),
    "size too large": (b"a", b"f644 %d 0" % (1 << 63)),
    "large, with a mode that is none": (b"a", b"f99 %d 0" % (LARGE + 1)),
    "large, with a time that is none": (b"a", b"f644 %d x" % (LARGE + 1)),
    "a folder with a mode that is none": (b"a", b"d10000 0 0"),
    "a folder with a time that is none": (b"a", b"d755 0 %d" % (1 << 63)),
}


@pytest.mark.parametrize("fields", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("checksum", [False, True], ids=["by time", "by content"])
def test_an_impossible_source_tree_is_refused(fields: tuple[bytes, ...], checksum: bool) -> None:
    bad = tree(folders={b"": b"\0".join(fields)}, counts={b"": 1})
    for target in (tree(), tree({"a": F, "b": F}), tree({"a/": D, "a/x": F})):
        with pytest.raises(FileProblem):
            make_plan(bad, target, order(PULL, delete_extras=True, checksum=checksum))


@pytest.mark.parametrize("fields", HOSTILE.values(), ids=HOSTILE)
def test_an_impossible_target_tree_is_refused(fields: tuple[bytes, ...]) -> None:
    bad = tree(folders={b"": b"\0".join(fields)}, counts={b"": 1})
    for source in (tree({"a": F}), tree({"b": F}), tree({"a/": D, "a/x": F})):
        with pytest.raises(FileProblem):
            make_plan(source, bad, order(delete_extras=True))


NAMES = st.sampled_from([b"a", b"b", b"c", b".git", b"x.o", b"\xff\n"])
ODD_NAMES = NAMES | st.sampled_from([b"", b".", b"..", b"a/b", b"/"])
TIMES = st.integers(0, 3)
METAS = st.builds(
    lambda kind, mode, size, time: b"%s%o %d %d" % (kind, mode, size, time),
    st.sampled_from([b"f", b"d"]),
    st.sampled_from([0o644, 0o755]),
    TIMES,
    TIMES,
)
LINKS = st.sampled_from([b"l777 0 0 x", b"l777 0 0 y"])
ODD_METAS = (
    METAS | LINKS | st.binary(max_size=8) | st.sampled_from([b"", b"f644", b"d755 0", b"f-1 -1 -1", b"l777 0 0"])
)


def record(folder: bytes, fields: list[bytes], count: int) -> bytes:
    block = b"\0".join(fields)
    return b"=" + FOLDER.pack(len(folder), len(block), count) + folder + block


PATHS = st.lists(ODD_NAMES, max_size=3).map(b"/".join)
FIELDS = st.lists(st.tuples(ODD_NAMES, ODD_METAS), max_size=4).map(
    lambda pairs: [field for pair in pairs for field in pair]
)
RECORDS = st.builds(record, PATHS, FIELDS | st.lists(st.binary(max_size=5), max_size=4), TIMES)
GITIGNORES = st.lists(st.tuples(st.text("a/b.", max_size=3), st.text("a*![]\\/.o\n", max_size=8)), max_size=2)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(RECORDS | st.binary(max_size=30), max_size=5),
    st.lists(RECORDS | st.binary(max_size=30), max_size=5),
    GITIGNORES,
    st.booleans(),
    st.booleans(),
    st.sampled_from([PUSH, PULL]),
)
def test_any_two_trees_give_a_plan_or_a_problem(
    ours: list[bytes],
    theirs: list[bytes],
    gitignores: list[tuple[str, str]],
    checksum: bool,
    deletes: bool,
    base: Order,
) -> None:
    end = {"kind": "dir", "path": "/t", "real": "/t", "home": "/h"}
    try:
        source, target = read_tree({**end, "gitignores": gitignores}, ours), read_tree(end, theirs)
        plan = make_plan(source, target, order(base, checksum=checksum, delete_extras=deletes))
    except FileProblem:
        return
    paths = [*(item.path for item in plan.send), *plan.clear, *plan.delete_files, *plan.delete_folders]
    for path in (*paths, *(item.path for item in (*plan.touch, *plan.finish))):
        assert all(name not in (b"", b".", b"..") for name in path.split(b"/"))


# A tree as it may be: paths, each below a folder, and what they are.
@st.composite
def trees(draw: st.DrawFn) -> dict[str, str]:
    found: dict[str, str] = {}
    folders = [""]
    for _ in range(draw(st.integers(0, 8))):
        folder = draw(st.sampled_from(folders))
        path = folder + draw(st.sampled_from("abc"))
        if path in found or f"{path}/" in found:
            continue
        meta = draw(METAS | LINKS).decode()
        if meta.startswith("d"):
            path += "/"
            meta = f"{meta.split(' ')[0]} 0 {meta.split(' ')[2]}"
            folders.append(path)
        found[path] = meta
    return found


def carried_out(plan: Plan, source: Entries, target: Entries) -> dict[str, str]:
    """What a target has when a plan was done; folders do not go before what is in them."""
    result = dict(target)

    def remove(path: str) -> None:
        assert not [inner for inner in result if inner.startswith(f"{path}/") and inner != f"{path}/"]
        assert result.pop(path, None) or result.pop(f"{path}/", None)

    for path in plan.clear:
        remove(path.decode())
    for item in plan.send:
        result[item.path.decode()] = item.text.decode()
    for touched in plan.touch:
        result[touched.path.decode()] = source[touched.path.decode()]
    for path in (*plan.delete_files, *plan.delete_folders):
        remove(path.decode())
    for finished in plan.finish:
        result[f"{finished.path.decode()}/"] = source[f"{finished.path.decode()}/"]
    return result


@settings(max_examples=120)
@given(trees(), trees())
def test_a_plan_that_was_carried_out_makes_both_trees_equal(source: dict[str, str], target: dict[str, str]) -> None:
    asked = order(delete_extras=True)
    plan = make_plan(tree(source), tree(target), asked)
    assert carried_out(plan, source, target) == source
    again = make_plan(tree(source), tree(source), asked)
    assert (is_empty(again), again.skipped) == (True, sum(not meta.startswith("d") for meta in source.values()))


@settings(max_examples=120)
@given(trees(), trees())
def test_without_delete_extras_only_replaced_entries_are_lost(source: dict[str, str], target: dict[str, str]) -> None:
    plan = make_plan(tree(source), tree(target), PUSH)
    assert (plan.delete_files, plan.delete_folders) == ([], [])
    replaced = {path.rstrip("/") for path in source}
    assert all(path.decode() in replaced for path in plan.clear)


# What comes from another machine

BETWEEN = Order(source=Place("gpu1", "/s"), target=Place("gpu2", "/t"))
WITHIN = Order(source=Place("gpu1", "/s"), target=Place("gpu1", "/t"))
SET_BITS = {"a": "f4755 3 5000000000", "d/": "d3777 0 5000000000", "d/b": "f6755 3 5000000000"}


@pytest.mark.parametrize(
    ("base", "modes", "folder"),
    [
        (PULL, ["f755", "f755"], 0o777),
        (BETWEEN, ["f755", "f755"], 0o777),
        (PUSH, ["f4755", "f6755"], 0o3777),
        (WITHIN, ["f4755", "f6755"], 0o3777),
    ],
    ids=["pull", "between machines", "push", "within a machine"],
)
def test_special_bits_are_not_taken_from_another_machine(base: Order, modes: list[str], folder: int) -> None:
    plan = make_plan(tree(SET_BITS), tree(), base)
    assert [item.text.split()[0].decode() for item in plan.send] == modes
    assert [item.mode for item in plan.finish] == [folder]


def test_local_special_bits_stay_if_nothing_else_changes() -> None:
    ours = tree({**SET_BITS, "other": F})
    assert make_plan(tree({**SET_BITS, "other": F_MODE}), ours, PULL).touch == [Attributes(b"other", 0o755, 5000000000)]
    # With new content a program does not run as another user.
    newer = {**SET_BITS, "a": "f4755 3 6000000000"}
    assert [item.text for item in make_plan(tree(newer), tree(SET_BITS), PULL).send] == [b"f755 3 6000000000"]


LINKS_OUT = ["/etc/passwd", "/", "..", "../x", "a/../../x", "../d/../../x", "x/..", "../../x"]
LINKS_IN = ["x", "./x", "d2/x", ".", "no/where", "..x", "a..b/c"]


@pytest.mark.parametrize("target", LINKS_OUT)
def test_a_pull_reports_and_skips_links_that_lead_out_of_the_tree(target: str) -> None:
    source = {"evil": f"l777 0 0 {target}", "fine": F}
    plan = make_plan(tree(source), tree({"evil": F}), order(PULL, delete_extras=True))
    assert [item.name for item in plan.send] == [b"fine"]
    assert [(problem.path, "leads out" in problem.reason) for problem in plan.problems] == [("evil", True)]
    assert (plan.delete_files, plan.clear) == ([], [])
    for base in (PUSH, BETWEEN, WITHIN):
        assert [item.name for item in make_plan(tree(source), tree(), base).send] == [b"evil", b"fine"]


@pytest.mark.parametrize("target", LINKS_IN)
def test_a_pull_keeps_links_within_the_tree(target: str) -> None:
    plan = make_plan(tree({"d/": D, "d/link": f"l777 0 0 {target}", "d/up": "l777 0 0 ../x"}), tree(), PULL)
    assert ([item.name for item in plan.send], plan.problems) == ([b"link", b"up"], [])


# What the target had


def test_a_plan_records_what_was_found_in_each_place_that_it_changes() -> None:
    source = {"changed": F_TOUCHED, "mode": F_MODE, "new": F, "kind/": D, "folder": F, "same": F}
    target = {"changed": F, "mode": F, "kind": F, "folder/": D, "folder/x": F_TOUCHED, "extra": F_NEW, "same": F}
    plan = make_plan(tree(source), tree(target), order(delete_extras=True))
    assert {path: plan.found_at(path).decode() for path in (b"changed", b"mode", b"kind", b"folder/x", b"extra")} == {
        b"changed": F, b"mode": F, b"kind": F, b"folder/x": F_TOUCHED, b"extra": F_NEW,
    }  # fmt: skip
    assert plan.found_at(b"new") == plan.found_at(b"folder") == b""
    assert make_plan(tree(source), tree(target, unread=1), PUSH).found_at(b"new") == UNKNOWN


# The end that is to be like the source, where its home is, and whether the source is empty.
REFUSED: dict[str, tuple[str, str, bool, str]] = {
    "the root": ("/", "/home/me", False, "root of the file system"),
    "the home folder": ("/home/me", "/home/me", False, "home folder"),
    "a folder around it": ("/home", "/home/me", False, "home folder"),
    "a home at the root": ("/", "/", False, "root of the file system"),
    "an empty source": ("/data", "/home/me", True, "is empty"),
    "keys": ("/home/me/.ssh", "/home/me", False, "hidden folder"),
    "settings, however deep": ("/home/me/.config/nvim/lua", "/home/me", False, "hidden folder"),
    "keys of a home that is elsewhere": ("/data/homes/me/.ssh", "/data/homes/me", False, "hidden folder"),
    "another's keys": ("/home/you/.ssh", "/home/me", False, "hidden folder"),
    "the administrator's keys": ("/root/.ssh", "/home/me", False, "hidden folder"),
    "another's home": ("/home/you", "/home/me", False, "a home folder"),
    "all homes, with one's own elsewhere": ("/home", "/data/me", False, "the whole machine uses"),
    "the administrator's home": ("/root", "/home/me", False, "the whole machine uses"),
    "what programs keep": ("/var/lib", "/home/me", False, "the whole machine uses"),
    "the machine's settings": ("/etc", "/root", False, "operating system"),
    "some of the machine's settings": ("/etc/nginx/sites", "/root", False, "operating system"),
    "programs": ("/usr/local/bin", "/root", False, "operating system"),
}


@pytest.mark.parametrize(("real", "home", "empty", "words"), REFUSED.values(), ids=REFUSED)
def test_dangerous_deletions_need_a_confirmation(real: str, home: str, empty: bool, words: str) -> None:
    source, target = tree({} if empty else {"a": F}), tree({"b": F}, real=real, home=home)
    with pytest.raises(BadArgument, match=words) as raised:
        check_deletion(order(delete_extras=True), source, target)
    assert "confirm_delete=true" in str(raised.value)
    check_deletion(order(delete_extras=True, confirmed=True), source, target)
    check_deletion(PUSH, source, target)


DELETABLE: dict[str, tuple[Tree, Tree]] = {
    "a folder in the home folder": (tree({"a": F}), tree({"b": F}, real="/home/me/x")),
    "a name that only begins like it": (tree({"a": F}), tree({"b": F}, real="/data/m", home="/data/me")),
    "a folder of its own at the top": (tree({"a": F}), tree({"b": F}, real="/workspace")),
    "a website": (tree({"a": F}), tree({"b": F}, real="/var/www/site")),
    "a hidden folder of a project": (tree({"a": F}), tree({"b": F}, real="/home/me/project/.cache")),
    "another's project": (tree({"a": F}), tree({"b": F}, real="/home/you/project")),
    "an empty source and an empty target": (tree(), tree()),
    "an empty source and no target": (tree(), tree(kind="missing", folders={})),
    "a file": (tree(kind="file", folders={}), tree({"b": F})),
}


@pytest.mark.parametrize(("source", "target"), DELETABLE.values(), ids=DELETABLE)
def test_other_deletions_need_no_confirmation(source: Tree, target: Tree) -> None:
    check_deletion(order(delete_extras=True), source, target)
