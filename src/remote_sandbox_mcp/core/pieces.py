"""Which pieces of a file the other side has already, and where: a pure decision on two indexes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

from .errors import FileProblem

# Length and digest of a piece, one after the other as they follow each other in the file.
PIECE = struct.Struct(">I16s")


@dataclass(frozen=True)
class Span:
    """A part of the new file. `place` is where the old file has the same bytes; -1 where it has not."""

    offset: int
    length: int
    place: int = -1

    def is_followed_by(self, other: Span) -> bool:
        if (self.place < 0) != (other.place < 0) or self.offset + self.length != other.offset:
            return False
        return self.place < 0 or self.place + self.length == other.place


def read_index(index: bytes) -> Iterator[tuple[int, bytes]]:
    """Raises FileProblem where the other side told what is no index."""
    if len(index) % PIECE.size:
        raise FileProblem("an index of a file cannot be read; its machine is broken or hostile", "hostile")
    return PIECE.iter_unpack(index)


class Matcher:
    """Takes the new file's index bit by bit; says what of it is old and what is new, joined where it can be."""

    def __init__(self, old_index: bytes, most: int) -> None:
        self._places: dict[bytes, int] = {}
        self._at: dict[int, bytes] = {}
        offset = 0
        for length, digest in read_index(old_index):
            self._places.setdefault(digest, offset)
            self._at[offset] = digest
            offset += length
        self._most = most
        self._offset = 0
        self._pending: Span | None = None

    def feed(self, index: bytes) -> Iterator[Span]:
        for length, digest in read_index(index):
            last = self._pending
            span = Span(self._offset, length, self._place(digest, last))
            self._offset += length
            if last and last.is_followed_by(span) and last.length + length <= self._most:
                self._pending = replace(last, length=last.length + length)
                continue
            if last:
                yield last
            self._pending = span

    def _place(self, digest: bytes, last: Span | None) -> int:
        """Of several equal pieces the one that follows what was found last: then one span covers both."""
        if last and last.place >= 0 and self._at.get(last.place + last.length) == digest:
            return last.place + last.length
        return self._places.get(digest, -1)

    def rest(self) -> Iterator[Span]:
        if self._pending:
            yield self._pending
        self._pending = None


def joined(spans: list[Span]) -> Iterator[Span]:
    """Neighbours as one."""
    pending: Span | None = None
    for span in spans:
        if pending and pending.is_followed_by(span):
            pending = replace(pending, length=pending.length + span.length)
        else:
            if pending:
                yield pending
            pending = span
    if pending:
        yield pending
