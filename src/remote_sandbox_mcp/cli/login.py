"""`login`: logs in to a machine that asks for a code, at this terminal; the hub keeps the connection."""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from typing import Any, TextIO

from ..config.paths import NO_HUB
from ..core.errors import BadArgument, LoginRefused, Unreachable
from ..core.texts.text import harmless
from ..local.asking import KEPT_S
from ..services.hub_contact.asking import HubLogin
from ..services.hub_contact.place import NoHub
from .asker import interruptible
from .render import print_json
from .verb import MISTAKE, NO_CONNECTION, add_json, fail, say

NEEDS_HUB = "login leaves the connection to the hub, and {variable} is set here, so that there is none: unset it"
NEEDS_TERMINAL = "login asks a person, so it needs a terminal; run it in one"
KEPT = "The hub keeps the connection for all sessions, and without any for up to {hours:.0f} hours; hub stop ends it."


def add_arguments(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "login",
        description="Logs in to an SSH machine and asks here for what it asks for, such as a one-time code. The hub "
        "keeps the connection, and all clients with the same configuration use it. What you type is not kept.",
    )
    parser.add_argument("name", metavar="NAME", help="the machine")
    add_json(parser)


async def run(options: argparse.Namespace) -> int:
    if os.environ.get(NO_HUB):
        return fail(BadArgument(NEEDS_HUB.format(variable=NO_HUB)), options.json, MISTAKE)
    if not sys.stdin.isatty():
        return fail(BadArgument(NEEDS_TERMINAL), options.json, MISTAKE)
    try:
        with interruptible():
            end = _log_in(options)
    except (OSError, NoHub, ValueError) as problem:
        why = f"unable to log in to {options.name} by the hub: {getattr(problem, 'strerror', None) or problem}"
        return fail(Unreachable(why), options.json, NO_CONNECTION)
    if trouble := end.get("trouble"):
        return fail(LoginRefused(str(trouble)), options.json, NO_CONNECTION)
    return _print_result(end, options.json)


def _log_in(options: argparse.Namespace) -> dict[str, Any]:
    """Answer the hub's questions; returns how it ended. Raises OSError, NoHub, ValueError."""
    with HubLogin(options.name, options.config) as login:
        while "ask" in (said := login.hear()):
            login.answer(ask(said, sys.stderr if options.json else sys.stdout))
        return said


def ask(said: dict[str, Any], out: TextIO) -> list[str] | None:
    """Ask a person for the answers; None after Ctrl-D, which gives the login up."""
    question = f"{said['host']} asks{f', and says: {note}' if (note := said.get('note')) else ':'}"
    print(harmless(question.encode("utf-8", "surrogateescape")), file=out, flush=True)
    try:
        return [_typed(it["text"], it["is_shown"]) for it in said["ask"]]
    except EOFError:
        return None


def _typed(prompt: str, is_shown: bool) -> str:
    """One answer, hidden unless the machine says that it may be shown. Raises EOFError."""
    if not is_shown:
        return getpass.getpass(f"{prompt} ")
    # Not by input(), which may print it on standard output: that is for the result.
    print(prompt, end=" ", file=sys.stderr, flush=True)
    return input()


def _print_result(end: dict[str, Any], as_json: bool) -> int:
    if as_json:
        print_json({"name": end["name"], "was_open": end["was_open"], "asked": end["asked"]})
        return 0
    if end["was_open"]:
        say(f"{end['name']} was logged in already.")
    else:
        say(f"{end['name']} is logged in{'' if end['asked'] else ', and asked for nothing'}.")
    if end["asked"]:
        say(KEPT.format(hours=KEPT_S / 3600))
    return 0
