"""The recording of docs/terminal.md: the fleet in `top`, and the log of one of its jobs."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

from .fleet import Lab, lab
from .page import work
from .terminal import Frame, Terminal, as_svg, terminal

TARGET = Path(__file__).parent.parent / "docs/top.svg"
CHECK_S = 0.5
COLUMNS, ROWS = 120, 30


def main() -> int:
    with lab() as here:
        work(here)
        with terminal(here.home, here.environment, COLUMNS, ROWS) as shown:
            play(shown)
        frames = [Frame(renamed(here, frame.lines), frame.seconds) for frame in shown.frames]
        svg = as_svg(frames, "Machines, their GPUs and jobs in a terminal", COLUMNS, ROWS)
        TARGET.write_text(svg, "utf-8")
    return 0


def play(shown: Terminal) -> None:
    shown.type("remote-sandbox-mcp top", until="", rest_s=0)
    watch(shown, 14)
    for key, seconds in (("j", 1), ("j", 2), ("Enter", 6), ("Escape", 3)):
        shown.tmux("send-keys", "-t", "0", key)
        watch(shown, seconds)
    shown.tmux("send-keys", "-t", "0", "q")
    shown.rest(2)


def watch(shown: Terminal, seconds: float) -> None:
    """Look for so long; what stays the same is shown shorter."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(CHECK_S)
        shown.look(CHECK_S)


def renamed(here: Lab, lines: tuple[str, ...]) -> tuple[str, ...]:
    for name, shown in sorted(here.shown.items(), key=lambda pair: -len(pair[0])):
        lines = tuple(line.replace(name, shown) for line in lines)
    # A name that was cut short for want of room is that of the notebook, which comes last.
    return tuple(re.sub(r"rsmcp-[-\d]*…", "bob…", line) for line in lines)


if __name__ == "__main__":
    sys.exit(main())
