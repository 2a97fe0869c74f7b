"""Records what happens in a real terminal (tmux) and writes it as one SVG that plays by itself."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from pathlib import Path

from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

COLUMNS, ROWS = 100, 26
CELL_W, CELL_H, MARGIN = 8.4, 18, 14
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
INK, PAPER = "#d8dee9", "#1f2430"
# The sixteen colours of a terminal that is easy to read on this paper.
PALETTE = (
    *("#3b4252", "#ef7c86", "#a3cf8b", "#ebcb8b", "#81a8e0", "#c79bd0", "#83c5d6", "#e5e9f0"),
    *("#66708a", "#ff929c", "#b6e39c", "#ffdb8f", "#96bcf4", "#dbaee4", "#97dcee", "#ffffff"),
)
# A person reads: nothing stays shorter than this, and waiting for a machine is not shown longer than that.
LEAST_S, MOST_S, LAST_S = 0.06, 1.6, 5.0
KEY_S, CHECK_S, READY_S = 0.045, 0.05, 60.0
PROMPT = "$ "
_console = Console(width=COLUMNS, color_system="truecolor")


@dataclass
class Frame:
    """What the terminal showed, and for how long."""

    lines: tuple[str, ...]
    seconds: float


@dataclass
class Terminal:
    """A terminal that is watched. What a person would type is given to `type`."""

    socket: str
    columns: int = COLUMNS
    rows: int = ROWS
    frames: list[Frame] = field(default_factory=list)

    def tmux(self, *arguments: str) -> str:
        done = subprocess.run(["tmux", "-L", self.socket, *arguments], capture_output=True, text=True, check=True)
        return done.stdout

    def lines(self) -> tuple[str, ...]:
        return tuple(self.tmux("capture-pane", "-e", "-p", "-t", "0").split("\n")[: self.rows])

    def look(self, seconds: float) -> None:
        """Add what is there now; the same as before lasts longer."""
        seen = self.lines()
        if self.frames and self.frames[-1].lines == seen:
            last = self.frames[-1]
            last.seconds = min(MOST_S, last.seconds + seconds)
        else:
            self.frames.append(Frame(seen, max(LEAST_S, seconds)))

    def type(self, text: str, *, until: str = PROMPT, rest_s: float = 1.2) -> None:
        """Type a line, key by key, and watch until the terminal's last line begins with `until`."""
        for key in text:
            self.tmux("send-keys", "-t", "0", "-l", key)
            self.look(KEY_S)
        before = len(self._written())
        self.tmux("send-keys", "-t", "0", "Enter")
        self.watch(until, before)
        self.rest(rest_s)

    def watch(self, until: str, before: int) -> None:
        """Until there are more lines than `before`, and the last of them begins like this."""
        deadline = time.monotonic() + READY_S
        while not (len(self._written()) > before and self._written()[-1].startswith(until.rstrip())):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the terminal never showed {until!r}: {self._written()[-3:]}")
            time.sleep(CHECK_S)
            self.look(CHECK_S)

    def rest(self, seconds: float) -> None:
        """Leave time for reading."""
        self.look(0)
        self.frames[-1].seconds += seconds

    def _written(self) -> list[str]:
        return self.tmux("capture-pane", "-p", "-S", "-", "-t", "0").rstrip("\n").split("\n")


@contextmanager
def terminal(
    folder: Path, environment: Mapping[str, str], columns: int = COLUMNS, rows: int = ROWS
) -> Iterator[Terminal]:
    """A shell of its own in a folder, with this environment and no start-up files."""
    socket = f"pictures-{os.getpid()}"
    shell = ["env", "-i", *(f"{name}={value}" for name, value in environment.items())]
    shell += [f"PS1={PROMPT}", "TERM=xterm-256color", "LANG=C.UTF-8", "bash", "--norc", "--noprofile"]
    here = Terminal(socket, columns, rows)
    here.tmux("-f", os.devnull, "new-session", "-d", "-x", str(columns), "-y", str(rows), "-c", str(folder), *shell)
    try:
        deadline = time.monotonic() + READY_S
        while not here.lines()[0].startswith(PROMPT.strip()):
            if time.monotonic() > deadline:
                raise TimeoutError("the shell never showed its prompt")
            time.sleep(CHECK_S)
        yield here
    finally:
        here.tmux("kill-server")


def as_svg(frames: list[Frame], title: str, columns: int = COLUMNS, rows: int = ROWS) -> str:
    """All frames side by side on a strip that moves by whole frames; lines that return are drawn once."""
    width, height = round(columns * CELL_W + 2 * MARGIN), rows * CELL_H + 2 * MARGIN
    known: dict[str, int] = {}
    strip, steps, at = [], [], 0.0
    total = sum(frame.seconds for frame in frames) + LAST_S
    for number, frame in enumerate(frames):
        uses = [
            f'<use href="#l{known.setdefault(line, len(known))}" y="{row * CELL_H}"/>'
            for row, line in enumerate(frame.lines)
            if line.strip()
        ]
        strip.append(f'<g transform="translate({number * width} 0)">{"".join(uses)}</g>')
        steps.append(f"{100 * at / total:.3f}%{{transform:translateX({-number * width}px)}}")
        at += frame.seconds
    steps.append(f"100%{{transform:translateX({-(len(frames) - 1) * width}px)}}")
    lines = "".join(f'<g id="l{number}">{_drawn(line)}</g>' for line, number in known.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">'
        f"<title>{escape(title)}</title>"
        f"<style>text{{font:14px {FONT};fill:{INK};white-space:pre}}.strip{{animation:play {total:.2f}s steps(1,end) "
        f"infinite}}@keyframes play{{{''.join(steps)}}}</style>"
        f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}"/><defs>{lines}</defs>'
        f'<svg x="{MARGIN}" y="{MARGIN}" width="{width - 2 * MARGIN}" height="{height - 2 * MARGIN}">'
        f'<g class="strip">{"".join(strip)}</g></svg></svg>\n'
    )


def _drawn(line: str) -> str:
    """One line of a terminal, each stretch of one colour at its own column."""
    text, drawn = Text.from_ansi(line), []
    plain = text.plain
    edges = sorted({0, len(plain), *(edge for span in text.spans for edge in (span.start, span.end))})
    for start, end in pairwise(edges):
        if stretch := plain[start:end].rstrip():
            style = text.get_style_at_offset(_console, start)
            drawn.append(f'<text x="{start * CELL_W:.1f}" y="14"{_look(style)}>{escape(stretch)}</text>')
    return "".join(drawn)


def _look(style: Style) -> str:
    fill = f' fill="{_ink(style.color)}" style="fill:{_ink(style.color)}"' if style.color else ""
    weight = ' font-weight="bold"' if style.bold else ""
    return fill + weight + (' opacity="0.65"' if style.dim else "")


def _ink(colour: Color) -> str:
    if colour.is_default:
        return INK
    if colour.number is not None and colour.number < len(PALETTE):
        return PALETTE[colour.number]
    return colour.get_truecolor().hex
