"""`allow` and `disallow`: which places of this computer agents may use besides their project."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any

from ..config.allowances import USUAL_S, Allowance, allowances
from ..config.load import load
from ..config.schema import Configuration
from ..core.errors import BadArgument
from ..services.gate import allowing
from ..services.gate.allowing import LONGEST_S, until, uses
from ..services.gate.paths import Gate, private_files
from .render import Page, one_line, print_json, styled
from .verb import add_json, complain, fail, say

UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
BY = "command line"
NOTHING = (
    "Agents may use the folder that their client was started in, and nothing else; remote-sandbox-mcp allow PATH "
    "allows more."
)
# Exit code where there was nothing to take back.
NOT_THERE = 1


def add_arguments(subparsers: Any) -> None:
    allow = subparsers.add_parser(
        "allow",
        description="Lets agents use a folder or file of this computer besides their project, and lists what they may "
        "use. It takes effect at once, also for running clients.",
    )
    allow.add_argument("path", nargs="?", metavar="PATH", help="a folder or file; without it, lists what is allowed")
    allow.add_argument("--read", action="store_true", help="only for reading")
    time = allow.add_mutually_exclusive_group()
    time.add_argument("--for", dest="for_s", type=duration, metavar="TIME", help="30m, 2h, 1d or 1w (default: 8h)")
    time.add_argument("--always", action="store_true", help="until it is taken back")
    disallow = subparsers.add_parser(
        "disallow",
        description="Takes back what `allow`, a form or the page has allowed for a folder and everything in it.",
    )
    disallow.add_argument("path", metavar="PATH", help="a folder or file that `allow` lists")
    add_json(allow, disallow)


async def run(options: argparse.Namespace) -> int:
    """Raises BadArgument, ConfigError."""
    configuration = load(options.config)
    if options.verb == "disallow":
        return _disallow(options.path, configuration, options.json)
    if options.path is not None:
        return _allow(options, configuration)
    if options.read or options.always or options.for_s is not None:
        raise BadArgument("--read, --for and --always go with the PATH that is to be allowed")
    return _list(configuration, options.json)


def duration(word: str) -> float:
    """Read a time such as 30m, 2h, 1d or 1w, in seconds."""
    found = re.fullmatch(r"([0-9]{1,6})([mhdw])", word.strip())
    seconds = float(found[1]) * UNITS[found[2]] if found else 0.0
    if not 0 < seconds <= LONGEST_S:
        raise argparse.ArgumentTypeError("must be a time such as 30m, 2h, 1d or 1w, up to a year; or pass --always")
    return seconds


def _allow(options: argparse.Namespace, configuration: Configuration) -> int:
    for_s = None if options.always else options.for_s or USUAL_S
    gate = Gate(configuration.settings, private_files(configuration))
    given = allowing.allow(gate, options.path, writing=not options.read, for_s=for_s, by=BY)
    if options.json:
        print_json(allowing.fields(given.allowance) | {"warnings": given.warnings})
        return 0
    say(one_line(allowing.sentence(given.allowance)))
    complain(*map(one_line, given.warnings))
    return 0


def _disallow(path: str, configuration: Configuration, as_json: bool) -> int:
    try:
        gone = allowing.take_back(path, configuration.settings)
    except BadArgument as problem:
        return fail(problem, as_json, NOT_THERE)
    if as_json:
        print_json({"taken_back": [allowing.fields(it) for it in gone.allowances], "still": gone.still})
        return 0
    told = (f"Taken back: agents could {uses(it)} {it.path} {until(it)}." for it in gone.allowances)
    say(*map(one_line, told))
    complain(*filter(None, [one_line(gone.still)]))
    return 0


def _list(configuration: Configuration, as_json: bool) -> int:
    allowed, operators = allowances(), allowing.configured(configuration.settings)
    if as_json:
        from_file = [{**allowing.fields(it), "by": "config.toml", "key": it.by} for it in operators]
        print_json({"allowed": [*map(allowing.fields, allowed), *from_file]})
        return 0
    page = Page()
    page.rows([*_rows(allowed), *_rows(operators, " in config.toml")], indent=0)
    if not (allowed or operators):
        page.print(NOTHING)
    return 0


def _rows(found: Sequence[Allowance], after: str = "") -> list[tuple[Any, ...]]:
    """Rows of the list; the path comes last, where a long one wraps."""

    def by(it: Allowance) -> str:
        return f"{it.by}{after}" + (f", session {it.session}" if it.session else "")

    return [
        (uses(it), until(it), styled((one_line(by(it)), "dim")), styled((one_line(it.path), "bold"))) for it in found
    ]
