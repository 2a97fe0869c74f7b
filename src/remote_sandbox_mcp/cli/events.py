"""`events`: what happened to watched jobs, newest last."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..core.task import event_end, event_word
from ..views.app_results import dated
from .render import Page, is_read, one_line, styled, write
from .verb import add_json, complain, with_app

if TYPE_CHECKING:
    from ..app import App
    from ..core.jobs.watch import Event

LISTED = 50
CHECK_S, MOST_AT_ONCE = 0.5, 1_000
STYLES = {"succeeded": "green", "running restored": "green", "resume started": "cyan"}


def add_arguments(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "events",
        description="Events of watched jobs: interrupted, resumed, succeeded, failed, a machine that does not answer.",
    )
    parser.add_argument(
        "-n", "--lines", type=int, default=LISTED, metavar="N", help=f"the last N events (default: {LISTED})"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="also show new events as they happen, until Ctrl-C")
    add_json(parser, help="for programs: one JSON object on each line")


@with_app
async def run(app: App, options: argparse.Namespace) -> int:
    exists, events = app.jobs.registry.exists, app.jobs.watching.events
    # At least one, which tells where to go on.
    found = await events(limit=max(1, options.lines)) if exists() else ()
    last = max((event.id for event in found), default=0)
    if not found and not options.follow and not options.json:
        complain("no events yet; jobs that are watched have them")
    _print(found[len(found) - max(0, options.lines) :] if options.lines < len(found) else found, options.json)
    while options.follow and is_read():
        await asyncio.sleep(CHECK_S)
        found = await events(after=last, limit=MOST_AT_ONCE) if exists() else ()
        last = max([last, *(event.id for event in found)])
        _print(found, options.json)
    return 0


def _print(found: Sequence[Event], as_json: bool) -> None:
    if as_json:
        write("".join(f"{json.dumps(fields(event))}\n" for event in found))
    elif found:
        Page().rows(
            [
                (
                    styled((time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.created)), "dim")),
                    styled((word := event_word(event), STYLES.get(word, "yellow"))),
                    one_line(event.summary),
                )
                for event in found
            ],
            indent=0,
        )


def fields(event: Event) -> dict[str, Any]:
    """An event for programs, as list_background_watch_events names its parts."""
    fields = {"id": event.id, "watch_id": event.watch_id, "event_type": event.type.value, "summary": event.summary}
    return {**fields, **event_end(event), **dated(created=event.created), "payload": dict(event.payload)}
