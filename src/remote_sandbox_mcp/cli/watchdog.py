"""`watchdog`: the daemon that looks after background jobs: running it, having it run, and how it stands."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import SandboxError
from .parsing import add_json
from .verb import complain, say

if TYPE_CHECKING:
    from ..app import App
    from ..tasks.locks import Lock
    from ..watchdog.daemon import Supervision
    from ..watchdog.service import WatchdogStatus

log = logging.getLogger(__name__)

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
    await _watch(lock, options.config, options.until_idle)
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
    from ..config import paths
    from ..watchdog import log as own
    from ..watchdog.daemon import watch_over
    from ..watchdog.pulse import Pulse, change_stamp, file_stamp

    state = lock.file.parent
    try:
        own.begin(state)
    except OSError as error:
        complain(f"unable to open {state / own.LOG_FILE}: {error.strerror}; nothing is logged")
    pulse, files = Pulse(state), _settings_files(config or paths.config_file(), state)

    def stamp() -> object:
        return change_stamp(*files), file_stamp(pulse.file)

    await watch_over(lock, lambda: _supervision(config, state), stamp, pulse, until_idle=until_idle)
    logging.shutdown()


def _settings_files(config: Path, state: Path) -> tuple[Path, ...]:
    """What the machines are configured by."""
    from ..config.handed import FILE

    return config, state / FILE, Path.home() / ".ssh/config", Path("/etc/ssh/ssh_config")


@asynccontextmanager
async def _supervision(config: Path | None, state: Path) -> AsyncIterator[Supervision]:
    """The daemon's work, as the configuration has it now."""
    import asyncio

    from ..app import compose
    from ..config.handed import daemon_environ
    from ..config.load import load

    # A keyring may take its time.
    environ = await asyncio.to_thread(daemon_environ, os.environ, state)
    configuration = load(config, environ)
    for problem in configuration.problems:
        log.warning("%s", problem)
    app = compose(configuration, for_all=True)
    try:
        yield Rounds(app)
    finally:
        await app.close()


class Rounds:
    """What the daemon does in a round: look after the watches, and end disposable sandboxes whose time is over."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._watches = app.background.supervisor()

    async def tick(self) -> float:
        try:
            await self._app.disposables.sweep()
        except SandboxError as problem:
            log.warning("disposable sandboxes could not be looked after: %s", problem)
        return await self._watches.tick()


# The service


async def _install(options: argparse.Namespace) -> int:
    from ..config import paths
    from ..watchdog import service

    stands = await service.install(paths.state_folder(), options.config, start_now=options.start)
    if not _as_json(options, stands):
        how = KINDS[stands.kind]
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

        told = asdict(stands) | {"database": str(stands.database), "log_file": str(_log_file(stands))}
        print_json({name: value for name, value in told.items() if value not in (None, ())})
    return bool(options.json)


def _show(stands: WatchdogStatus) -> None:
    from .render import Page, styled

    page = Page()
    page.rows(((styled((name, "dim")), text) for name, text in _facts(stands)), indent=0)
    page.problems(stands.notes)


def _facts(stands: WatchdogStatus) -> Iterator[tuple[str, str]]:
    from .figures import ago

    yield "watchdog", f"runs as process {stands.pid or '?'}" if stands.running else "does not run"
    kind = f"{KINDS[stands.kind]}, {'installed' if stands.installed else 'not installed'}"
    yield "service", "none here: it is started as a process when it is needed" if stands.kind == "detached" else kind
    if stands.lingering is not None:
        yield "lingering", "on" if stands.lingering else "off"
    if stands.last_beat:
        yield "seen alive", f"{ago(time.time() - stands.last_beat)} ago"
    yield "watches", f"{stands.active} active"
    yield "database", str(stands.database)
    yield "log", str(_log_file(stands))


def _log_file(stands: WatchdogStatus) -> Path:
    from ..watchdog.log import LOG_FILE

    return stands.database.parent / LOG_FILE
