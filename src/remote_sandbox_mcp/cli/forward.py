"""`forward`: brings a port of a sandbox to this computer, until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING, Any

from .render import print_json
from .syncing import until_stopped
from .verb import add_json, complain, say, with_app

if TYPE_CHECKING:
    from ..app import App
    from ..core.sandboxes.port import Forward

# The person at the terminal may choose any port; forward_ports of the configuration is for agents.
ANY_PORT = ("1-65535",)


def add_arguments(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "forward",
        description="Prints the address on 127.0.0.1 that leads to the port, and keeps it open until Ctrl-C. After a "
        "lost connection, the next one through it opens another.",
    )
    parser.add_argument("sandbox", metavar="SANDBOX", help="a machine, or the id of a disposable sandbox")
    parser.add_argument("port", type=int, metavar="PORT", help="the port in the sandbox")
    help_text = "the port here (default: the same if it is free, else any)"
    parser.add_argument("--local-port", type=int, default=0, metavar="N", help=help_text)
    add_json(parser)


@with_app
async def run(app: App, options: argparse.Namespace) -> int:
    from ..services.apps.forwards import Forwards

    # Of its own: it ends with this verb, and the ports that agents may choose stay as they are.
    forwards = Forwards(app.fleet.get, ANY_PORT)
    name = app.fleet.member(options.sandbox).name
    try:
        return await _hold(await forwards.open(name, options.port, local_port=options.local_port), options)
    finally:
        await forwards.close()


async def _hold(opened: Forward, options: argparse.Namespace) -> int:
    if options.json:
        from ..views.app_results import forward_fields

        print_json(forward_fields(opened))
    else:
        say(opened.url)
        if not opened.answers:
            complain(f"nothing listens on port {opened.port} yet; the address works as soon as something does")
    # The event never comes.
    return await until_stopped(asyncio.Event().wait(), f"{opened.url} is closed")
