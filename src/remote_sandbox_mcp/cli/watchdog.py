"""`watchdog`: the daemon that looks after background jobs: running it, having it run, and how it stands."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .parsing import add_json
from .verb import complain, say

if TYPE_CHECKING:
    from ..tasks.locks import Lock
    from ..watchdog.service import WatchdogStatus

# The exit code of a second daemon, and of `status` where there is none.
TAKEN, NOT_RUNNING = 3, 1
PASSING = "No service manager runs here: after a restart of this computer it comes back with the next job."
KINDS = {"launchd": "a launchd agent", "systemd": "a systemd user service", "detached": "a detached process"}


def add_arguments(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "watchdog",
        help="the daemon that looks after background jobs",
        description="The watchdog looks after watched background jobs when no agent does: it tells of their end, "
        "and resumes those that were cut off. It is started when it is first needed; `install` keeps it running. "
        "Without an action, it tells how it stands.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    run = actions.add_parser("run", help="be the daemon, until told to end; exit code 3 where one runs already")
    run.add_argument("--until-idle", action="store_true", help="end after ten minutes with nothing to look after")
    run.add_argument("--lock", type=int, metavar="FD", help=argparse.SUPPRESS)
    install = actions.add_parser("install", help="have it run from now on, as a service where the system has them")
    install.add_argument("--no-start", dest="start", action="store_false", help="from the next login on")
    remove = actions.add_parser("remove", help="end it and remove its service")
    status = actions.add_parser("status", help="how it stands; exit code 1 where it does not run")
    add_json(parser, install, remove, status)


async def run(options: argparse.Namespace) -> int:
    actions = {"run": _run, "install": _install, "remove": _remove, "status": _status}
    return await actions[options.action or "status"](options)


# The daemon


async def _run(options: argparse.Namespace) -> int:
    from ..config import paths
    from ..watchdog.daemon import AlreadyWatched, take_lock

    state = paths.state_folder()
    try:
        # First of all: whoever has started this process waits for the signature.
        lock = _inherited(state, options.lock) if options.lock is not None else take_lock(state)
    except AlreadyWatched as problem:
        complain(str(problem))
        return TAKEN
    if options.until_idle or os.environ.get(paths.NO_HUB):
        await _watch(lock, options.config, options.until_idle)
    else:
        from ..hub.serve import stay

        await stay(lock, options.config)
    # Threads that still wait for a database or a dead line must not keep the process.
    sys.stdout.flush()
    os._exit(0)


def _inherited(state: Path, fd: int) -> Lock:
    from ..tasks.locks import Lock
    from ..watchdog.daemon import LOCK_FILE

    # The lock is to go with this process, whatever that leaves running.
    os.set_inheritable(fd, False)
    lock = Lock(state / LOCK_FILE, fd)
    lock.sign()
    return lock


async def _watch(lock: Lock, config: Path | None, until_idle: bool) -> None:
    """Be the watchdog and nothing else."""
    from ..watchdog import log as own
    from ..watchdog.daemon import watch_over
    from ..watchdog.pulse import Pulse
    from ..watchdog.work import stamp_of, supervision

    state = lock.file.parent
    try:
        own.begin(state)
    except OSError as error:
        complain(f"unable to open {state / own.LOG_FILE}: {error.strerror}; nothing is logged")
    pulse = Pulse(state)
    stamp = stamp_of(config, state, pulse)
    await watch_over(lock, lambda: supervision(config, state), stamp, pulse, until_idle=until_idle)
    logging.shutdown()


# The service


async def _install(options: argparse.Namespace) -> int:
    from ..config import paths
    from ..watchdog import service

    stands = await service.install(paths.state_folder(), options.config, start_now=options.start)
    if not _as_json(options, stands):
        how = "part of the hub" if stands.in_hub and not stands.installed else KINDS[stands.kind]
        if stands.running:
            say(f"The watchdog runs as {how}, process {stands.pid}.", *([PASSING] if stands.kind == "detached" else ()))
        else:
            say(f"The watchdog is installed as {how}, and runs from the next login on.")
        complain(*stands.notes)
    return NOT_RUNNING if options.start and not stands.running else 0


async def _remove(options: argparse.Namespace) -> int:
    from ..config import paths
    from ..config.handed import withdraw
    from ..watchdog import service

    stands = await service.remove(paths.state_folder())
    withdraw(paths.state_folder())
    if not _as_json(options, stands):
        say("The watchdog does not run, and is not installed.")
        complain(*stands.notes)
    return 0


async def _status(options: argparse.Namespace) -> int:
    from ..config import paths
    from ..watchdog import service

    stands = await service.status(paths.state_folder())
    if not _as_json(options, stands):
        _show(stands)
    return 0 if stands.running else NOT_RUNNING


def _as_json(options: argparse.Namespace, stands: WatchdogStatus) -> bool:
    if options.json:
        from dataclasses import asdict

        from .render import print_json

        told = asdict(stands) | {"database": str(stands.database), "log_file": str(stands.log_file)}
        print_json({name: value for name, value in told.items() if value not in (None, ())})
    return bool(options.json)


def _show(stands: WatchdogStatus) -> None:
    from .render import Page, styled

    page = Page()
    page.rows(((styled((name, "dim")), text) for name, text in _facts(stands)), indent=0)
    page.problems(stands.notes)


def _facts(stands: WatchdogStatus) -> Iterator[tuple[str, str]]:
    from .figures import ago

    where = " in the hub" if stands.in_hub else ""
    yield "watchdog", f"runs{where} as process {stands.pid or '?'}" if stands.running else "does not run"
    kind = f"{KINDS[stands.kind]}, {'installed' if stands.installed else 'not installed'}"
    yield "service", "none here: it is started as a process when it is needed" if stands.kind == "detached" else kind
    if stands.lingering is not None:
        yield "lingering", "on" if stands.lingering else "off"
    if stands.last_beat:
        yield "seen alive", f"{ago(time.time() - stands.last_beat)} ago"
    yield "watches", f"{stands.active} active"
    yield "database", str(stands.database)
    yield "log", str(stands.log_file)
