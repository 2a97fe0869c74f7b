"""`events` and `calls`: what happened to watched jobs, and every tool call of every agent; newest last."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ..config import paths
from ..core.task import event_word
from ..core.texts.redact import summary_of
from ..local.store.database import STATE_FILE, Database
from ..local.store.history import CallRow, HistoryRows, WantedCalls
from ..services.history import call_fields
from .render import Page, is_read, moment, one_line, styled, took, write
from .verb import add_json, complain, with_app

if TYPE_CHECKING:
    from rich.text import Text

    from ..app import App
    from ..core.jobs.watch import Event

T = TypeVar("T", bound="CallRow | Event")

LISTED = 50
# How often new ones are looked for, and how many are read at once.
CHECK_S, MOST_AT_ONCE = 0.5, 1_000
STYLES = {"succeeded": "green", "running restored": "green", "resume started": "cyan"}
TITLES = ("when", "client", "sandbox", "tool", "outcome", "took", "what")
# Columns besides what a call did.
OTHER_COLUMNS = 62
LONGEST_CLIENT = 14


def add_arguments(subparsers: Any) -> None:
    events = subparsers.add_parser(
        "events",
        description="Events of watched jobs: interrupted, resumed, succeeded, failed, a machine that does not answer.",
    )
    calls = subparsers.add_parser(
        "calls",
        description="Lists the tool calls that have ended, of all your sessions on this computer. Secrets and contents "
        "of files are not kept; keep_calls_days under [server] in config.toml says how long the rest is kept.",
    )
    for parser, what, when in ((events, "events", "happen"), (calls, "calls", "end")):
        last = f"the last N {what} (default: {LISTED})"
        parser.add_argument("-n", "--lines", type=int, default=LISTED, metavar="N", help=last)
        new = f"also show new {what} as they {when}, until Ctrl-C"
        parser.add_argument("-f", "--follow", action="store_true", help=new)
    calls.add_argument("--client", default="", metavar="NAME", help="only clients whose name contains this")
    calls.add_argument("--sandbox", default="", metavar="NAME", help="on this sandbox")
    calls.add_argument("--tool", default="", metavar="NAME", help="of this tool")
    calls.add_argument("--failed", action="store_true", help="errors, and commands with another exit code than 0")
    add_json(events, calls, help="for programs: one JSON object on each line")


async def run(options: argparse.Namespace) -> int:
    return await (_calls if options.verb == "calls" else _events)(options)


async def _follow(
    options: argparse.Namespace,
    newest: Callable[[int, int], Awaitable[Sequence[T]]],
    fields: Callable[[T], dict[str, Any]],
    show: Callable[[Sequence[T], bool], None],
    nothing: str,
) -> int:
    """Show the last ones and, if that is wanted, new ones as they come; `newest` are those after a number."""
    last, wanted = 0, max(0, options.lines)
    # At least one, which tells where to go on.
    found = await newest(last, max(1, wanted))
    if not found and not (options.follow or options.json):
        complain(nothing)
    shown = found[len(found) - min(wanted, len(found)) :]
    while True:
        if options.json:
            write("".join(f"{json.dumps(fields(each))}\n" for each in shown))
        elif shown:
            show(shown, not last)
        last = max([last, *(each.id for each in found)])
        if not (options.follow and is_read()):
            return 0
        await asyncio.sleep(CHECK_S)
        shown = found = await newest(last, MOST_AT_ONCE)


# Events


@with_app
async def _events(app: App, options: argparse.Namespace) -> int:
    async def newest(after: int, limit: int) -> Sequence[Event]:
        if not app.jobs.registry.exists():
            return ()
        return await app.jobs.watching.events(after=after or None, limit=limit)

    from ..views.job_results import event_fields

    return await _follow(options, newest, event_fields, _show_events, "no events yet; jobs that are watched have them")


def _show_events(found: Sequence[Event], is_first: bool) -> None:
    rows = []
    for event in found:
        word = event_word(event)
        when, what = styled((moment(event.created), "dim")), styled((word, STYLES.get(word, "yellow")))
        rows.append((when, what, one_line(event.summary)))
    Page().rows(rows, indent=0)


# Calls


async def _calls(options: argparse.Namespace) -> int:
    rows = HistoryRows(Database(paths.state_folder() / STATE_FILE))
    chosen = {name: getattr(options, name) for name in ("client", "sandbox", "tool", "failed")}

    async def newest(after: int, limit: int) -> Sequence[CallRow]:
        wanted = WantedCalls(**chosen, after=after, limit=limit)
        return await asyncio.to_thread(rows.newest, wanted) if rows.exists() else ()

    try:
        nothing = "no calls are kept that fit; each one is listed here once it has ended"
        return await _follow(options, newest, call_fields, _show_calls, nothing)
    finally:
        rows.database.close()


def _show_calls(found: Sequence[CallRow], is_first: bool) -> None:
    page = Page()
    rows = [_row(row, page.console.width - OTHER_COLUMNS) for row in found]
    page.table(TITLES, rows) if is_first else page.rows(rows, indent=0)


def _row(row: CallRow, room: int) -> tuple[Text | str, ...]:
    what = one_line(summary_of(row.arguments) if row.outcome == "done" else row.told or summary_of(row.arguments))
    shown = what if len(what) <= max(20, room) else f"{what[: max(20, room) - 1]}…"
    when, outcome = styled((_when(row.begun), "dim")), styled(_outcome(row))
    client, sandbox = one_line(row.client[:LONGEST_CLIENT]), one_line(row.sandbox[:LONGEST_CLIENT])
    return when, client, sandbox, one_line(row.tool), outcome, took(row.seconds), styled((shown, ""))


def _when(begun: float) -> str:
    """The time of day, with the date of another day."""
    day, today = time.localtime(begun), time.localtime()
    return time.strftime("%H:%M:%S" if day[:3] == today[:3] else "%m-%d %H:%M", day)


def _outcome(row: CallRow) -> tuple[str, str]:
    if row.outcome != "done":
        return row.outcome, "yellow" if row.outcome in ("cancelled", "asks its user") else "red"
    return (f"exit {row.exit_code}", "red") if row.exit_code else ("done", "green")
