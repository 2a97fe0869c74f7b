"""Progress of a transfer on a terminal; prints nothing elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..core.sync.transfer import Headway
from . import streams
from .render import clock, console, one_line, percent, share, shorten, size

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

SHOWN_AFTER_S = 0.5
DRAWN_PER_S = 5
# After this long without movement, the last rate is no longer shown.
STILL_S = 3.0
# Left free at the end of the line: the terminal prints ^C there, and a wrapped line cannot be erased.
MARGIN = 3


class Bar:
    """Listens to a transfer. Appears once that takes longer than a moment, and disappears at its end."""

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
        if streams.stderr().isatty():
            self._timer = asyncio.get_running_loop().call_later(SHOWN_AFTER_S, self._show)
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer:
            self._timer.cancel()
        if self._live:
            self._live.stop()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Hide the bar while something else is printed."""
        self.__exit__()
        yield
        self.__enter__()

    def _show(self) -> None:
        from rich.live import Live

        shown = console(streams.stderr(), streams.width())
        self._live = Live(
            get_renderable=lambda: self._picture(shown.width - MARGIN),
            console=shown,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
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
    """One line, in which the stripe fills the remaining width."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    grid.width = width
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    for text in after:
        # At its maximum width, so that the stripe does not jump.
        grid.add_column(no_wrap=True, justify="right", min_width=min(9, len(text) + 3))
    grid.add_row(Text(phase, "bold"), stripe, *(Text(text) for text in after))
    return grid


def _stripe(done: float | None) -> RenderableType:
    """The filled part; pulses where the total is unknown."""
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
