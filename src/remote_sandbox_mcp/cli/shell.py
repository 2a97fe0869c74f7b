"""`shell`: an interactive shell in a sandbox, in this terminal."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..core.errors import BadArgument
from ..services.jobs.attach import open_shell
from . import attach, terminal
from .render import print_json
from .verb import add_json, with_app

if TYPE_CHECKING:
    from ..app import App

CUT = "the connection to the shell was cut, and it has ended"


def add_arguments(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "shell",
        description="Opens your login shell in a sandbox, in this terminal: an SSH machine, a container, an allocation "
        "or the local sandbox. The sandbox needs python3. Ends with the shell's exit code, or with 255 when the "
        "connection is cut, which also ends the shell.",
    )
    parser.add_argument("sandbox", metavar="NAME", nargs="?", default="", help="where (default: the default sandbox)")
    add_json(parser, help="for programs: the exit code, printed when the shell has ended")


@with_app
async def run(app: App, options: argparse.Namespace) -> int:
    if not terminal.is_at_hand():
        raise BadArgument("shell needs a terminal; to run a command without one: remote-sandbox-mcp exec -- COMMAND")
    sandbox = await app.fleet.member(options.sandbox).open()
    code = await attach.sit(await open_shell(sandbox, attach.window()), CUT)
    if options.json:
        print_json({"sandbox": sandbox.description.name, "exit_code": code})
    return code
