"""`push` and `pull`: make a file or folder on a sandbox like one here, or the other way round."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from .syncing import add_options, carry_out
from .verb import with_app

if TYPE_CHECKING:
    from ..app import App

# The source and the target of each verb, and what happens to what differs.
WAYS = {"push": ("local", "remote", "sent"), "pull": ("remote", "local", "fetched")}
SHOWN = {"local": "LOCAL", "remote": "[SANDBOX:]REMOTE"}


def add_arguments(subparsers: Any) -> None:
    for verb, (source, target, done) in WAYS.items():
        parser = subparsers.add_parser(
            verb,
            usage=f"remote-sandbox-mcp {verb} {SHOWN[source]} {SHOWN[target]} [options]",
            description=f"Makes {target.upper()} like {source.upper()}: what differs in size or time is {done}, with "
            "modes and times. LOCAL may be SANDBOX:PATH, too. After an interruption, the same command continues where "
            "it stopped.",
        )
        role = "source" if source == "remote" else "target"
        told = {"local": "a file or folder here", "remote": f"the {role}: a path in the sandbox, or SANDBOX:PATH"}
        for end in (source, target):
            parser.add_argument(end, metavar=end.upper(), help=told[end])
        add_options(parser)


@with_app
async def run(app: App, options: argparse.Namespace) -> int:
    sandboxes = {"local": None, "remote": options.sandbox}
    source, target = (
        app.transfers.place(getattr(options, end), sandbox=sandboxes[end], free=True) for end in WAYS[options.verb][:2]
    )
    return await carry_out(app, options, source, target)
