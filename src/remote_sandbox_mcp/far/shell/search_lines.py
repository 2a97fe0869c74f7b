"""Finds a pattern in lines: a program of its own, so that a search that takes for ever can be killed."""

from __future__ import annotations

import re
import sys

# Of a line without an end, at most so many of its last bytes are searched again.
LONGEST_PARTIAL = 1 << 16


def search_lines(pattern: bytes, block: bytes) -> tuple[int, bytes | None]:
    """Return how many bytes need not be searched again, and the first line that matches. The last may still grow."""
    wanted, done = re.compile(pattern), 0
    whole, newline, partial = block.rpartition(b"\n")
    for line in whole.split(b"\n") if newline else []:
        done += len(line) + 1
        if wanted.search(line):
            return done, line
    if partial and wanted.search(partial):
        return done + len(partial), partial
    return done + max(0, len(partial) - LONGEST_PARTIAL), None


def fitting_lines(pattern: bytes, block: bytes, flags: int) -> list[int]:
    """The numbers of all lines that match, counted from 0."""
    wanted = re.compile(pattern, flags)
    return [number for number, line in enumerate(block.split(b"\n")) if wanted.search(line)]


def main() -> None:
    """Standard input: `first`, `all` or `any_case` and the pattern's length in a line; the pattern; the lines."""
    verb, length = sys.stdin.buffer.readline().split()
    pattern, block = sys.stdin.buffer.read(int(length)), sys.stdin.buffer.read()
    if verb != b"first":
        flags = re.IGNORECASE if verb == b"any_case" else 0
        sys.stdout.buffer.write(b"".join(b"%d\n" % number for number in fitting_lines(pattern, block, flags)))
        return
    done, line = search_lines(pattern, block)
    sys.stdout.buffer.write(b"%d\n" % done + (b"" if line is None else b"=" + line[:1000]))


if __name__ == "__main__":
    main()
