"""Notices changes to disposable sandboxes, made by any process, and reports which ones changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from ...core.errors import SandboxError
from ...local.waiting import Chores, within

if TYPE_CHECKING:
    from .service import DisposableService

# How often the file's counter of changes is looked at.
POLL_EVERY_S = 1.0
# How often providers are asked: only they know of a container that was killed or paused by somebody else.
ASK_S = 2.0
# Told of the ids and names of those that are new, over, or stand otherwise.
Announce = Callable[[Collection[str]], Awaitable[None]]
Standings = Mapping[str, tuple[str, str]]


class Changes:
    """Compares how all of them stand with how they stood before. Where there are none, that is one look for a file."""

    def __init__(self, service: Callable[[], DisposableService | None], announce: Announce) -> None:
        """`service` gives nothing as long as there was no sandbox: what looks after them is loaded with the first."""
        self._service = service
        self._announce = announce
        self._standings: Standings = {}
        self._version = -1
        self._news = asyncio.Event()

    def stir(self) -> None:
        """Announce a change in this process."""
        self._news.set()

    async def follow(self) -> None:
        """Until it is cancelled."""
        asking, ask_at = Chores("the look at disposable sandboxes"), 0.0
        try:
            with suppress(SandboxError):
                self._standings = await self._inspect()
            while True:
                with suppress(asyncio.TimeoutError):
                    await within(self._news.wait(), POLL_EVERY_S)
                # The file may be unreadable for a moment; the next look finds what has changed meanwhile.
                with suppress(SandboxError):
                    await self._compare()
                # Beside the loop: a provider that is slow to answer holds up no news of others.
                if self._standings and not len(asking) and time.monotonic() >= ask_at:
                    asking.start(self._ask())
                    ask_at = time.monotonic() + ASK_S
        finally:
            await asking.close()

    async def _compare(self) -> None:
        before, now = self._standings, await self._inspect()
        if changed := dict(before.items() ^ now.items()):
            self._standings = now
            names = {name for found in (before, now) for id, (name, _) in found.items() if id in changed and name}
            await self._announce(changed.keys() | names)

    async def _inspect(self) -> Standings:
        service = self._service()
        if service is None:
            self._news.clear()
            return {}
        version = await asyncio.to_thread(service.registry.rows.database.version)
        if version == self._version and not self._news.is_set():
            return self._standings
        self._version = version
        self._news.clear()
        return await service.tending.poll()

    async def _ask(self) -> None:
        """Ask the providers about the sandboxes, and record their answers."""
        if service := self._service():
            await service.list()
            self.stir()
