"""`calls`: what agents have done: every tool call of every session, newest last."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..config import paths
from ..core.texts.redact import summary_of
from ..local.store.database import STATE_FILE, Database
from ..local.store.history import CallRow, HistoryRows, WantedCalls
from ..services.history import call_fields
from .render import Page, is_read, one_line, styled, took, write
from .verb import add_json, complain

if TYPE_CHECKING:
    from rich.text import Text

LISTED = 50
# How often new ones are looked for, and how many are read at once.
CHECK_S, MOST_AT_ONCE = 0.5, 1_000
# Columns besides what a call did.
OTHER_COLUMNS = 62
LONGEST_CLIENT = 14


def add_arguments(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "calls",
        description="Lists the tool calls that have ended, of all your sessions on this computer. Secrets and contents "
        "of files are not kept; keep_calls_days under [server] in config.toml says how long the rest is kept.",
    )
    parser.add_argument(
        "-n", "--lines", type=int, default=LISTED, metavar="N", help=f"the last N calls (default: {LISTED})"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="also show new calls as they end, until Ctrl-C")
    parser.add_argument("--client", default="", metavar="NAME", help="only clients whose name contains this")
    parser.add_argument("--sandbox", default="", metavar="NAME", help="on this sandbox")
    parser.add_argument("--tool", default="", metavar="NAME", help="of this tool")
    parser.add_argument("--failed", action="store_true", help="errors, and commands with another exit code than 0")
    add_json(parser, help="for programs: one JSON object on each line")


async def run(options: argparse.Namespace) -> int:
    rows = HistoryRows(Database(paths.state_folder() / STATE_FILE))
    wanted = WantedCalls(
        client=options.client,
        sandbox=options.sandbox,
        tool=options.tool,
        failed=options.failed,
        limit=max(0, options.lines),
    )
    try:
        await _show(rows, wanted, options)
    finally:
        rows.database.close()
    return 0


async def _show(rows: HistoryRows, wanted: Any, options: argparse.Namespace) -> None:
    last = await asyncio.to_thread(rows.last) if rows.exists() else 0
    found = await asyncio.to_thread(rows.newest, wanted) if last else ()
    if not found and not options.follow and not options.json:
        complain("no calls are kept that fit; each one is listed here once it has ended")
    _print(found, options, is_first=True)
    while options.follow and is_read():
        await asyncio.sleep(CHECK_S)
        if rows.exists():
            found = await asyncio.to_thread(rows.newest, replace(wanted, after=last, limit=MOST_AT_ONCE))
            last = max([last, *(row.id for row in found)])
            _print(found, options)


def _print(found: tuple[CallRow, ...], options: argparse.Namespace, *, is_first: bool = False) -> None:
    if options.json:
        write("".join(f"{json.dumps(call_fields(row))}\n" for row in found))
        return
    if not found:
        return
    page = Page()
    titles = tuple(styled((title, "dim")) for title in ("when", "client", "sandbox", "tool", "outcome", "took", "what"))
    listed = [_row(row, page.console.width - OTHER_COLUMNS) for row in found]
    page.rows([titles, *listed] if is_first else listed, indent=0)


def _row(row: CallRow, room: int) -> tuple[Text | str, ...]:
    outcome, style = _outcome(row)
    what = one_line(summary_of(row.arguments) if row.outcome == "done" else row.told or summary_of(row.arguments))
    shown = what if len(what) <= max(20, room) else f"{what[: max(20, room) - 1]}…"
    return (
        styled((_when(row.begun), "dim")),
        one_line(row.client[:LONGEST_CLIENT]),
        one_line(row.sandbox[:LONGEST_CLIENT]),
        one_line(row.tool),
        styled((outcome, style)),
        took(row.seconds),
        styled((shown, "")),
    )


def _when(begun: float) -> str:
    """The time of day, with the date of another day."""
    day, today = time.localtime(begun), time.localtime()
    return time.strftime("%H:%M:%S" if day[:3] == today[:3] else "%m-%d %H:%M", day)


def _outcome(row: CallRow) -> tuple[str, str]:
    if row.outcome != "done":
        return row.outcome, "yellow" if row.outcome in ("cancelled", "asks its user") else "red"
    return (f"exit {row.exit_code}", "red") if row.exit_code else ("done", "green")
