"""How far a transfer is, drawn on a terminal while it runs; elsewhere nothing is."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..core.transfer import Headway
from .render import clock, one_line, percent, share, shorten, size

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

SHOWN_AFTER_S = 0.5
DRAWN_PER_S = 5
# The rate that was told last is no news when nothing has moved for so long.
STILL_S = 3.0
# Left free at the end of each line: a terminal writes ^C there, and what wraps cannot be taken back.
MARGIN = 3


class Bar:
    """Listens to a transfer. Shown once that takes longer than a moment, and gone when it is left."""

    def __init__(self) -> None:
        self._headway = Headway("scanning")
        self._begun = self._moved = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._live: Live | None = None

    def hear(self, headway: Headway) -> None:
        before, self._headway = self._headway, headway
        if (before.phase, before.files, before.bytes) != (headway.phase, headway.files, headway.bytes):
            self._moved = time.monotonic()

    def __enter__(self) -> Bar:
        if sys.stderr.isatty():
            self._timer = asyncio.get_running_loop().call_later(SHOWN_AFTER_S, self._show)
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer:
            self._timer.cancel()
        if self._live:
            self._live.stop()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Room for something else."""
        self.__exit__()
        yield
        self.__enter__()

    def _show(self) -> None:
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True, highlight=False, emoji=False, markup=False)
        self._live = Live(
            get_renderable=lambda: self._picture(console.width - MARGIN),
            console=console,
            transient=True,
            refresh_per_second=DRAWN_PER_S,
        )
        self._live.start()

    def _picture(self, width: int) -> Group:
        from rich.console import Group

        headway, now = self._headway, time.monotonic()
        if not headway.files_total:
            return Group(_line(width, headway.phase, _stripe(None), clock(now - self._begun)))
        first = _line(
            width, headway.phase, _stripe(share(headway)), percent(headway), *_speed(headway, now - self._moved)
        )
        return Group(first, _details(headway, width))


def _line(width: int, phase: str, stripe: RenderableType, *after: str) -> Table:
    """One line, in which the stripe takes what room there is."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    grid.width = width
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    for text in after:
        # As wide as it may become: the stripe is not to tremble.
        grid.add_column(no_wrap=True, justify="right", min_width=min(9, len(text) + 3))
    grid.add_row(Text(phase, "bold"), stripe, *(Text(text) for text in after))
    return grid


def _stripe(done: float | None) -> RenderableType:
    """Filled so far; one without an end in sight pulses."""
    from rich.progress_bar import ProgressBar

    return ProgressBar(total=None if done is None else 1.0, completed=done or 0.0, pulse=done is None)


def _speed(headway: Headway, still_s: float) -> tuple[str, ...]:
    if still_s > STILL_S:
        return (f"nothing moved for {clock(still_s)}",)
    left = "" if headway.left_s is None else f"{clock(headway.left_s)} left"
    return f"{size(headway.rate)}/s" if headway.rate else "", left


def _details(headway: Headway, width: int) -> Text:
    from rich.text import Text

    files = f"{headway.files}/{headway.files_total} files"
    counted = f"{files}  {size(headway.bytes)} of {size(headway.bytes_total)}  "
    path = shorten(one_line(headway.path), width - len(counted))
    return Text.assemble((counted, ""), (path, "dim"), no_wrap=True, overflow="ellipsis")
