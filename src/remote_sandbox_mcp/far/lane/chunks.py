"""Cuts large files into pieces at places that their content determines: an insertion changes only pieces near it."""

import errno
import hashlib
import os
import re
import struct
from typing import Iterator

# Bounds of a piece and its size on average; how much is read at once; what is sampled to choose a mark.
LEAST_CHUNK, MOST_CHUNK = 16 << 10, 256 << 10
WANTED_CHUNK = 64 << 10
WINDOW = 1 << 20
SAMPLES, SAMPLE_BYTES = 32, 32 << 10
CHUNK = struct.Struct(">I16s")


def choose_mark(fd: int, size: int) -> bytes:
    """Choose the mark: a few bytes that occur in this file about as often as it should be cut."""
    # The other side cuts its old file at the same bytes.
    step = max(1, (size - SAMPLE_BYTES) // SAMPLES)
    sample = b"".join(os.pread(fd, SAMPLE_BYTES, at * step) for at in range(SAMPLES))
    wanted = max(1, len(sample) // WANTED_CHUNK)
    best, distance = b"\n", float("inf")
    for start in range(0, len(sample) - 8, max(1, len(sample) // 12)):
        for length in (2, 3, 4, 6, 8):
            mark = sample[start : start + length]
            seen = sample.count(mark)
            off = max(seen, wanted) / max(1, min(seen, wanted))
            if off < distance:
                best, distance = mark, off
            if seen <= wanted:
                break
    return best


def cut(fd: int, mark: bytes) -> "Iterator[tuple[int, memoryview]]":
    """A file's pieces in order, with their offsets. Not mapped into memory: a file that shrinks would kill us."""
    search = re.compile(re.escape(mark), re.DOTALL).search
    offset, rest = 0, b""
    while True:
        fresh = os.pread(fd, WINDOW, offset + len(rest))
        window = rest + fresh
        view, start, end = memoryview(window), 0, len(window)
        while end - start >= MOST_CHUNK or (not fresh and start < end):
            limit = min(start + MOST_CHUNK, end)
            found = search(window, min(start + LEAST_CHUNK, limit), limit)
            stop = found.end() if found else limit
            yield offset + start, view[start:stop]
            start = stop
        if not fresh:
            return
        offset, rest = offset + start, window[start:]


def index_of(fd: int, mark: bytes) -> bytes:
    """Length and digest of every piece."""
    pack = CHUNK.pack
    return b"".join([pack(len(piece), digest(piece)) for _, piece in cut(fd, mark)])


def digest(data: "bytes | memoryview") -> bytes:
    return hashlib.sha256(data).digest()[:16]


def same_size_blocks(fd: int, start: int, count: int, size: int) -> bytes:
    """Digests of blocks of one size, to compare two files whose content is expected at the same offsets."""
    return b"".join([digest(os.pread(fd, size, (start + at) * size)) for at in range(count)])


def holes_and_data(fd: int, start: int, length: int) -> "Iterator[tuple[int, int, bool]]":
    """Ranges of a part of a file as offset, length, and False for a hole; one range if the file system cannot tell."""
    end, found = start + length, os.fstat(fd)
    if found.st_blocks * 512 >= found.st_size:
        # The file has no holes. Looking for them would cost more than it saves: on tmpfs the kernel goes page by page.
        yield start, length, True
        return
    while start < end:
        try:
            data = min(os.lseek(fd, start, os.SEEK_DATA), end)
        except OSError as problem:
            # ENXIO means that only a hole follows; any other error, that this file system cannot tell.
            data = end if problem.errno == errno.ENXIO and start < os.fstat(fd).st_size else start
            if data == start:
                yield start, end - start, True
                return
        if data > start:
            yield start, data - start, False
        if data < end:
            hole = min(max(os.lseek(fd, data, os.SEEK_HOLE), data + 1), end)
            yield data, hole - data, True
            data = hole
        start = data
