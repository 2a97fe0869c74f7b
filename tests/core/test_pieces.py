"""Which parts of a new file the old one has: what the spans say rebuilds the file, and nothing is said twice."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_sandbox_mcp.core.errors import FileProblem
from remote_sandbox_mcp.core.sync.plan import PIECE, FilePart, Matcher, joined, read_index


def cut(data: bytes, mark: bytes, least: int, most: int) -> list[bytes]:
    """As far/chunks.py cuts, only smaller."""
    pieces, start = [], 0
    while start < len(data):
        limit = min(start + most, len(data))
        found = data.find(mark, min(start + least, limit), limit)
        stop = limit if found < 0 else found + len(mark)
        pieces.append(data[start:stop])
        start = stop
    return pieces


def index(pieces: Iterable[bytes]) -> bytes:
    return b"".join(PIECE.pack(len(piece), hashlib.sha256(piece).digest()[:16]) for piece in pieces)


def match(old: Iterable[bytes], new: Iterable[bytes], most: int = 1 << 20, step: int = 0) -> list[FilePart]:
    """All spans, with the new index told in bits of `step` pieces."""
    matcher, told = Matcher(index(old), most), index(new)
    size = step * PIECE.size or max(1, len(told))
    spans = [span for at in range(0, len(told), size) for span in matcher.feed(told[at : at + size])]
    return [*spans, *matcher.rest()]


# Old pieces, new pieces, and (offset, length, place) of what is said.
TABLE: dict[str, tuple[list[bytes], list[bytes], list[tuple[int, int, int]]]] = {
    "nothing": ([], [], []),
    "no old file": ([], [b"aa", b"bbb"], [(0, 5, -1)]),
    "no new file": ([b"aa"], [], []),
    "the same": ([b"aa", b"bbb", b"c"], [b"aa", b"bbb", b"c"], [(0, 6, 0)]),
    "something before": ([b"aa", b"bbb"], [b"x", b"aa", b"bbb"], [(0, 1, -1), (1, 5, 0)]),
    "something behind": ([b"aa", b"bbb"], [b"aa", b"bbb", b"x"], [(0, 5, 0), (5, 1, -1)]),
    "something between": ([b"aa", b"bbb"], [b"aa", b"x", b"bbb"], [(0, 2, 0), (2, 1, -1), (3, 3, 2)]),
    "something replaced": ([b"aa", b"bbb", b"c"], [b"aa", b"xyz", b"c"], [(0, 2, 0), (2, 3, -1), (5, 1, 5)]),
    "something removed": ([b"aa", b"bbb", b"c"], [b"aa", b"c"], [(0, 2, 0), (2, 1, 5)]),
    "exchanged": ([b"aa", b"bbb"], [b"bbb", b"aa"], [(0, 3, 2), (3, 2, 0)]),
    "new pieces are joined": ([b"aa"], [b"x", b"y", b"aa", b"z"], [(0, 2, -1), (2, 2, 0), (4, 1, -1)]),
    "a piece that is there twice": ([b"aa", b"b", b"aa"], [b"aa", b"aa"], [(0, 2, 0), (2, 2, 0)]),
    "a piece that comes again": ([b"aa", b"b"], [b"aa", b"aa", b"b"], [(0, 2, 0), (2, 3, 0)]),
}


@pytest.mark.parametrize(("old", "new", "spans"), TABLE.values(), ids=TABLE)
@pytest.mark.parametrize("step", [0, 1, 2], ids=["at once", "one by one", "two by two"])
def test_spans_are_marked_as_old_or_new(
    old: list[bytes], new: list[bytes], spans: list[tuple[int, int, int]], step: int
) -> None:
    assert match(old, new, step=step) == [FilePart(*span) for span in spans]


LIMITS: dict[str, tuple[int, list[int]]] = {
    "all at once": (100, [6]),
    "exactly": (6, [6]),
    "two and two": (4, [4, 2]),
    "one by one": (3, [2, 2, 2]),
    "less than a piece": (1, [2, 2, 2]),
}


@pytest.mark.parametrize(("most", "lengths"), LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("old", [[], [b"aa", b"bb", b"cc"]], ids=["new", "old"])
def test_a_span_is_not_longer_than_wanted(old: list[bytes], most: int, lengths: list[int]) -> None:
    assert [span.length for span in match(old, [b"aa", b"bb", b"cc"], most)] == lengths


PARTS = st.binary(max_size=12) | st.sampled_from([b"aaaa", b"abcabc|", b"|", b"\0" * 30])


@st.composite
def versions(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Two files of which parts are the same."""
    parts = draw(st.lists(PARTS, min_size=1, max_size=10))
    files = [b"".join(draw(st.lists(st.sampled_from(parts) | PARTS, max_size=15))) for _ in range(2)]
    return files[0], files[1]


