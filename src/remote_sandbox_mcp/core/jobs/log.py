"""A log as people read it: in whole lines, searched, and without the line that a job's keeper adds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from ..texts.text import without_broken_end, without_broken_start

# The keeper ends each log with it, so that programs find the exit code there.
_EXIT_LINE = re.compile(rb"(?:\A|(?<=\n))EXIT_CODE=(-?[0-9]{1,10})\r?\n?\Z")
# What a terminal does not show: colours, titles and the like.
_SEQUENCE = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]")


def exit_line_size(log: bytes) -> int:
    """Count the bytes at the end of a log are a line that may be the keeper's; 0 where there is none."""
    found = _EXIT_LINE.search(log, max(0, len(log) - 32))
    return len(found[0]) if found else 0


def without_exit_line(log: bytes, exit_code: int | None) -> bytes:
    """Log without the keeper's line, where that has this exit code."""
    found = None if exit_code is None else _EXIT_LINE.search(log, max(0, len(log) - 32))
    return log[: found.start()] if found and int(found[1]) == exit_code else log


def from_line_start(data: bytes) -> bytes:
    """A part of a log that begins anywhere, from the first beginning of a line on; all of it where there is none."""
    _, line_end, rest = data.partition(b"\n")
    return rest if line_end and rest else without_broken_start(data)


def to_line_end(data: bytes) -> bytes:
    """A part of a log that ends anywhere, up to its last whole line; all of it where it has no line end."""
    return data[: data.rfind(b"\n") + 1] or without_broken_end(data)


def lines_with(data: bytes, words: str, shown: Callable[[str], str]) -> Iterator[int]:
    """Find the beginnings of lines in which a terminal would show these words; capitals count where there are any.

    `shown` hides what readers must not see.
    """
    fold = str if words != words.lower() else str.lower
    at = 0
    # Not splitlines(): a carriage return writes over its own line.
    for line in data.split(b"\n"):
        text = _seen(line.decode("utf-8", "replace"))
        if words in fold(text) and words in fold(shown(text)):
            yield at
        at += len(line) + 1


def without_sequences(line: str) -> str:
    return _SEQUENCE.sub("", line) if "\x1b" in line or "\x9b" in line else line


def _seen(line: str) -> str:
    return without_sequences(line).rstrip("\r\n").rpartition("\r")[2]


# How an error begins in a log, whatever wrote it; and lines of Python's tracebacks, of which the last one says why.
_ERROR = re.compile(
    r"(?:^|[\s:\[(])(?:error|fatal|panic(?:ked)?|abort(?:ed)?|exception|segmentation fault|killed|out of memory"
    r"|no such file or directory|command not found|permission denied|cannot|failed)\b"
    r"|^[\w.]{1,80}(?:Error|Exception|Interrupt|Exit)\b",
    re.IGNORECASE,
)
LONGEST_ERROR = 200


def last_error(log: bytes) -> str:
    """Find the line at the end of a log that says why its job failed; without such a line, the last one."""
    lines = [_seen(line[:4000]).strip() for line in log[-16384:].decode("utf-8", "replace").split("\n")]
    said = [line for line in lines if line and not line.startswith("EXIT_CODE=")]
    return next((line for line in reversed(said) if _ERROR.search(line[:500])), said[-1] if said else "")[
        :LONGEST_ERROR
    ]
