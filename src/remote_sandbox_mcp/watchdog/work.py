"""What the watchdog does in a round, and with which configuration."""

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
from .daemon import Intervals, Pulse, Rounds, Supervision, change_stamp, file_stamp

log = logging.getLogger(__name__)


def make_rounds(
    lock: Lock, config: Path | None, pulse: Pulse, *, until_idle: bool, stock: Stock | None = None
) -> Rounds:
    """The loop for the process that holds the lock. `stock`: machines shared with sessions."""
    state = lock.file.parent
    stamp = stamp_of(config, state, pulse)
    return Rounds(lock, lambda: supervision(config, state, stock), stamp, pulse, Intervals(), until_idle)


def stamp_of(config: Path | None, state: Path, pulse: Pulse) -> Callable[[], object]:
    """Returns a function whose value changes when the configuration of machines, or the database file, has changed."""
    files = (config or paths.config_file(), state / FILE, Path.home() / ".ssh/config", Path("/etc/ssh/ssh_config"))
    return lambda: (change_stamp(*files), file_stamp(pulse.file))


@asynccontextmanager
async def supervision(config: Path | None, state: Path, stock: Stock | None = None) -> AsyncIterator[Supervision]:
    """The work, with the current configuration."""
    handed_over = change_stamp(state / FILE)
    # A keyring may take a while.
    environ = await asyncio.to_thread(watchdog_environ, os.environ, state)
    configuration = await asyncio.to_thread(load, config, environ)
    for problem in configuration.problems:
        log.warning("%s", problem)
    stock = stock or Stock()
    members = stock.take(configuration)
    app = compose(configuration, for_all=True, members=members, are_lent=True)
    try:
        yield Work(app, lambda: change_stamp(state / FILE) == handed_over)
    finally:
        try:
            await app.close()
        finally:
            await stock.give_back(members)


class Work:
    """Supervises the watches, and deletes disposable sandboxes whose time is over."""

    def __init__(self, app: App, is_current: Callable[[], bool]) -> None:
        """`is_current`: nothing was handed over since the configuration was read."""
        self._app = app
        self._is_current = is_current
        self._watches = app.jobs.supervisor()

    async def tick(self) -> float:
        try:
            await self._app.disposables.sweep()
        except SandboxError as problem:
            log.warning("disposable sandboxes could not be looked after: %s", problem)
        # A new watch may need what was handed over just before it; the next round has read that.
        return await self._watches.tick() if self._is_current() else 0.0
