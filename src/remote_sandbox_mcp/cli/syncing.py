"""`push` and `pull`: make a file or folder on a sandbox like one here, or the other way round."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..core.errors import BadArgument, Unreachable
from ..core.sync.plan import Plan, check_deletion
from ..core.sync.transfer import DEFAULT_EXCLUDES, Headway, Order, Outcome
from ..services.hub_contact.asking import leave_transfers
from ..services.hub_contact.place import NoHub
from . import streams
from .bar import Bar
from .render import count
from .summary import show_outcome, show_plan, show_started
from .verb import add_json, complain, with_app

if TYPE_CHECKING:
    from ..app import App
    from ..services.sync.engine import Synchronization

GOES_ON = "the same command, given again, goes on from there"
# How long the hub may take: it may have to be started first, on a busy machine.
LEAVING_S = 20.0
NOT_TAKEN = "it has another configuration than the one in use here"
EXIT_CODES = (
    "Ends with 0 when all is copied, 1 when some entries were not (each is named), 2 when it failed as a whole, "
    "255 without a connection, 130 after Ctrl-C."
)
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
            epilog=EXIT_CODES,
        )
        role = "source" if source == "remote" else "target"
        told = {"local": "a file or folder here", "remote": f"the {role}: a path in the sandbox, or SANDBOX:PATH"}
        for end in (source, target):
            parser.add_argument(end, metavar=end.upper(), help=told[end])
        _add_options(parser)


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--sandbox", metavar="NAME", default="", help="the sandbox of REMOTE (default: the default sandbox)")
    add("--delete", action="store_true", help="delete at the target what the source lacks, but nothing excluded")
    add("--exclude", action="append", default=[], metavar="PATTERN", help="exclude what this .gitignore line matches")
    add("--exclude-file", metavar="FILE", default="", help="a file with such .gitignore lines")
    add("--no-default-excludes", action="store_true", help=f"also copy {', '.join(DEFAULT_EXCLUDES)}")
    add("--gitignore", action="store_true", help="follow the .gitignore files in the source")
    add("--checksum", action="store_true", help="compare content, not size and time")
    add("--yes", action="store_true", help="delete without asking, even in the home folder or from an empty source")
    add_json(parser, help="for programs: what the sync tools return")
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--dry-run", action="store_true", help="only show what would be done, and why")
    ways.add_argument("--background", action="store_true", help="let the hub copy in the background; see transfers")


@with_app
async def run(app: App, options: argparse.Namespace) -> int:
    order = make_order(app, options)
    if options.background:
        return await _leave(app, order, options.json)
    work = _show(app, order, options.json) if options.dry_run else _sync(app, order, options.json)
    return await until_stopped(work, f"stopped; {GOES_ON}")


def make_order(app: App, options: argparse.Namespace) -> Order:
    """Raises BadArgument."""
    sandboxes = {"local": None, "remote": options.sandbox}
    source, target = (
        app.transfers.place(getattr(options, end), sandbox=sandboxes[end], free=True) for end in WAYS[options.verb][:2]
    )
    return Order(
        source=source,
        target=target,
        excludes=app.transfers.rules(options.exclude, options.exclude_file, free=True),
        default_excludes=not options.no_default_excludes,
        respect_gitignore=options.gitignore,
        checksum=options.checksum,
        delete_extras=options.delete,
        confirmed=options.yes,
        by_command_line=True,
    )


async def until_stopped(work: Coroutine[Any, Any, int], message: str) -> int:
    """Run the work and return its exit code; a signal cancels it, and then `told` is printed."""
    task = asyncio.ensure_future(work)
    async with streams.stopped_by_signals(task) as caught:
        try:
            return await task
        except asyncio.CancelledError:
            if not caught:
                raise
            complain(message)
            return 128 + caught[0]


async def _leave(app: App, order: Order, as_json: bool) -> int:
    """Leave the sync to the hub, which runs it in the background."""
    transfer, why = await app.transfers.queue(order), ""
    try:
        if streams.caller().app:
            # This is the hub.
            await app.transfers.take_up()
        else:
            config = app.jobs.config_file
            why = (await asyncio.to_thread(leave_transfers, config, LEAVING_S)).get("trouble") or NOT_TAKEN
    except (OSError, NoHub, ValueError) as problem:
        why = getattr(problem, "strerror", None) or str(problem)
    transfer = await app.transfers.background.check(transfer.id)
    # No process has taken it: without this it would wait in the list for ever.
    if transfer.status == "queued":
        transfer = await app.transfers.background.fail(transfer.id, f"unable to leave it to the hub: {why}")
    show_started(transfer, as_json)
    return 1 if transfer.error else 0


async def _show(app: App, order: Order, as_json: bool) -> int:
    with Bar():
        # Confirmed, because a preview deletes nothing.
        job = await app.transfers.preview(replace(order, confirmed=True))
    show_plan(job, as_json)
    return 1 if job.tally.problem_count else 0


async def _sync(app: App, order: Order, as_json: bool) -> int:
    # Planned as if deletions were confirmed; the question can then say how many there are.
    with Bar() as bar:
        job = await app.transfers.syncs.prepare(replace(order, confirmed=True), bar.hear)
        try:
            order = await _agreed(job, order, bar)
        except BaseException:
            job.release()
            raise
        bar.hear(Headway("sending", files_total=len(job.plan.send), bytes_total=job.plan.bytes))
        outcome = await _run(app, order, bar, job)
    show_outcome(outcome, order, as_json)
    return 1 if outcome.problem_count else 0


async def _run(app: App, order: Order, bar: Bar, job: Synchronization) -> Outcome:
    """Run the sync to its end, reconnecting after cuts. Raises SandboxError."""
    try:
        return await app.transfers.syncs.run(order, bar.hear, job)
    except Unreachable as problem:
        raise problem.with_more(GOES_ON) from None


async def _agreed(job: Synchronization, order: Order, bar: Bar) -> Order:
    """The order, confirmed by the user if it would delete dangerously much. Raises BadArgument without that."""
    assert job.source_tree is not None
    assert job.target_tree is not None
    try:
        check_deletion(order, job.source_tree, job.target_tree)
        return order
    except BadArgument as refusal:
        # Without a terminal there is no person to ask; --yes confirms in advance.
        if not (streams.stdin().isatty() and streams.stderr().isatty()):
            raise
        danger = refusal.found
    with bar.aside():
        if not await _agrees(job.plan, danger):
            raise BadArgument("nothing was done")
    return replace(order, confirmed=True)


async def _agrees(plan: Plan, why: str) -> bool:
    """Ask whether to delete; without anything to delete, the answer is yes."""
    files, folders = len(plan.clear) + len(plan.delete_files), len(plan.delete_folders)
    if not files + folders:
        return True
    complain(why)
    return await asked(f"Delete {count(files, 'file')} and {count(folders, 'folder')} there? [y/N] ")


async def asked(question: str) -> bool:
    """Whether the person at the terminal says yes."""
    print(question, end="", file=streams.stderr(), flush=True)
    answer = ""
    try:
        answer = await _typed_line()
    finally:
        # After Ctrl-C or Ctrl-D the cursor is still on the line of the question.
        if not answer:
            print(file=streams.stderr())
    return answer.strip().lower() in ("y", "yes")


async def _typed_line() -> str:
    """Read a line from the terminal; not in a thread, which could not be stopped."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(streams.stdin(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(streams.stdin())
    return streams.stdin().readline()
