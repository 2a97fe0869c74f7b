"""Output of verbs: JSON for programs, tables for people; sizes, times and counts in words."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ..core.texts.text import harmless, size
from ..local.processes.programs import find_chosen
from . import streams

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.spinner import Spinner
    from rich.text import Text

    from ..core.sync.transfer import Headway


COMMAND = "remote-sandbox-mcp"
WIDEST = 110
# Piped lines are not wrapped: the reader can cut them.
PIPED_WIDTH = 2000
MARKS = {"ok": ("✓", "+", "green"), "warning": ("!", "!", "yellow"), "failed": ("✗", "x", "red bold")}
MARKS |= {"skipped": ("–", "-", "dim")}
FILLED, EMPTY = "█", "░"
# Descriptors whose readers have gone.
_closed: set[int] = set()


def print_json(value: object) -> None:
    """Indented by two spaces, ASCII only, so that it survives every pipe and locale."""
    write(json.dumps(value, indent=2) + "\n")


def write(text: str) -> None:
    """Write to standard output; exits quietly where the reader has closed it."""
    try:
        streams.stdout().write(text)
        streams.stdout().flush()
    except BrokenPipeError:
        if isinstance(streams.stdout(), streams.QueuedOutput):
            return
        # Python flushes once more at exit, and would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), streams.stdout().fileno())
        _closed.add(streams.stdout().fileno())


def is_read() -> bool:
    """Whether somebody still reads standard output: a verb that follows something ends with its reader."""
    out = streams.stdout()
    return not out.is_cut if isinstance(out, streams.QueuedOutput) else out.fileno() not in _closed


def command_path() -> str:
    """Our own command as others can start it: by name if that finds this program in any terminal, else by path."""
    beside = Path(sys.executable).with_name(COMMAND)
    started = Path(sys.argv[0]).absolute()
    own = beside if beside.exists() else started if started.name == COMMAND else None
    found = find_chosen(COMMAND, _lasting_path())
    # Another program, or another version of this one, may have the same name.
    is_own = own is None or (bool(found) and os.path.realpath(found) == os.path.realpath(own))
    return COMMAND if is_own else str(own)


def whole_command_path() -> str:
    """Our own command by its path, for programs that have another PATH than this terminal."""
    name = command_path()
    # The name in PATH may be a link that an update of this program leads elsewhere; that link is the path to keep.
    return os.path.abspath(find_chosen(name, _lasting_path()) or name) if name == COMMAND else name


def _lasting_path() -> str:
    """PATH without the folders of our own virtual environment, which only terminals have in which it is active."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    if sys.prefix == sys.base_prefix:
        return os.pathsep.join(folders)
    inside = os.path.join(os.path.realpath(sys.prefix), "")
    return os.pathsep.join(it for it in folders if not os.path.realpath(it).startswith(inside))


def shown_file(path: Path, is_read: bool) -> Text:
    """Path of a configuration file, and why it is not used, if so."""
    # A link that leads nowhere is there, but cannot be used.
    is_there = os.path.lexists(os.path.expanduser(path))
    return styled((str(path), ""), ("" if is_read else " (cannot be used)" if is_there else " (not there)", "dim"))


def console(out: TextIO, width: int | None) -> Console:
    """Show what it is given as it is, with nothing put in and nothing highlighted."""
    from rich.console import Console

    environ = streams.caller().environ
    return Console(file=out, highlight=False, emoji=False, markup=False, width=width, _environ=environ)


