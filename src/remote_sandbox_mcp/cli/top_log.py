"""A job's log in `top`: followed as it grows, made safe, and scrolled by keys."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..core.errors import SandboxError
from ..core.jobs.log import without_exit_line
from ..core.task import job_outcome
from ..core.texts.text import harmless, without_broken_start
from ..services.jobs.values import Which
from .top_screen import fitted, plain, sized, styled
from .top_state import Row, who

if TYPE_CHECKING:
    from rich.text import Text

    from ..app import App

# What is kept of a log, and asked for at first.
MOST_BYTES, FIRST_LINES = 1 << 17, 1000
CHECK_S, AFTER_TROUBLE_S = 0.5, 2.0
KEYS = "↑↓ PgUp PgDn scroll  End follow  q back"


class LogPane:
    """The end of one job's log. `back` counts lines between what is shown and the end; 0 follows it."""

    def __init__(self, app: App, row: Row) -> None:
        self._app = app
        self._row = row
        self._raw = b""
        self._lines: list[str] = []
        self._state = "asking ..."
        self.back = 0

    async def follow(self, changed: Callable[[], None]) -> None:
        """Read what is new, until the job is over and its log is read."""
        is_read, cursor = False, None
        while not is_read:
            pause = CHECK_S
            try:
                is_read, cursor = await self._read(cursor)
            except SandboxError as problem:
                self._state, pause = str(problem), AFTER_TROUBLE_S
            changed()
            await asyncio.sleep(pause)

    async def _read(self, cursor: int | None) -> tuple[bool, int | None]:
        seen = await self._app.tasks.read(which_of(self._row), lines=FIRST_LINES, cursor=cursor, most_bytes=MOST_BYTES)
        self._state = job_outcome(seen).text(time.time())
        # A log that was begun anew has a smaller cursor.
        raw = seen.log if cursor is None or seen.cursor < cursor else self._raw + seen.log
        self._show(without_exit_line(raw, seen.exit_code) if seen.is_over else raw)
        # Of a log that grew by more than is kept, the next look reads the end.
        return seen.is_over and not seen.has_more, max(seen.cursor, seen.log_size - MOST_BYTES)

    def _show(self, raw: bytes) -> None:
        self._raw = raw if len(raw) <= MOST_BYTES else without_broken_start(raw[-MOST_BYTES:])
        self._lines = harmless(self._raw).rstrip("\n").expandtabs().split("\n")

    def press(self, key: str, rows: int) -> bool:
        """Scroll; False to leave."""
        page = max(1, rows - 3)
        moves = {"up": 1, "k": 1, "down": -1, "j": -1, "page up": page, "page down": -page, " ": -page}
        moves |= {"home": 10**9, "g": 10**9, "end": -(10**9), "G": -(10**9)}
        self.back = max(0, self.back + moves.get(key, 0))
        return key not in ("q", "esc")

    def draw(self, rows: int, columns: int) -> list[Text]:
        body = max(1, rows - 2)
        folded = [piece for line in self._lines for piece in chopped(line, columns)]
        self.back = min(self.back, max(0, len(folded) - body))
        last = len(folded) - self.back
        shown = [plain(line) for line in folded[max(0, last - body) : last]]
        title = sized(styled((f" {who(self._row)}: {self._state}", "bold")), columns)
        title.stylize("reverse")
        below = f"{self.back} lines below   " if self.back else ""
        lines = [title, *[*shown, *[plain("")] * body][:body], styled((f" {below}{KEYS}", "dim"))]
        return [fitted(line, columns) for line in lines][:rows]


def which_of(row: Row) -> Which:
    return Which(session=row["tmux_session"], sandbox=row["sandbox"])


def chopped(line: str, columns: int) -> list[str]:
    """A line in pieces that fit."""
    from rich.cells import chop_cells

    return [line] if len(line) < columns and line.isascii() else chop_cells(line, max(2, columns)) or [""]
