"""Keeps a server's configuration up to date with its files, and notifies its clients of changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from ...app import Stock
from ...config.schema import Configuration, Settings
from ...config.source import ConfigSource
from ...local.waiting import Chores
from ...services.fleet import Member
from .server import SandboxServer, build, prepare

# Files are checked when a call comes, at most this often; and now and then without one.
CHECK_S, IDLE_CHECK_S = 1.0, 4.0


def _offered(settings: Settings) -> object:
    """Settings that decide which tools there are."""
    return settings.expose_advanced_tools, settings.extensions


class Upkeep:
    """Upkeep of one server. `members` are the sandboxes that it has taken from the stock."""

    def __init__(self, server: SandboxServer, source: ConfigSource, stock: Stock, members: Sequence[Member]) -> None:
        self._server = server
        self._source = source
        self._stock = stock
        self._members = members
        # Members of earlier configurations that may still be in use.
        self._owed: list[Sequence[Member]] = []
        self._next = time.monotonic() + CHECK_S
        self._turn = asyncio.Lock()
        self._chores = Chores("the look at the configuration")
        # Called after each change.
        self.changed: Callable[[], None] = lambda: None
        server.before_call = self.check_in_time
        self._chores.start(self._keep_looking())

    async def check_in_time(self) -> None:
        """Check for a change, unless that was done a moment ago."""
        if time.monotonic() >= self._next:
            await self.check()

    async def check(self) -> None:
        """Check for a change, and apply it."""
        async with self._turn:
            self._next = time.monotonic() + CHECK_S
            if (fresh := await asyncio.to_thread(self._source.refresh)) is not None:
                await self._follow(fresh)

    async def close(self) -> None:
        """Return the sandboxes to the stock."""
        self._chores.cancel()
        for members in (*self._owed, self._members):
            await self._stock.give_back(members)

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(IDLE_CHECK_S)
            await self.check_in_time()

    async def _follow(self, fresh: Configuration) -> None:
        server, app = self._server, self._server.app
        listed, before_it = set(app.fleet.names), _offered(app.settings)
        members, before = self._stock.take(fresh), self._members
        self._members = members
        await app.reconfigure(fresh, members)
        self._chores.start(self._give_back(before))
        has_other_tools = _offered(app.settings) != before_it
        if has_other_tools:
            await prepare(app)
            server.take_tools_of(build(app, server.clients))
        server.take_name()
        self.changed()
        has_other_resources = has_other_tools or set(app.fleet.names) != listed
        await server.announce_changes(tools=has_other_tools, resources=has_other_resources)

    async def _give_back(self, members: Sequence[Member]) -> None:
        """Return them once no call and no transfer that began before the change can be using them."""
        self._owed.append(members)
        await self._server.calls.settled()
        await self._server.app.transfers.settled()
        self._owed.remove(members)
        await self._stock.give_back(members)
