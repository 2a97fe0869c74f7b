"""Rounds of the watchdog: its actions, and with which configurations."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from ..app import App, Stock, compose
from ..config import paths
from ..config.inherited import FILE, files_of, watchdog_environ
from ..config.load import load
from ..core.errors import SandboxError
from ..core.jobs.watch import Watch
from ..local.processes.locks import Lock
from ..services.fleet import Member
from ..services.jobs.service import JobService
from ..services.jobs.waiting import LOOK_S
from ..services.watchdog.daemon import Intervals, Pulse, Rounds, Supervision, change_fingerprint, file_fingerprint

log = logging.getLogger(__name__)

# The app of a configuration that has a client now, by the identity of the configuration.
Present = Callable[[str], "App | None"]


def nobody(identity: str) -> App | None:
    """No client is here, as in a process that serves none."""
    return None


def make_rounds(
    lock: Lock, config: Path | None, pulse: Pulse, *, until_idle: bool, stock: Stock | None = None,
    present: Present = nobody,
) -> Rounds:  # fmt: skip
    """The loop for the process that holds the lock. `stock`: machines shared with sessions."""
    state = lock.file.parent
    fingerprint = fingerprint_of(config, state, pulse)
    return Rounds(lock, lambda: supervision(config, state, stock, present), fingerprint, pulse, Intervals(), until_idle)


def fingerprint_of(config: Path | None, state: Path, pulse: Pulse) -> Callable[[], object]:
    """Returns a function whose value changes when a configuration of machines, or the database file, has changed."""
    own = (config or paths.config_file(), Path.home() / ".ssh/config", Path("/etc/ssh/ssh_config"))
    cache: dict[object, list[Path]] = {}

    def fingerprint() -> object:
        inherited = change_fingerprint(state / FILE)
        if inherited not in cache:
            cache.clear()
            cache[inherited] = [Path(file) for file in files_of(state).values() if file]
        return inherited, change_fingerprint(*own, *cache[inherited]), file_fingerprint(pulse.file)

    return fingerprint


@asynccontextmanager
async def supervision(
    config: Path | None, state: Path, stock: Stock | None = None, present: Present = nobody
) -> AsyncIterator[Supervision]:
    """The work, with the current configurations."""
    inherited = change_fingerprint(state / FILE)
    apps = Apps(config, state, stock or Stock(), present)
    try:
        yield Work(await apps.own(), apps, lambda: change_fingerprint(state / FILE) == inherited)
    finally:
        await apps.close()


class Apps:
    """The configurations of all watches: that of a client that is here, else read from the file that it named."""

    def __init__(self, config: Path | None, state: Path, stock: Stock, present: Present) -> None:
        self._config = config
        self._state = state
        self._stock = stock
        self._present = present
        self._turn = asyncio.Lock()
        self._apps: dict[str, App] = {}
        self._members: list[Member] = []

    async def own(self) -> App:
        """The configuration of this process, which also counts for watches of unknown ones."""
        return await self._read("", self._config)

    async def responsible(self, watch: Watch) -> JobService:
        """The jobs of the configuration under which a watch was begun."""
        return await self.jobs_of(watch.configuration)

    async def jobs_of(self, identity: str) -> JobService:
        if app := self._present(identity):
            return app.jobs
        file = (await asyncio.to_thread(files_of, self._state)).get(identity)
        app = await (self.own() if file is None else self._read(identity, Path(file) if file else None))
        return app.jobs

    async def _read(self, identity: str, config: Path | None) -> App:
        async with self._turn:
            if identity not in self._apps:
                # A keyring may take a while.
                environ = await asyncio.to_thread(watchdog_environ, os.environ, self._state, identity)
                configuration = await asyncio.to_thread(load, config, environ)
                for problem in configuration.problems:
                    log.warning("%s", problem)
                members = self._stock.take(configuration)
                self._members += members
                self._apps[identity] = compose(configuration, for_all=True, members=members, are_lent=True)
        return self._apps[identity]

    async def close(self) -> None:
        try:
            await asyncio.gather(*(app.close() for app in self._apps.values()))
        finally:
            await self._stock.give_back(self._members)


class Work:
    """Supervises the watches, starts jobs that wait, and deletes disposable sandboxes whose time is over."""

    def __init__(self, app: App, apps: Apps, is_current: Callable[[], bool]) -> None:
        """`is_current`: nothing was handed over since the configuration was read."""
        self._app = app
        self._is_current = is_current
        self._apps = apps
        self._watches = app.jobs.supervisor(apps.responsible)

    async def tick(self) -> float:
        try:
            await self._app.disposables.sweep()
        except SandboxError as problem:
            log.warning("disposable sandboxes could not be looked after: %s", problem)
        # A new watch may need what was handed over just before it; the next round has read that.
        if not self._is_current():
            return 0.0
        # After the watches: an end that they have noted makes room.
        return min(await self._watches.tick(), await self._start_waiting())

    async def _start_waiting(self) -> float:
        """Start the jobs that wait and have room now; returns when to look again."""
        due = math.inf
        for identity in await asyncio.to_thread(self._app.jobs.registry.waiting.by_configuration):
            try:
                due = min(due, await (await self._apps.jobs_of(identity)).waiting.tick(identity))
            except SandboxError as problem:
                log.warning("jobs that wait could not be looked after: %s", problem)
                due = min(due, time.time() + LOOK_S)
        return due