@given(
    versions(), st.sampled_from([b"|", b"a", b"\0\0", b"ab"]), st.integers(1, 5), st.integers(1, 40), st.integers(0, 3)
)
def test_the_spans_rebuild_the_new_file(
    files: tuple[bytes, bytes], mark: bytes, least: int, most: int, step: int
) -> None:
    old, new = files
    old_pieces, new_pieces = (cut(data, mark, least, 3 * least) for data in files)
    spans = match(old_pieces, new_pieces, most, step)
    assert [span.offset for span in spans] == [sum(span.length for span in spans[:at]) for at in range(len(spans))]
    rebuilt = [
        old[span.place : span.place + span.length] if span.place >= 0 else new[span.offset : span.offset + span.length]
        for span in spans
    ]
    assert b"".join(rebuilt) == new
    longest = max(map(len, new_pieces), default=0)
    assert all(0 < span.length <= max(most, longest) for span in spans)
    # What both have is not sent.
    sent = sum(span.length for span in spans if span.place < 0)
    assert sent == sum(len(piece) for piece in new_pieces if piece not in old_pieces)


@given(versions(), st.integers(0, 3))
def test_an_index_may_come_in_any_portions(files: tuple[bytes, bytes], step: int) -> None:
    old, new = (cut(data, b"|", 2, 6) for data in files)
    assert match(old, new, 10, step) == match(old, new, 10)


@pytest.mark.parametrize("tail", [b"x", b"x" * 19, b"x" * 21], ids=["a byte", "nearly one", "one and a byte"])
def test_an_invalid_index_is_refused(tail: bytes) -> None:
    with pytest.raises(FileProblem) as raised:
        Matcher(index([b"aa"]) + tail, 10)
    assert raised.value.reason == "hostile"
    with pytest.raises(FileProblem):
        list(Matcher(b"", 10).feed(tail))
    with pytest.raises(FileProblem):
        read_index(tail)


JOINED: dict[str, tuple[list[FilePart], list[FilePart]]] = {
    "nothing": ([], []),
    "one": ([FilePart(0, 2)], [FilePart(0, 2)]),
    "neighbours": ([FilePart(0, 2), FilePart(2, 3), FilePart(5, 1)], [FilePart(0, 6)]),
    "a gap": ([FilePart(0, 2), FilePart(3, 1)], [FilePart(0, 2), FilePart(3, 1)]),
    "old and new": ([FilePart(0, 2), FilePart(2, 2, 7)], [FilePart(0, 2), FilePart(2, 2, 7)]),
    "old neighbours": ([FilePart(0, 2, 5), FilePart(2, 2, 7)], [FilePart(0, 4, 5)]),
    "old, but not neighbours there": ([FilePart(0, 2, 5), FilePart(2, 2, 8)], [FilePart(0, 2, 5), FilePart(2, 2, 8)]),
}


@pytest.mark.parametrize(("spans", "result"), JOINED.values(), ids=JOINED)
def test_neighbours_are_joined(spans: list[FilePart], result: list[FilePart]) -> None:
    assert list(joined(spans)) == result
