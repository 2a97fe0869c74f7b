"""`link`, `unlink` and `workspaces`: bind a folder here to a folder of a sandbox, and show how both sides stand."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..core.errors import BadArgument
from ..core.texts.text import counted, size
from ..core.workspaces.workspace import DEFAULT_PULL, Linked, LinkOrder, Preview, Rules, WorkspaceState, kept_there
from ..services.session import absolute, client_folder
from ..services.workspaces.service import WorkspaceCall
from ..views.results import plain_text
from . import streams
from .bar import Bar
from .render import Page, moment, one_line, print_json, styled
from .syncing import asked, until_stopped
from .verb import add_json, complain, complain_plainly, say, with_app

if TYPE_CHECKING:
    from ..app import App
    from ..services.workspaces.trash import Trashed

GOES_ON = "stopped; the same command, given again, goes on from there"
HOW_TO_SEND = "link with --include to send one"
MOST_NAMED = 20
EXIT_CODES = "Ends with 0, with 2 when it failed, 255 without a connection, 130 after Ctrl-C."


def add_arguments(subparsers: Any) -> None:
    _add_link(subparsers)
    _add_unlink(subparsers)
    _add_workspaces(subparsers)


def _add_link(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "link",
        usage="remote-sandbox-mcp link [SANDBOX:REMOTE [FOLDER]] [options]",
        description="Binds FOLDER to a folder of a sandbox. Commands of agents and of `exec` that are started in "
        "FOLDER then run in the sandbox: before a command, changes here are sent; after it, results and changed text "
        "files come back. Shows first what would be sent, and asks. .git, files that .gitignore excludes and files "
        "with names of secrets are not sent.",
        epilog=EXIT_CODES,
    )
    add = parser.add_argument
    parts = "the folder in the sandbox, created if missing (default: that of the accepted .remote-sandbox.toml)"
    add("remote", metavar="SANDBOX:REMOTE", nargs="?", default="", help=parts)
    add("folder", metavar="FOLDER", nargs="?", default="", help="the folder here (default: the current one)")
    add("--exclude", action="append", default=[], metavar="PATTERN", help="exclude what this .gitignore line matches")
    add("--include", action="append", default=[], metavar="PATTERN", help="send files in spite of their names: .env")
    add("--pull", action="append", default=[], metavar="PATTERN", help="also bring back files that match: /plots/**")
    add("--yes", action="store_true", help="do not ask, however much would be sent")
    add("--dry-run", action="store_true", help="only show what would be sent")
    add_json(parser)


def _add_unlink(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "unlink",
        description="Ends the link of a folder. Nothing is deleted on either side.",
        epilog=EXIT_CODES,
    )
    parser.add_argument("folder", metavar="FOLDER", nargs="?", default="", help="(default: the current one)")
    add_json(parser)


def _add_workspaces(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "workspaces",
        description="Lists the linked folders and their state. --keep-local and --keep-remote decide conflicts of "
        "the current folder's workspace. Files that a machine has deleted or changed stay in the trash for 30 days.",
        epilog="Ends with 0, with 1 if there is a conflict or a side cannot be reached, with 2 when it failed.",
    )
    add = parser.add_argument
    add("--keep-local", nargs="+", default=[], metavar="PATH", help="decide a conflict: keep the file here")
    add("--keep-remote", nargs="+", default=[], metavar="PATH", help="decide a conflict: keep the file there")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    trash = actions.add_parser("trash", help="list files as they were before a machine deleted or changed them")
    trash.add_argument("folder", metavar="FOLDER", nargs="?", default="", help="only of this folder (default: of all)")
    trash.add_argument("--empty", action="store_true", help="delete them for good")
    restore = actions.add_parser("restore", help="put the newest version back from the trash")
    restore.add_argument("paths", metavar="PATH", nargs="+", help="a file, or a folder with missing files")
    restore.add_argument("--force", action="store_true", help="replace an existing file, which then goes to the trash")
    add_json(parser, trash, restore)


@with_app
async def run(app: App, options: argparse.Namespace) -> int:
    verbs: dict[str, Callable[[App, argparse.Namespace], Coroutine[Any, Any, int]]]
    verbs = {"link": _link, "unlink": _unlink, "workspaces": _workspaces, "trash": _trash, "restore": _restore}
    verb = verbs[getattr(options, "action", None) or options.verb]
    return await until_stopped(verb(app, options), GOES_ON)


# Linking


async def _link(app: App, options: argparse.Namespace) -> int:
    order = make_order(app, options)
    with Bar() as bar:
        preview = await app.workspaces.preview(order)
        if options.dry_run:
            _show_preview(preview, options.json)
            return 0
        with bar.aside():
            is_shown = await _agree(preview, options)
        linked = await app.workspaces.link(replace(order, confirmed=True), bar.hear)
    _show_linked(linked, options.json, is_shown)
    return 1 if linked.moved.conflicts else 0


def make_order(app: App, options: argparse.Namespace) -> LinkOrder:
    """Raises UnknownSandbox."""
    folder = os.path.realpath(absolute(options.folder or "."))
    target = app.fleet.address_in(options.remote)
    if options.remote and not target:
        raise BadArgument(f"{options.remote} names no sandbox; write SANDBOX:FOLDER, such as gpu1:project")
    sandbox, remote = (target.sandbox, target.path) if target else app.workspaces.named(folder)
    if not sandbox:
        raise BadArgument(
            f"where {folder} is to be linked to is not said; write SANDBOX:FOLDER, such as gpu1:project, or accept "
            "a .remote-sandbox.toml with a sandbox in it by: remote-sandbox-mcp config allow"
        )
    linked = next((each for each in app.workspaces.all() if each.folder == folder), None)
    before = app.workspaces.given(linked) if linked else Rules()
    rules = replace(
        before,
        excludes=_or(options.exclude, before.excludes),
        includes=_or(options.include, before.includes),
        pull=(*DEFAULT_PULL, *options.pull) if options.pull else before.pull,
    )
    name = app.fleet.member(sandbox).name
    return LinkOrder(folder=folder, sandbox=name, remote=remote, rules=rules, free=True)


def _or(given: Sequence[str], before: Sequence[str]) -> tuple[str, ...]:
    """Return the values given now, or else those given when it was linked before."""
    return tuple(given) or tuple(before)


async def _agree(preview: Preview, options: argparse.Namespace) -> bool:
    """Show what would be sent, and ask; returns whether it was shown. Raises BadArgument without a yes."""
    if options.yes:
        return False
    if streams.stdin().isatty() and streams.stderr().isatty():
        complain_plainly(*preview.lines(HOW_TO_SEND))
        if not await asked("Link it? [y/N] "):
            raise BadArgument("nothing was done")
        return True
    if preview.is_large:
        # Without a terminal there is no person to ask.
        raise BadArgument(f"{preview.first_line} are much to send, so nothing was done; add --yes, or --exclude some")
    return False


def _show_preview(preview: Preview, as_json: bool) -> None:
    if as_json:
        from dataclasses import asdict

        return print_json(asdict(preview))
    first, *others = preview.lines(HOW_TO_SEND)
    say(*map(one_line, (f"Would send {first}", *others)))


def _show_linked(linked: Linked, as_json: bool, is_shown: bool) -> None:
    if as_json:
        from ..views.sync_results import linked_fields

        return print_json(linked_fields(linked))
    first, moved = f"Linked {linked.workspace}", linked.moved.line()
    unsaid = [] if is_shown else linked.preview.lines(HOW_TO_SEND)[1:]
    say(*map(one_line, filter(None, (first, moved and moved[0].upper() + moved[1:], *unsaid))))


# Ending one


async def _unlink(app: App, options: argparse.Namespace) -> int:
    gone = await app.workspaces.unlink(absolute(options.folder or "."))
    if options.json:
        from ..views.sync_results import unlinked_fields

        print_json(unlinked_fields(gone))
    else:
        say(one_line(f"Unlinked {gone.workspace}; both sides keep their files."))
        if gone.left:
            complain(one_line(f"{gone.note()}."))
    return 0


# Showing them


async def _workspaces(app: App, options: argparse.Namespace) -> int:
    if options.keep_local or options.keep_remote:
        await _decide(app, options)
    workspaces = app.workspaces.all()
    states = await asyncio.gather(*map(app.workspaces.state, workspaces))
    if options.json:
        from ..views.sync_results import state_fields

        print_json({"workspaces": [state_fields(state) for state in states]})
    else:
        _show_states(states)
    return 1 if any(state.conflicts or state.trouble for state in states) else 0


async def _decide(app: App, options: argparse.Namespace) -> None:
    """Raises BadArgument where the current folder is not linked."""
    if not (workspace := app.workspaces.find(client_folder())):
        raise BadArgument("the current folder is not linked; go to the folder whose conflicts you want to decide")
    moved = await app.workspaces.decide(workspace, _absolute(options.keep_local), _absolute(options.keep_remote))
    if line := moved.line():
        complain(f"workspace: {line}")


def _absolute(paths: Sequence[str]) -> list[str]:
    """Paths as a shell completes them: relative to the current folder."""
    return [absolute(path) for path in paths]


def _show_states(states: Sequence[WorkspaceState]) -> None:
    page = Page()
    rows = []
    for state in states:
        is_bad, where = bool(state.conflicts or state.trouble), state.workspace
        mark = page.mark("failed" if state.trouble else "warning" if is_bad else "ok")
        place = styled((where.folder, "bold"), (f" = {where.sandbox}:{where.remote}", ""))
        rows.append((mark, place, styled((state_line(state), "yellow" if is_bad else "dim"))))
    page.rows(rows, indent=0)
    if not states:
        page.print("No folder is linked; remote-sandbox-mcp link SANDBOX:FOLDER links the current one.")
    if any(state.conflicts for state in states):
        page.print(styled(("decide by: remote-sandbox-mcp workspaces --keep-local PATH --keep-remote PATH", "dim")))


def state_line(state: WorkspaceState) -> str:
    """Describe how a workspace stands, in words."""
    if state.trouble:
        return one_line(state.trouble)
    parts = [f"in conflict: {', '.join(map(one_line, state.conflicts[:MOST_NAMED]))}"] if state.conflicts else []
    parts += [f"{counted(state.to_send, 'change')} to send"] if state.to_send else []
    parts += [f"{counted(state.to_come, 'change')} to come"] if state.to_come else []
    parts = parts or ["in step"]
    parts += [one_line(kept_there(state.kept_there, state.kept_there_count))] if state.kept_there else []
    return "; ".join(parts)


# The trash


async def _trash(app: App, options: argparse.Namespace) -> int:
    folder, trash = _real(options.folder) if options.folder else "", app.workspaces.trash
    if options.empty:
        gone = await asyncio.to_thread(trash.empty, folder)
        print_json({"deleted_bytes": gone}) if options.json else say(f"Deleted {size(gone)} for good.")
        return 0
    found = await asyncio.to_thread(trash.all, folder)
    if options.json:
        print_json({"trash": list(map(_trashed_fields, found))})
        return 0
    page = Page()
    rows = [
        (styled((moment(each.at), "dim")), styled((size(each.bytes), "")), styled((one_line(each.place), "bold")))
        for each in found
    ]
    page.rows(rows, indent=0)
    if found:
        page.print(styled(("put one back by: remote-sandbox-mcp workspaces restore PATH", "dim")))
    else:
        page.print("Nothing is in the trash.")
    return 0


async def _restore(app: App, options: argparse.Namespace) -> int:
    back = []
    for path in options.paths:
        back += await asyncio.to_thread(app.workspaces.trash.restore, _real(path), force=options.force)
    if options.json:
        print_json({"restored": list(map(_trashed_fields, back))})
    else:
        say(*(one_line(f"Restored {each.place}") for each in back) if back else ("Nothing is missing.",))
    return 0


def _trashed_fields(each: Trashed) -> dict[str, Any]:
    return {"path": plain_text(each.place), "bytes": each.bytes, "at": moment(each.at)}


def _real(path: str) -> str:
    """An absolute path without links in the folders on its way."""
    above, name = os.path.split(absolute(path))
    return os.path.join(os.path.realpath(above), name)


# Commands in one


def at_hand(app: App, sandbox: str) -> WorkspaceCall | None:
    """A call in the workspace that the current folder is in, unless another sandbox is named."""
    folder = client_folder()
    found = app.workspaces.find(folder)
    is_meant = found and (not sandbox or app.fleet.member(sandbox).name == found.sandbox)
    return WorkspaceCall(app.workspaces, found, folder) if found and is_meant else None
