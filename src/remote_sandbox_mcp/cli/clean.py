"""`clean`: removes what use has left on sandboxes, except what runs."""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..core.errors import SandboxError
from .render import count, print_json
from .verb import add_json, code_of, complain, say, with_app

if TYPE_CHECKING:
    from ..app import App
    from ..services.cleaning import Cleaned, Leftover


def add_arguments(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "clean",
        description="Removes the records of ended commands and jobs, and this program's own files, from your account "
        "on these sandboxes. Everything that runs, waits in a queue or has no record of its end is kept, and so are "
        "your own files and the logs of jobs. The exit code is 0 if all sandboxes were cleaned.",
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help="sandboxes")
    parser.add_argument("--dry-run", action="store_true", help="change nothing, only show")
    add_json(parser)


@with_app
async def run(app: App, options: argparse.Namespace) -> int:
    from ..services.cleaning import clean

    rows, code = [], 0
    for member in app.fleet.distinct(options.names):
        try:
            cleaned = await clean(app.fleet, member.name, is_dry=options.dry_run)
        except SandboxError as problem:
            rows.append({"sandbox": member.name, "error": str(problem), "code": problem.code})
            code = code or code_of(problem)
            if not options.json:
                complain(str(problem))
            continue
        rows.append({"sandbox": member.name, **asdict(cleaned)})
        if not options.json:
            _show(member.name, cleaned, options.dry_run)
    if options.json:
        print_json({"dry_run": options.dry_run, "sandboxes": rows})
    return code


def _show(name: str, cleaned: Cleaned, is_dry: bool) -> None:
    word = "would be removed" if is_dry else "removed"
    say(f"{name}: {word}: {_counts(cleaned.removed) or 'nothing'}")
    # The command that cleans is itself such a run.
    if kept := [it for it in cleaned.kept if it.kind != "run"]:
        say(f"{name}: kept, because they run or have no record of their end: {_counts(kept)}")
        say(*(f"  {it.path}" for it in kept))


def _counts(found: tuple[Leftover, ...] | list[Leftover]) -> str:
    return ", ".join(count(number, kind) for kind, number in Counter(it.kind for it in found).items())
