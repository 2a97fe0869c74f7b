"""`delete`: ends disposable sandboxes, with all that runs in them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..core.errors import SandboxError
from .render import print_json
from .verb import add_json, code_of, complain, say, with_app
from .words import as_verbs

if TYPE_CHECKING:
    from ..app import App


def add_arguments(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "delete",
        description="Ends disposable sandboxes and everything that runs in them, and removes their files. If one "
        "cannot be deleted, the others still are. The exit code is 0 if all are gone.",
    )
    parser.add_argument("ids", nargs="+", metavar="ID", help="ids or names")
    add_json(parser)


@with_app
async def run(app: App, options: argparse.Namespace) -> int:
    deleted, problems, code = [], [], 0
    for name in options.ids:
        try:
            gone = await app.disposables.service.delete(name)
            await app.apps.forget(gone.id)
            deleted.append({"sandbox_id": gone.id, "status": "deleted"})
        except SandboxError as problem:
            problems.append({"sandbox_id": name, "error": as_verbs(str(problem)), "code": problem.code})
            code = code or code_of(problem)
    _print_result(deleted, problems, options.json)
    return code


def _print_result(deleted: list[dict[str, str]], problems: list[dict[str, str]], as_json: bool) -> None:
    if as_json:
        print_json({"deleted": deleted} | ({"problems": problems} if problems else {}))
        return
    say(*(f"{it['sandbox_id']} is deleted" for it in deleted))
    complain(*(it["error"] for it in problems))
