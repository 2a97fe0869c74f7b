"""`transfers`: syncs in the background: list, progress, result, cancel."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..core.check import in_range
from ..core.errors import BadArgument
from ..views.results import plain_text
from ..views.sync_results import cancelled_fields, transfer_fields
from .bar import Bar
from .render import Page, ago, clock, moment, one_line, percent, print_json, shorten, size, styled
from .summary import outcome_lines, show_outcome
from .syncing import until_stopped
from .verb import add_json, complain, say, with_app

if TYPE_CHECKING:
    from rich.text import Text

    from ..app import App
    from ..core.sync.transfer import Place
    from ..local.store.transfers import Transfer

ACTIONS = ("list", "show", "wait", "cancel", "log")
# How many transfers are listed, and how many lines of a log are shown.
LISTED, LOGGED, LOG_TAIL = 20, 1000, 20
ASKED_EVERY_S = 0.4
# Maximum width of all columns but the last.
OTHER_COLUMNS = 58
UNATTENDED = "no process runs it; it goes on with the next client of the same configuration, or push or pull it again"
STYLES = {"completed": "green", "failed": "red", "stale": "red", "cancelled": "yellow", "running": "cyan"}


def add_arguments(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "transfers",
        usage="remote-sandbox-mcp transfers [ACTION [ID]] [--limit N] [--json]",
        description="Shows the transfers of the last two weeks that agents or --background have started. `wait` ends "
        "with 0 when the transfer has completed without a problem, else with 1; Ctrl-C stops only the waiting.",
    )
    text = "list (the default), show, wait, cancel or log"
    parser.add_argument("action", nargs="?", choices=ACTIONS, default="list", metavar="ACTION", help=text)
    parser.add_argument("id", nargs="?", default="", metavar="ID", help="the id that push, pull or list shows")
    parser.add_argument("--limit", type=int, metavar="N", help=f"rows ({LISTED}), or lines of a log ({LOGGED})")
    add_json(parser, help="for programs: what check_file_transfer_task returns")


@with_app
async def run(app: App, options: argparse.Namespace) -> int:
    actions = {"list": _list, "show": _show, "wait": _wait, "cancel": _cancel, "log": _log}
    return await actions[options.action](app, _checked(options))


def _checked(options: argparse.Namespace) -> argparse.Namespace:
    if options.limit is not None:
        in_range("--limit", options.limit, 1, 100_000)
    if options.action != "list" and not options.id:
        raise BadArgument(f"whose? remote-sandbox-mcp transfers {options.action} ID; without words it lists them")
    if options.action == "list" and options.id:
        raise BadArgument("list takes no id; remote-sandbox-mcp transfers show ID tells of one")
    return options


async def _list(app: App, options: argparse.Namespace) -> int:
    found = await app.transfers.background.list(options.limit or LISTED)
    stale = [await app.transfers.background.is_stale(transfer) for transfer in found]
    if options.json:
        print_json({"transfers": [_fields(*pair) for pair in zip(found, stale, strict=True)]})
        return 0
    page = Page()
    if not found:
        page.print("No transfers yet; push and pull begin one with --background.")
        return 0
    room = page.console.width - OTHER_COLUMNS
    rows = (_row(*pair, room) for pair in zip(found, stale, strict=True))
    page.table(("id", "status", "done", "rate", "age", "from -> to"), rows)
    return 0


def _row(transfer: Transfer, stale: bool, room: int) -> tuple[Text | str, ...]:
    status = "stale" if stale else transfer.status
    age = ago(time.time() - transfer.created)
    done, rate = _done(transfer, stale)
    # Both ends on one line, or each on its own.
    each = (room - 4) // 2 if room > 40 else room - 3
    way = f"{_end(transfer.order.source, each)} -> {_end(transfer.order.target, each)}"
    return str(transfer.number), styled((status, STYLES.get(status, ""))), done, rate, age, way


def _end(place: Place, room: int) -> str:
    sandbox = f"{place.sandbox}:" if place.sandbox else ""
    return sandbox + shorten(one_line(place.path), max(12, room - len(sandbox)))


def _done(transfer: Transfer, stale: bool) -> tuple[str, str]:
    """Amount and rate."""
    if outcome := transfer.outcome:
        return size(outcome.bytes), ""
    headway = transfer.headway
    if not headway or not headway.files_total:
        # Before the plan is made there are no totals, only the phase.
        return headway.phase if headway and not transfer.is_over else "", ""
    is_moving = headway.rate and not transfer.is_over and not stale
    return f"{percent(headway)} of {size(headway.bytes_total)}", f"{size(headway.rate)}/s" if is_moving else ""


def _fields(transfer: Transfer, stale: bool) -> dict[str, Any]:
    """The fields of check_file_transfer_task, plus those that its caller knows."""
    ends = {"source": plain_text(str(transfer.order.source)), "target": plain_text(str(transfer.order.target))}
    return transfer_fields(transfer, stale) | ends | {"created": transfer.created, "log_file": transfer.log_file}


async def _show(app: App, options: argparse.Namespace) -> int:
    transfer = await app.transfers.background.check(options.id)
    stale = await app.transfers.background.is_stale(transfer)
    if options.json:
        _print_json(app, transfer, stale)
        return 0
    Page().facts(_facts(transfer, stale))
    return 0


def _print_json(app: App, transfer: Transfer, stale: bool) -> None:
    tail = "\n".join(app.transfers.background.log_tail(transfer, LOG_TAIL))
    print_json(_fields(transfer, stale) | ({"log_tail": tail} if tail else {}))


def _facts(transfer: Transfer, stale: bool) -> Iterator[tuple[str, Text | str]]:
    status = "stale" if stale else transfer.status
    yield "id", str(transfer.number)
    yield "status", styled((status, STYLES.get(status, "")), (f": {UNATTENDED}" if stale else "", ""))
    yield "from", one_line(str(transfer.order.source))
    yield "to", one_line(str(transfer.order.target))
    yield from ((name, text) for name, text in _news(transfer, stale) if text)
    yield "began", moment(transfer.created)
    if transfer.ended:
        yield "ended", moment(transfer.ended)
    yield "log", transfer.log_file


def _news(transfer: Transfer, stale: bool) -> Iterator[tuple[str, str]]:
    """Progress or result."""
    if transfer.outcome:
        yield "result", "\n".join(outcome_lines(transfer.outcome, transfer.order))
        problems = transfer.outcome.problems
        yield "problems", "\n".join(f"{one_line(each.path)}: {one_line(each.reason)}" for each in problems)
        return
    headway = transfer.headway
    left = f"{clock(headway.left_s)} left" if headway and headway.left_s and not transfer.is_over and not stale else ""
    yield "done", ", ".join(filter(None, (*_done(transfer, stale), left)))
    yield "error", one_line(transfer.error)


async def _wait(app: App, options: argparse.Namespace) -> int:
    text = f"{options.id} goes on; remote-sandbox-mcp transfers cancel {options.id} ends it"
    return await until_stopped(_wait_for(app, options), text)


async def _wait_for(app: App, options: argparse.Namespace) -> int:
    with Bar() as bar:
        while True:
            transfer = await app.transfers.background.check(options.id, wait_s=ASKED_EVERY_S)
            stale = await app.transfers.background.is_stale(transfer)
            # No process runs a stale transfer, so its end would be waited for in vain.
            if transfer.is_over or stale:
                break
            if transfer.headway:
                bar.hear(transfer.headway)
    if options.json:
        _print_json(app, transfer, stale)
    else:
        _print_end(transfer, stale)
    # For scripts: problems with single files are a failure, too.
    return 0 if transfer.outcome and not transfer.outcome.problem_count else 1


def _print_end(transfer: Transfer, stale: bool) -> None:
    if transfer.outcome:
        show_outcome(transfer.outcome, transfer.order, False)
    else:
        why = UNATTENDED if stale else transfer.error
        status = "is stale" if stale else f"was {transfer.status}" if transfer.status == "cancelled" else "failed"
        complain(f"{transfer.number} {status}{f': {why}' if why else ''}")


async def _cancel(app: App, options: argparse.Namespace) -> int:
    done = await app.transfers.background.cancel(options.id)
    if options.json:
        print_json(cancelled_fields(done))
    elif done.error:
        complain(done.error)
    elif done.already_finished:
        say(f"{options.id} was over already: {done.transfer.status}")
    else:
        say(f"{options.id} cancelled; what has arrived stays, all else is as it was")
    return 1 if done.error else 0


async def _log(app: App, options: argparse.Namespace) -> int:
    transfer = await app.transfers.background.check(options.id)
    lines = [*app.transfers.background.log_tail(transfer, options.limit or LOGGED)]
    if options.json:
        print_json({"task_id": transfer.number, "log_file": transfer.log_file, "log": lines})
    else:
        say(*lines)
    return 0
