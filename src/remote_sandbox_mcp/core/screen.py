"""The screen of a job in tmux: the script that captures it, and what it printed."""

from __future__ import annotations

from dataclasses import dataclass

from .job import JobSeen
from .shell import join

# Room for a large window in which every character has several bytes.
MOST_SCREEN = 400_000


@dataclass(frozen=True)
class Screen:
    """What a person would see in the job's window. The cursor's line and column are counted from 1."""

    text: bytes
    columns: int
    rows: int
    line: int
    column: int


def why_no_screen(seen: JobSeen) -> str:
    """Why a job has no screen, as a sentence; empty where it has one."""
    if not seen.is_running:
        return f"{seen.session} does not run, so it has no screen; its log says what it has printed"
    if seen.foreign or seen.via == "tmux":
        return ""
    how = "in the queue of a cluster" if seen.via == "slurm" else "without tmux"
    return f"{seen.session} runs {how}, so it has no screen; its log says what it has printed"


def screen_script(session: str) -> str:
    """Prints a line with the size and the cursor, then the lines of the window."""
    target = f"={session}:"
    size = ["tmux", "-u", "display-message", "-p", "-t", target, "#{pane_width} #{pane_height} #{cursor_x} #{cursor_y}"]
    return f"unset TMUX; {join(size)} && {join(['tmux', '-u', 'capture-pane', '-p', '-t', target])}"


def read_screen(printed: bytes) -> Screen:
    """Raises ValueError for what cannot be understood.

    >>> read_screen(b"80 24 2 0\\n$ \\n")
    Screen(text=b'$ \\n', columns=80, rows=24, line=1, column=3)
    """
    first, _, text = printed.partition(b"\n")
    columns, rows, across, down = map(int, first.split())
    return Screen(text, columns, rows, down + 1, across + 1)
