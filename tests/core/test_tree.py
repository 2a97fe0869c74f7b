"""What a scan said, read as a tree; what cannot be true is refused, whoever said it."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.values import read_tree

from remote_sandbox_mcp.core.errors import FileProblem
from remote_sandbox_mcp.core.sandboxes.files import Problem
from remote_sandbox_mcp.core.sync.tree import FOLDER, MOST, Meta, Tree, child, is_name, read_meta, size_of

END: dict[str, Any] = {"kind": "dir", "path": "/t", "real": "/t", "home": "/home/me"}


def record(folder: bytes, *fields: bytes, count: int = 0) -> bytes:
    """A folder with its names and metas, as a scan tells it."""
    block = b"\0".join(fields)
    return FOLDER.pack(len(folder), len(block), count) + folder + block


METAS: dict[str, tuple[bytes, Meta]] = {
    "file": (b"f644 12 1700000000123456789", Meta("f", 0o644, 12, 1700000000123456789)),
    "setuid": (b"f4755 0 0", Meta("f", 0o4755, 0, 0)),
    "before 1970": (b"f600 1 -5", Meta("f", 0o600, 1, -5)),
    "folder": (b"d1777 0 7", Meta("d", 0o1777, 0, 7)),
    "link": (b"l777 0 0 a/b", Meta("l", 0o777, 0, 0, b"a/b")),
    "link with spaces": (b"l777 0 0  a  b ", Meta("l", 0o777, 0, 0, b" a  b ")),
    "link that is not text": (b"l777 0 0 \xff\n", Meta("l", 0o777, 0, 0, b"\xff\n")),
    "the largest": (b"f0 %d %d" % (MOST, MOST), Meta("f", 0, MOST, MOST)),
    "a file's rest is nothing": (b"f644 1 2 3", Meta("f", 0o644, 1, 2)),
}


@pytest.mark.parametrize(("text", "meta"), METAS.values(), ids=METAS)
def test_a_meta_is_parsed(text: bytes, meta: Meta) -> None:
    assert read_meta(text) == meta
    assert size_of(text) == meta.size


BAD_METAS: dict[str, bytes] = {
    "nothing": b"",
    "spaces": b"   ",
    "a kind alone": b"f",
    "no size": b"f644",
    "no time": b"f644 1",
    "no kind": b"644 1 2",
    "no mode": b"f 1 2",
    "unknown kind": b"x644 1 2",
    "a kind of two letters": b"fd644 1 2",
    "not ASCII": b"\xff644 1 2",
    "mode not octal": b"f689 1 2",
    "negative mode": b"f-1 1 2",
    "mode of more than permissions": b"f10000 1 2",
    "negative size": b"f644 -1 2",
    "size too large": b"f644 %d 2" % (1 << 63),
    "size no number": b"f644 many 2",
    "time no number": b"f644 1 now",
    "time too large": b"f644 1 %d" % (1 << 63),
    "time too small": b"f644 1 %d" % -(1 << 63),
    "endless digits": b"f644 " + b"9" * 5000 + b" 1",
    "link without a target": b"l777 0 0",
}


@pytest.mark.parametrize("text", BAD_METAS.values(), ids=BAD_METAS)
def test_an_invalid_meta_is_refused(text: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        read_meta(text)


NAMES: dict[str, tuple[bytes, bool]] = {
    "plain": (b"a", True),
    "dots": (b"...", True),
    "hidden": (b".a", True),
    "newline": (b"a\nb", True),
    "not text": (b"\xff", True),
    "nothing": (b"", False),
    "here": (b".", False),
    "up": (b"..", False),
    "slash": (b"a/b", False),
    "absolute": (b"/a", False),
}


@pytest.mark.parametrize(("name", "good"), NAMES.values(), ids=NAMES)
def test_valid_and_invalid_names_are_distinguished(name: bytes, good: bool) -> None:
    assert is_name(name) is good


def test_the_path_of_a_child() -> None:
    assert (child(b"", b"a"), child(b"a/b", b"c")) == (b"a", b"a/b/c")


def squeezed(data: bytes) -> bytes:
    return b"z" + zlib.compress(data)


def plainly(data: bytes) -> bytes:
    return b"=" + data


@pytest.mark.parametrize("wrap", [plainly, squeezed], ids=["plain", "compressed"])
def test_a_tree_may_come_in_parts(wrap: Any) -> None:
    first = record(b"", b"a", b"d755 0 1", b"f", b"f644 3 2", count=1) + record(b"a", b"l", b"l777 0 0 x", count=1)
    tree = read_tree(END, [wrap(first), wrap(record(b"a/\xff")), wrap(b"")])
    assert tree.folders == {b"": b"a\0d755 0 1\0f\0f644 3 2", b"a": b"l\0l777 0 0 x", b"a/\xff": b""}
    assert tree.counts == {b"": 1, b"a": 1, b"a/\xff": 0}
    assert tree.entries(b"") == {b"a": b"d755 0 1", b"f": b"f644 3 2"}
    assert tree.entries(b"a/\xff") == tree.entries(b"no such folder") == {}
    assert not tree.is_empty


def test_the_final_fields_of_a_scan_are_read() -> None:
    end = {
        **END,
        "meta": "f644 1 2",
        "problems": [["a\udcff", "Permission denied"]],
        "problem_count": 7,
        "unread": 3,
        "hits": [".git"],
        "leftovers": [".remote-sandbox-x"],
        "gitignores": [["a", "\udcff\n*.o"]],
        "coarse": True,
    }
    assert read_tree(end, []) == Tree(
        "dir",
        "/t",
        "/t",
        "/home/me",
        b"f644 1 2",
        problems=(Problem("a\udcff", "Permission denied"),),
        problem_count=7,
        unread=3,
        hits=(".git",),
        leftovers=(".remote-sandbox-x",),
        gitignores=((b"a", b"\xff\n*.o"),),
        coarse=True,
    )


EMPTY: dict[str, tuple[str, dict[bytes, bytes], bool]] = {
    "a folder with nothing": ("dir", {b"": b""}, True),
    "a folder of which nothing was said": ("dir", {}, True),
    "a folder with a file": ("dir", {b"": b"a\0f644 0 0"}, False),
    "a file": ("file", {}, False),
    "nothing at all": ("missing", {}, False),
}


@pytest.mark.parametrize(("kind", "folders", "empty"), EMPTY.values(), ids=EMPTY)
def test_an_empty_tree(kind: str, folders: dict[bytes, bytes], empty: bool) -> None:
    assert Tree(kind, "/t", "/t", "/", folders=folders).is_empty is empty


BAD_PARTS: dict[str, bytes] = {
    "a folder above": plainly(record(b"..")),
    "a folder above, further down": plainly(record(b"a/../b")),
    "an absolute folder": plainly(record(b"/etc")),
    "a folder with an end": plainly(record(b"a/")),
    "a folder without a name": plainly(record(b"a//b")),
    "this folder": plainly(record(b".")),
    "half a head": plainly(record(b"")[:5]),
    "a path that is cut off": plainly(record(b"abc")[:-1]),
    "a block that is cut off": plainly(record(b"a", b"x", b"f644 0 0")[:-1]),
    "a length that lies": plainly(FOLDER.pack(0, 0xFFFFFFFF, 0)),
    "not compressed": b"z" + record(b""),
    "compressed and cut off": squeezed(record(b"a", b"x", b"f644 0 0"))[:-9],
}


@pytest.mark.parametrize("part", BAD_PARTS.values(), ids=BAD_PARTS)
def test_an_impossible_listing_is_refused(part: bytes) -> None:
    with pytest.raises(FileProblem, match="/t: ") as raised:
        read_tree(END, [plainly(record(b"good")), part])
    assert raised.value.reason == "hostile"


def test_a_listing_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remote_sandbox_mcp.core.sync.tree.MOST_BYTES", 1000)
    with pytest.raises(FileProblem):
        read_tree(END, [squeezed(bytes(10_000_000))])
    with pytest.raises(FileProblem):
        read_tree(END, [plainly(record(folder, b"x" * 300, b"f644 0 0")) for folder in (b"", b"a", b"b", b"c")])
    few = [plainly(record(folder, b"x" * 290, b"f644 0 0")) for folder in (b"", b"a", b"b")]
    assert read_tree(END, few).counts == {b"": 0, b"a": 0, b"b": 0}


BAD_BLOCKS: dict[str, tuple[bytes, ...]] = {
    "a name above": (b"..", b"f644 0 0"),
    "this folder": (b".", b"d755 0 0"),
    "a path": (b"a/b", b"f644 0 0"),
    "an absolute path": (b"/etc/passwd", b"f644 0 0"),
    "no name": (b"", b"f644 0 0"),
    "a name without a meta": (b"a", b"f644 0 0", b"b"),
    "a name alone": (b"a",),
    "NULs": (b"a", b"", b"", b""),
    "one more NUL": (b"a", b"f644 0 0", b""),
}


@pytest.mark.parametrize("fields", BAD_BLOCKS.values(), ids=BAD_BLOCKS)
def test_impossible_names_are_refused(fields: tuple[bytes, ...]) -> None:
    tree = read_tree(END, [plainly(record(b"", *fields))])
    with pytest.raises(FileProblem) as raised:
        tree.entries(b"")
    assert raised.value.reason == "hostile"


BAD_ENDS: dict[str, Any] = {
    "no object": [],
    "nothing": None,
    "empty": {},
    "no home": {"kind": "dir", "path": "", "real": ""},
    "problems that are a number": {**END, "problems": 1},
    "problems that are no pairs": {**END, "problems": ["abc"]},
    "a count that is none": {**END, "problem_count": "many"},
    "a count that is nothing": {**END, "unread": None},
    "a count without an end": {**END, "unread": float("inf")},
    "hits that are a number": {**END, "hits": 3},
    "gitignores that are no pairs": {**END, "gitignores": [["a"]]},
    "a text that is none": {**END, "meta": "\ud800"},
}


@pytest.mark.parametrize("end", BAD_ENDS.values(), ids=BAD_ENDS)
def test_an_unreadable_answer_is_refused(end: Any) -> None:
    with pytest.raises(FileProblem) as raised:
        read_tree(end, [])
    assert raised.value.reason == "hostile"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    ["kind", "path", "meta", "problems", "problem_count", "unread", "hits", "gitignores", "coarse"]
)
RAW = st.binary(max_size=60) | st.lists(st.binary(max_size=6), max_size=6).map(lambda fields: record(b"a", *fields))


@settings(max_examples=120)
@given(st.dictionaries(FIELDS, JSON), st.lists(RAW.map(plainly) | RAW.map(squeezed) | st.binary(max_size=60)))
def test_any_bytes_are_a_tree_or_a_problem(end: dict[str, Any], parts: list[bytes]) -> None:
    try:
        tree = read_tree({**END, **end}, parts)
        for folder in tree.folders:
            assert all(map(is_name, tree.entries(folder)))
    except FileProblem:
        pass
