"""`watchdog`: what looks after background jobs: run it, install it, show its state."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..config import paths
from ..config.inherited import withdraw
from ..config.original import DATABASE
from ..config.original import notice as original_notice
from ..core.errors import SandboxError
from ..services.watchdog import service
from ..services.watchdog.daemon import AlreadyWatched, take_lock
from ..services.watchdog.service import WatchdogStatus
from .render import Page, ago, print_json
from .verb import add_json, complain, say

# Exit code of a second watchdog, and of `status` where there is none.
TAKEN, NOT_RUNNING = 3, 1
PASSING = "No service manager runs here: it runs while something is watched, and after a restart with the next client."
KINDS = {"launchd": "a launchd agent", "systemd": "a systemd user service", "hub": "part of the hub"}


def add_arguments(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "watchdog",
        description="The watchdog monitors watched background jobs when no agent does: it reports their end, "
        "and resumes those that were cut off. It runs in the hub as long as something is watched; `install` makes the "
        "hub a service, which starts with your login. "
        "Without an action, shows its status.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    work = actions.add_parser("run", help="run it, and the hub, in this process; exit code 3 if it runs already")
    install = actions.add_parser("install", help="run it from now on, as a service where the system has services")
    install.add_argument("--no-start", dest="start", action="store_false", help="start it at the next login, not now")
    remove = actions.add_parser("remove", help="stop it and remove its service")
    status = actions.add_parser("status", help="show its status; exit code 1 if it does not run")
    add_json(parser, work, install, remove, status)


async def run(options: argparse.Namespace) -> int:
    actions = {"run": _run, "install": _install, "remove": _remove, "status": _status}
    return await actions[options.action or "status"](options)


# The process


def replace_original() -> int:
    """`daemon`, by which launchd or a person started the watchdog of 0.x: hand over to the hub, and end for good."""
    import asyncio

    state = paths.state_folder()
    trouble = asyncio.run(_hand_over(state))
    complain(*filter(None, (trouble, original_notice())))
    say("The watchdog is a part of the hub now, and starts by itself; `daemon` is not needed any more.")
    return 0


async def _hand_over(state: Path) -> str:
    from ..services.watchdog import ensure, original

    trouble = await ensure.ensure_running(state, None) if service.from_database(state)[1] else ""
    try:
        # Last: launchd ends this very process, too.
        await original.end(replace(original.find(state / DATABASE), processes=()), state / DATABASE)
    except SandboxError as problem:
        trouble = f"{trouble} {problem}".strip()
    return trouble


async def _run(options: argparse.Namespace) -> int:
    from ..hub.serve import stay

    try:
        lock = take_lock(paths.state_folder())
    except AlreadyWatched as problem:
        if options.json:
            print_json({"error": str(problem), "code": "already_watched"})
        else:
            complain(str(problem))
        return TAKEN
    # Does not return: it ends the process.
    await stay(lock, options.config)
    return 0


# The service


async def _install(options: argparse.Namespace) -> int:
    stands = await service.install(paths.state_folder(), options.config, start_now=options.start)
    if not _as_json(options, stands):
        how = KINDS[stands.kind]
        if stands.running:
            say(f"The watchdog runs as {how}, process {stands.pid}.", *([PASSING] if stands.kind == "hub" else ()))
        else:
            say(f"The watchdog is installed as {how}, and runs from the next login on.")
        complain(*stands.notes)
    return NOT_RUNNING if options.start and not stands.running else 0


async def _remove(options: argparse.Namespace) -> int:
    stands = await service.remove(paths.state_folder())
    withdraw(paths.state_folder())
    if not _as_json(options, stands):
        say("The watchdog does not run, and is not installed.")
        complain(*stands.notes)
    return 0


async def _status(options: argparse.Namespace) -> int:
    stands = await service.status(paths.state_folder())
    if not _as_json(options, stands):
        page = Page()
        page.facts(_facts(stands))
        page.problems(stands.notes)
    return 0 if stands.running else NOT_RUNNING


def _as_json(options: argparse.Namespace, stands: WatchdogStatus) -> bool:
    if options.json:
        from dataclasses import asdict

        fields = asdict(stands) | {"database": str(stands.database), "log_file": str(stands.log_file)}
        print_json({name: value for name, value in fields.items() if value not in (None, ())})
    return bool(options.json)


def _facts(stands: WatchdogStatus) -> Iterator[tuple[str, str]]:
    where = " in the hub" if stands.in_hub else ""
    yield "watchdog", f"runs{where} as process {stands.pid or '?'}" if stands.running else "does not run"
    kind = f"{KINDS[stands.kind]}, {'installed' if stands.installed else 'not installed'}"
    yield "service", "none here: the hub does the work while something is watched" if stands.kind == "hub" else kind
    if stands.lingering is not None:
        yield "lingering", "on" if stands.lingering else "off"
    if stands.last_beat:
        yield "seen alive", f"{ago(time.time() - stands.last_beat)} ago"
    yield "watches", f"{stands.active} active"
    yield "database", str(stands.database)
    yield "log", str(stands.log_file)
