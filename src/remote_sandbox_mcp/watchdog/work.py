"""What the watchdog does in a round, and the configuration under which it does so."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from ..app import App, Stock, compose
from ..config import paths
from ..config.handed import FILE, watchdog_environ
from ..config.load import load
from ..core.errors import SandboxError
from ..processes.locks import Lock
from .daemon import Pace, Pulse, Rounds, Supervision, change_stamp, file_stamp

log = logging.getLogger(__name__)


def make_rounds(
    lock: Lock, config: Path | None, pulse: Pulse, *, until_idle: bool, stock: Stock | None = None
) -> Rounds:
    """The loop over our own work, for whoever holds the lock. `stock`: machines that others use, too."""
    state = lock.file.parent
    stamp = stamp_of(config, state, pulse)
    return Rounds(lock, lambda: supervision(config, state, stock), stamp, pulse, Pace(), until_idle)


def stamp_of(config: Path | None, state: Path, pulse: Pulse) -> Callable[[], object]:
    """Gives another value when anything has changed that machines are configured by, or the database is another."""
    files = (config or paths.config_file(), state / FILE, Path.home() / ".ssh/config", Path("/etc/ssh/ssh_config"))
    return lambda: (change_stamp(*files), file_stamp(pulse.file))


@asynccontextmanager
async def supervision(config: Path | None, state: Path, stock: Stock | None = None) -> AsyncIterator[Supervision]:
    """The work, as the configuration has it now."""
    # A keyring may take its time.
    environ = await asyncio.to_thread(watchdog_environ, os.environ, state)
    configuration = await asyncio.to_thread(load, config, environ)
    for problem in configuration.problems:
        log.warning("%s", problem)
    stock = stock or Stock()
    members = stock.take(configuration)
    app = compose(configuration, for_all=True, members=members, are_lent=True)
    try:
        yield Work(app)
    finally:
        try:
            await app.close()
        finally:
            await stock.give_back(members)


class Work:
    """Looks after the watches, and ends disposable sandboxes whose time is over."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._watches = app.jobs.supervisor()

    async def tick(self) -> float:
        try:
            await self._app.disposables.sweep()
        except SandboxError as problem:
            log.warning("disposable sandboxes could not be looked after: %s", problem)
        return await self._watches.tick()
