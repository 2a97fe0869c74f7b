"""A transfer's log: lines with times for people to read, in a file of the owner's."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ..core.output import harmless
from ..core.transfer import Headway, Outcome

TAIL_BYTES = 256 << 10
UNITS = ("bytes", "KB", "MB", "GB", "TB")


class Log:
    """Takes lines; never fails: a full disk ends no transfer."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def open(self) -> int:
        """A descriptor that appends to it."""
        return os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, text: str) -> None:
        """Add one line, whatever is in it."""
        self.note_all([text])

    def note_all(self, lines: list[str]) -> None:
        now = time.strftime("%Y-%m-%d %H:%M:%S%z")
        data = "".join(f"{now} {_one_line(line)}\n" for line in lines).encode()
        with suppress(OSError):
            fd = self.open()
            try:
                os.write(fd, data)
            finally:
                os.close(fd)

    def tail(self, lines: int) -> list[str]:
        """Its last lines; none where there is no log."""
        try:
            with self.file.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
                return harmless(file.read()).splitlines()[-lines:] if lines > 0 else []
        except OSError:
            return []


def describe_headway(headway: Headway) -> str:
    figures = f": {headway.files_total} files, {size(headway.bytes_total)}" if headway.files_total else ""
    return f"{headway.phase}{figures}"


def describe_outcome(outcome: Outcome) -> Iterator[str]:
    """Each problem, then the figures."""
    for problem in outcome.problems:
        yield f"problem: {problem.path}: {problem.reason}"
    if outcome.problem_count > len(outcome.problems):
        yield f"problems: {outcome.problem_count} in all"
    deleted = outcome.deleted_files + outcome.deleted_dirs
    yield (
        f"completed in {outcome.seconds:.1f} s: {outcome.sent_files} files sent ({size(outcome.bytes)}, "
        f"{size(outcome.wire_bytes)} over the line), {outcome.skipped_files} as they were, {deleted} deleted, "
        f"{outcome.problem_count} problems"
    )


def size(count: float) -> str:
    """Bytes for people, in three digits."""
    step = 0
    while count >= 1000 and step < len(UNITS) - 1:
        count, step = count / 1000, step + 1
    return f"{count:.3g} {UNITS[step]}" if count < 1000 else f"{count:.0f} {UNITS[step]}"


def _one_line(text: str) -> str:
    return harmless(text.encode("utf-8", "surrogatepass")).replace("\n", "␊")