class Page:
    """Standard output for a person: coloured and wrapped on a terminal, plain and unwrapped elsewhere."""

    def __init__(self) -> None:
        out = streams.stdout()
        self.is_terminal, self.is_silent = out.isatty(), False
        # A terminal's encoding may lack some characters, and printing them must not fail.
        if isinstance(out, TextIOWrapper):
            out.reconfigure(errors="replace")
        width = min(WIDEST, os.get_terminal_size(out.fileno()).columns) or None if self.is_terminal else PIPED_WIDTH
        self.console = console(out, width)

    @classmethod
    def silent(cls) -> Page:
        """A page on which nothing is printed."""
        page = cls()
        page.is_terminal, page.is_silent = False, True
        return page

    def print(self, *parts: RenderableType, soft_wrap: bool = False) -> None:
        if self.is_silent:
            return
        parts = tuple(map(_safe, parts))
        if self.is_terminal:
            # Directly to the console, which knows where its spinner is.
            for part in parts:
                self.console.print(part, soft_wrap=soft_wrap)
            return
        with self.console.capture() as captured:
            for part in parts:
                self.console.print(part)
        write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))

    def heading(self, text: str, after: str = "") -> None:
        self.print("", styled((one_line(text), "bold"), (f"  {one_line(after)}" if after else "", "dim")))

    def rows(self, rows: Iterable[tuple[RenderableType, ...]], indent: int = 2) -> None:
        """Aligned columns; the last one wraps."""
        from rich.padding import Padding
        from rich.table import Table

        if not (listed := [*rows]):
            return
        grid = Table.grid(padding=(0, 2, 0, 0))
        for number in range(len(listed[0])):
            is_last = number == len(listed[0]) - 1
            grid.add_column(no_wrap=not is_last, overflow="fold")
        for row in listed:
            grid.add_row(*map(_safe, row))
        self.print(Padding(grid, (0, 0, 0, indent), expand=False))

    def facts(self, facts: Iterable[tuple[str, RenderableType]]) -> None:
        """A name and what it stands for on each line."""
        self.rows(((styled((name, "dim")), it) for name, it in facts), indent=0)

    def table(self, titles: Iterable[str], rows: Iterable[tuple[RenderableType, ...]]) -> None:
        self.rows([tuple(styled((title, "dim")) for title in titles), *rows], indent=0)

    def problems(self, problems: Iterable[str]) -> None:
        self.rows((self.mark("warning"), styled((problem, "yellow"))) for problem in problems)

    @contextmanager
    def waiting(self, text: str) -> Iterator[Spinner | None]:
        """A spinner, on a terminal only."""
        if not self.is_terminal:
            yield None
            return
        from rich.live import Live
        from rich.spinner import Spinner

        spinner = Spinner("dots", text)
        # Not console.status(), which replaces sys.stdout: that belongs to all verbs of the hub.
        with Live(spinner, console=self.console, transient=True, redirect_stdout=False, redirect_stderr=False):
            yield spinner

    def mark(self, name: str) -> Text:
        sign, plain, style = MARKS[name]
        return styled((sign if knows(sign) else plain, style))

    def bar(self, share: float, width: int = 10) -> Text:
        """A small bar; red where little is left."""
        return styled(*bar_parts(share, width))


def bar_parts(share: float, width: int, style: str = "") -> tuple[tuple[str, str], tuple[str, str]]:
    full, empty = (FILLED, EMPTY) if knows(FILLED) else ("#", ".")
    filled = min(width, max(0, round(share * width)))
    style = style or ("red" if share > 0.9 else "yellow" if share > 0.6 else "green")
    return (full * filled, style), (empty * (width - filled), "dim")


def styled(*parts: tuple[str, str]) -> Text:
    """Foreign text, made safe, in colours."""
    from rich.text import Text

    return Text.assemble(*((harmless(text.encode("utf-8", "surrogateescape")), style) for text, style in parts))


def _safe(part: RenderableType) -> RenderableType:
    """A part of a page; rich prints the escape sequences of a plain string as they are."""
    return styled((part, "")) if isinstance(part, str) else part


def knows(text: str) -> bool:
    """Whether standard output's encoding has these characters."""
    encoding = streams.stdout().encoding or "utf-8"
    return text.encode(encoding, "replace").decode(encoding) == text


__all__ = ["ago", "clock", "count", "cut", "one_line", "percent", "share", "shorten", "size", "took"]


def clock(seconds: float) -> str:
    """Time as a clock shows it: 1 s, 1:23, 1:02:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}" if minutes else f"{rest} s"


def took(seconds: float) -> str:
    """Seconds with a tenth up to ten, then as a clock."""
    return f"{seconds:.1f} s" if seconds < 9.95 else clock(seconds)


def moment(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))


def ago(seconds: float) -> str:
    """Time in its largest unit: 3 s, 3 min, 2 h, 2 d."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"


def count(number: int, what: str) -> str:
    """Number and noun: 1 file, 20,000 files."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def share(headway: Headway) -> float:
    """The finished share, by bytes where there are any."""
    done, total = (headway.bytes, headway.bytes_total) if headway.bytes_total else (headway.files, headway.files_total)
    return min(1.0, done / total) if total else 0.0


def percent(headway: Headway) -> str:
    """Rounded down, so that 100 % means done."""
    return f"{int(100 * share(headway))} %"


def one_line(text: str | bytes) -> str:
    """A foreign name or sentence, made safe, on one line."""
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    return harmless(raw).replace("\n", "␊").replace("\t", "␉")


def cut(text: str, width: int) -> str:
    """The beginning of a text, up to a whole word where there is one."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width:
        return text
    kept = set_cell_size(text, width - 1).rstrip()
    words = kept.rpartition(" ")[0]
    return f"{words} …" if 2 * cell_len(words) >= width and cell_len(words) + 2 <= width else f"{kept}…"


def shorten(path: str, width: int) -> str:
    """The end of a path, which tells more than its beginning."""
    from rich.cells import cell_len

    if cell_len(path) <= width:
        return path
    kept = ""
    for char in reversed(path):
        if cell_len(kept) + cell_len(char) > width - 3:
            break
        kept = char + kept
    return f"...{kept}" if width > 3 else ""
