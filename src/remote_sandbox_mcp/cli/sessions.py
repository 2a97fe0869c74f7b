"""`sessions`: shells and Pythons that keep their state between calls: list them, close one."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from ..core.commands.session_handle import SessionHandle, SessionSeen, read_handle
from ..core.errors import BadArgument
from .render import Page, ago, one_line, print_json, styled
from .verb import add_json, for_each, with_app

if TYPE_CHECKING:
    from rich.text import Text

    from ..app import App

ABSENT = argparse.SUPPRESS
STYLES = {"running": "cyan", "idle": "green", "unknown": "red"}


def add_arguments(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "sessions",
        description="Sessions of exec_bash and run_python, which keep variables, folders and models between calls of "
        "agents. Without an action, they are listed. HANDLE is as the list shows it: shell:NAME or python:NAME.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    listed = actions.add_parser("list", help="list all sessions, the last used first")
    close = actions.add_parser(
        "close",
        help="close sessions; their state is lost",
        description="Closes sessions; their state is lost. If one cannot be closed, the others still are. The exit "
        "code is 0 if all are closed.",
    )
    close.add_argument("handles", nargs="+", metavar="HANDLE", help="shell:NAME or python:NAME")
    for each in (parser, listed, close):
        each.add_argument("--sandbox", metavar="NAME", default=ABSENT, help="on this machine only")
    parser.set_defaults(sandbox="")
    add_json(parser, listed, close)


@with_app
async def run(app: App, options: argparse.Namespace) -> int:
    return await (_close if options.action == "close" else _list)(app, options)


async def _list(app: App, options: argparse.Namespace) -> int:
    found = await app.sessions.list(options.sandbox)
    if options.json:
        from ..views.job_results import session_fields

        print_json({"sessions": [session_fields(seen) for seen in found]})
        return 0
    page = Page()
    if not found:
        page.print("No sessions; exec_bash with session=NAME and run_python begin them.")
        return 0
    page.table(("session", "on", "state", "used", "folder"), map(_row, found))
    page.problems(dict.fromkeys(seen.trouble for seen in found if seen.trouble))
    return 0


def _row(seen: SessionSeen) -> tuple[Text | str, ...]:
    name = f"{seen.handle} (root)" if seen.as_root else str(seen.handle)
    used = f"{ago(time.time() - seen.used)} ago" if seen.used else ""
    state = styled((seen.status, STYLES.get(seen.status, "")))
    return one_line(name), one_line(seen.sandbox), state, used, one_line(seen.folder)


async def _close(app: App, options: argparse.Namespace) -> int:
    async def close(text: str) -> dict[str, str]:
        handle, place = await _place_of(app, read_handle(text), text, options.sandbox)
        seen = await app.sessions.close(handle, place)
        return {"session": text, "sandbox": seen.sandbox}

    return await for_each(options.handles, close, "session", "closed", options.json)


async def _place_of(app: App, handle: SessionHandle | None, text: str, sandbox: str) -> tuple[SessionHandle, str]:
    """The session that is meant, and the sandbox that has it. Raises BadArgument."""
    if handle is None:
        raise BadArgument(f"{text[:80]!r} is no session: it has to be shell:NAME or python:NAME, as the list shows it")
    if sandbox:
        return handle, sandbox
    places = sorted({seen.sandbox for seen in await app.sessions.list() if seen.handle == handle})
    if len(places) > 1:
        raise BadArgument(f"{handle} is on {', '.join(places)}: say which one with --sandbox")
    if not places:
        raise BadArgument(f"there is no session {handle}; remote-sandbox-mcp sessions lists those that there are")
    return handle, places[0]
