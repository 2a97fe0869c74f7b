"""`pull`: makes a file or folder here like one on a sandbox."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from .syncing import add_options, carry_out
from .verb import with_app

if TYPE_CHECKING:
    from ..app import App
    from ..core.sync.transfer import Place


def add_arguments(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "pull",
        usage="remote-sandbox-mcp pull [SANDBOX:]REMOTE LOCAL [options]",
        description="Makes LOCAL like REMOTE: what differs in size or time is fetched, with modes and times. "
        "LOCAL may be SANDBOX:PATH, too. After an interruption, the same command continues where it stopped.",
    )
    parser.add_argument("remote", metavar="REMOTE", help="the source: a path in the sandbox, or SANDBOX:PATH")
    parser.add_argument("local", metavar="LOCAL", help="a file or folder here")
    add_options(parser)


async def run(options: argparse.Namespace) -> int:
    return await with_app(options, lambda app: carry_out(app, options, *ends(app, options)))


def ends(app: App, options: argparse.Namespace) -> tuple[Place, Place]:
    place = app.transfers.place
    return place(options.remote, sandbox=options.sandbox, free=True), place(options.local, sandbox=None, free=True)
