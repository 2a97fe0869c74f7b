"""Questions to a person at a terminal: a line, yes or no, something hidden, or a choice by keys."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .render import Page, knows, one_line, styled

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

# A key as a terminal in cbreak mode sends it: an arrow, or one character.
_KEY = re.compile(rb"\x1b[\[O][A-D]|\x1b|.", re.S)
_UP, _DOWN = (b"\x1b[A", b"\x1bOA", b"k"), (b"\x1b[B", b"\x1bOB", b"j")
_ENTER, _GIVE_UP = (b"\r", b"\n"), (b"\x04", b"q")
KEYS = "space chooses, a all or none, arrows move, Enter goes on"
# Lines of the screen that are not rows of the choice.
FRAME = 4


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C ends a question at once: asyncio's own handler would only cancel what comes after it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except EOFError:
        # Ctrl-D gives up as well.
        raise KeyboardInterrupt from None
    finally:
        signal.signal(signal.SIGINT, before)


def line(prompt: str) -> str:
    """One line, without the blanks around it."""
    with interruptible():
        return input(f"{one_line(prompt)} ").strip()


def hidden(prompt: str) -> str:
    with interruptible():
        return getpass.getpass(f"{one_line(prompt)} ")


def agrees(question: str, *, otherwise: bool = True) -> bool:
    """Yes or no; Enter alone means `otherwise`."""
    while True:
        answer = line(f"{question} [{'Y/n' if otherwise else 'y/N'}]").lower()
        if answer in ("", "y", "yes", "n", "no"):
            return answer.startswith("y") if answer else otherwise


def choose(page: Page, rows: Sequence[Text], chosen: set[int]) -> set[int]:
    """The numbers of the chosen rows: by keys, or by a line where the terminal cannot move its cursor."""
    if page.console.is_dumb_terminal:
        return _by_line(page, rows, chosen)
    return _BoxList(page, rows, chosen).run()


def _by_line(page: Page, rows: Sequence[Text], chosen: set[int]) -> set[int]:
    page.rows((f"{number}", row) for number, row in enumerate(rows, 1))
    usual = ",".join(str(number + 1) for number in sorted(chosen)) or "none"
    while True:
        if not (answer := line(f"Which? Numbers such as 1,3, all or none [{usual}]").lower()):
            return chosen
        if answer in ("all", "none"):
            return {*range(len(rows))} if answer == "all" else set()
        words = answer.replace(",", " ").split()
        if all(word.isdecimal() and 1 <= int(word) <= len(rows) for word in words):
            return {int(word) - 1 for word in words}


class _BoxList:
    """Rows with boxes; it is drawn anew after each key, and disappears at the end."""

    def __init__(self, page: Page, rows: Sequence[Text], chosen: set[int]) -> None:
        self._page = page
        self._rows = rows
        self._chosen = {*chosen}
        self._at = min(chosen, default=0)

    def run(self) -> set[int]:
        from rich.live import Live

        with interruptible(), _cbreak(), Live(console=self._page.console, auto_refresh=False, transient=True) as live:
            live.update(self._drawn(), refresh=True)
            for key in _keys():
                if key in _ENTER:
                    return self._chosen
                if key in _GIVE_UP:
                    break
                self._press(key)
                live.update(self._drawn(), refresh=True)
        raise KeyboardInterrupt

    def _press(self, key: bytes) -> None:
        everything = {*range(len(self._rows))}
        if key == b" ":
            self._chosen ^= {self._at}
        elif key == b"a":
            self._chosen = set() if self._chosen == everything else everything
        elif key in _UP or key in _DOWN:
            self._at = (self._at + (1 if key in _DOWN else -1)) % len(self._rows)

    def _drawn(self) -> RenderableType:
        from rich.table import Table

        grid = Table.grid(padding=(0, 1, 0, 0))
        for place in self._window():
            is_here = place == self._at
            box = ("[x]" if place in self._chosen else "[ ]", "green" if place in self._chosen else "")
            pointer = ("›" if knows("›") else ">") if is_here else " "
            grid.add_row(styled((pointer, "bold cyan")), styled(box), self._rows[place])
        grid.add_row("", "", styled((KEYS, "dim")))
        return grid

    def _window(self) -> range:
        """The rows that fit the screen, with the present one among them."""
        room = max(1, self._page.console.size.height - FRAME)
        first = max(0, min(self._at - room // 2, len(self._rows) - room))
        return range(first, min(len(self._rows), first + room))


def _keys() -> Iterator[bytes]:
    while data := os.read(sys.stdin.fileno(), 64):
        yield from _KEY.findall(data)


@contextlib.contextmanager
def _cbreak() -> Iterator[None]:
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
