"""`top`: the fleet and its jobs, live, with keys; a table where no person looks."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..core.errors import SandboxError
from ..core.sandboxes.disposable import DISPOSABLE_ID
from ..core.task import outcome_of
from ..core.texts.shown import values_in_use
from ..local.processes import loading
from ..local.waiting import end_all, within
from ..services.survey import UNASKED
from . import terminal
from .render import Page, print_json
from .terminal import keys_of
from .top_log import LogPane, which_of
from .top_screen import Widths, block, draw, fitted, job_lines, plain
from .top_state import Row, TopState, Wish, who
from .verb import add_json, with_app

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from ..app import App
    from ..views.live.board import Viewer
    from ..views.live.service import Live

TOPICS = ("machines", "trends", "jobs", "usage")
# The clock is drawn anew after the first time, and nothing more often than after the second.
TICK_S, LEAST_S = 1.0, 0.04
ASKED_BY = "top"
MOST_JOBS, MOST_WATCHES = 200, 10_000
INTERRUPTED = 130


def add_arguments(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "top",
        description="Shows machines with CPU, memory and GPUs, who uses them, and jobs, as they are now; keys sort, "
        "filter, open a job's log, stop and resume (? lists them). If the output is not a terminal, prints a table.",
    )
    parser.add_argument("--once", action="store_true", help="print a table once, also on a terminal")
    parser.add_argument("--sort", choices=("idle", "name", "gpu"), default="idle", help="idle (default), name, gpu")
    add_json(parser, help="for programs: machines and jobs, once")


@with_app
async def run(app: App, options: argparse.Namespace) -> int:
    is_live = terminal.is_at_hand() and not options.once and not options.json
    return await (_live if is_live else _once)(app, options)


# Once


async def _once(app: App, options: argparse.Namespace) -> int:
    machines, jobs = await asyncio.gather(_machines(app), _jobs(app))
    if options.json:
        print_json({"machines": [*machines.values()], "jobs": [*jobs.values()]})
        return 0
    state, page, now = TopState(sort=options.sort), Page(), time.time()
    state.take("machines", machines, (), True)
    state.take("jobs", jobs, (), True)
    widths = Widths.of(page.console.width if page.is_terminal else 160)
    lines = [line for row in state.shown_machines() for line in block(row, (), widths)]
    jobs_ = _unchosen(job_lines(state, state.shown_jobs(), MOST_JOBS + 1, widths, now))
    page.print(*(fitted(line, page.console.width) for line in (*lines, plain(""), *jobs_)))
    page.problems(app.standing_problems())
    return 0


def _unchosen(lines: Sequence[Text]) -> list[Text]:
    """Replace the mark of the chosen row: in a table no row is chosen."""
    from rich.text import Text

    head, *rows = lines
    return [head, *(Text.assemble("  ", row[2:]) for row in rows)]


async def _machines(app: App) -> dict[str, Row]:
    from ..views.live.rows import machine_row

    now = time.time()
    rows: dict[str, Row] = {}
    for view in await app.survey.of_all(resources=True):
        if not DISPOSABLE_ID.match(view.name):
            state = "up" if view.alive else "unasked" if view.trouble == UNASKED else "down"
            rows[view.name] = machine_row(view, state, now)
    return rows


async def _jobs(app: App) -> dict[str, Row]:
    from ..views.live.rows import job_id, job_row

    snapshots = await app.jobs.list(limit=MOST_JOBS)
    watches = await app.jobs.watching.list(limit=MOST_WATCHES) if app.jobs.registry.exists() else ()
    by_id, now, secrets = {watch.id: watch for watch in watches}, time.time(), values_in_use()
    rows: dict[str, Row] = {}
    for snapshot in snapshots:
        watch = by_id.get(snapshot.record.watch_id) if snapshot.record else None
        # The newest of a session comes first.
        rows.setdefault(job_id(snapshot), job_row(snapshot, watch, now, None, secrets))
    return rows


# Live


async def _live(app: App, options: argparse.Namespace) -> int:
    top = Top(app, TopState(sort=options.sort))
    with terminal.taken_over(whole_screen=True):
        async with terminal.ended_by_signals() as caught, terminal.heard(top.typed, top.woken.set):
            # There is something to see before all is loaded that asks the machines.
            top.draw()
            loading.begin()
            try:
                from ..views.live.service import Live
            finally:
                loading.end()
            live = Live(app)
            try:
                with live.looking(TOPICS) as looker:
                    return await top.show(live, looker)
            except asyncio.CancelledError:
                if not caught:
                    raise
                return 128 + caught[0]
            finally:
                await live.close()


class Top:
    """Draws what there is to see, and does what keys ask for."""

    def __init__(self, app: App, state: TopState) -> None:
        self._app = app
        self._state = state
        self.woken = asyncio.Event()
        self._log: LogPane | None = None
        self._following: asyncio.Task[None] | None = None
        self._work: set[asyncio.Task[None]] = set()
        self._end: int | None = None
        self._frame = TerminalFrame()
        # Has jobs looked at soon, after something was done to one.
        self._stir: Callable[[], None] = lambda: None

    async def show(self, live: Live, looker: Viewer) -> int:
        """Until it is to end; returns the exit code."""
        self._stir = live.stir
        feeding = asyncio.ensure_future(self._feed(looker))
        try:
            while self._end is None:
                self.draw()
                await asyncio.sleep(LEAST_S)
                with contextlib.suppress(asyncio.TimeoutError):
                    await within(self.woken.wait(), TICK_S)
                self.woken.clear()
                if feeding.done():
                    feeding.result()
            return self._end
        finally:
            await end_all([feeding, *([self._following] if self._following else []), *self._work])

    async def _feed(self, looker: Viewer) -> None:
        while True:
            for change in await looker.changes():
                self._state.take(change.topic, change.put, change.gone, change.whole)
            self.woken.set()

    def draw(self) -> None:
        if terminal.is_behind():
            return
        rows, columns = terminal.size()
        lines = self._log.draw(rows, columns) if self._log else draw(self._state, rows, columns, now=time.time())
        terminal.show(self._frame.update(lines, columns))

    def typed(self, data: bytes) -> None:
        self.woken.set()
        if not data:
            # The terminal is gone.
            self._end = INTERRUPTED
        for key in keys_of(data):
            if self._log and key != "ctrl-c":
                if not self._log.press(key, terminal.size()[0]):
                    self._log = None
                    if self._following:
                        self._following.cancel()
            elif wish := self._state.press(key):
                self._grant(wish, key)

    def _grant(self, wish: Wish, key: str) -> None:
        if wish.what == "quit":
            self._end = INTERRUPTED if key == "ctrl-c" else 0
        elif row := self._state.jobs.get(wish.job):
            if wish.what == "log":
                self._open_log(row)
            else:
                work = asyncio.ensure_future(self._do(wish.what, row))
                self._work.add(work)
                work.add_done_callback(self._work.discard)

    def _open_log(self, row: Row) -> None:
        self._log = LogPane(self._app, row)
        self._following = asyncio.ensure_future(self._log.follow(self.woken.set))

    async def _do(self, what: str, row: Row) -> None:
        """Stop or resume a job; the last line says what came of it."""
        self._state.note = f"{what}: {who(row)} ..."
        try:
            self._state.note = await (self._stop(row) if what == "stop" else self._resume(row))
        except SandboxError as problem:
            self._state.note = str(problem)
        self._stir()
        self.woken.set()

    async def _stop(self, row: Row) -> str:
        seen = await self._app.tasks.stop(which_of(row))
        is_over = outcome_of(seen).is_over
        return f"{who(row)} is stopped" if is_over else f"{who(row)} was told to stop, and still runs"

    async def _resume(self, row: Row) -> str:
        begun = await self._app.jobs.resume(which_of(row), asked_by=ASKED_BY, ensure=self._app.ensure_watchdog)
        return "; ".join((f"{who(row)} goes on", *begun.notes))


class TerminalFrame:
    """Lines that the terminal shows: only those that have changed are written."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._columns = 0

    def update(self, lines: Sequence[Text], columns: int) -> str:
        from rich.console import Console

        console = Console(file=io.StringIO(), force_terminal=True, width=max(1, columns), highlight=False, markup=False)
        now = [_coded(console, line) for line in lines]
        is_new = columns != self._columns or len(now) != len(self._lines)
        before = [] if is_new else self._lines
        self._lines, self._columns = now, columns
        changed = [
            f"\x1b[{number + 1};1H{line}\x1b[0m\x1b[K"
            for number, line in enumerate(now)
            if not before or before[number] != line
        ]
        return ("\x1b[2J" if is_new else "") + "".join(changed)


def _coded(console: Console, line: Text) -> str:
    """A line with the codes for its colours."""
    with console.capture() as captured:
        console.print(line, end="", no_wrap=True, overflow="crop", crop=True)
    return captured.get()
