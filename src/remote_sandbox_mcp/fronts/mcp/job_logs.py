"""Logs of jobs as resources: job://NAME/log is listed, read and completed, and its subscribers hear when it grows."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import quote

from mcp.types import Resource

from ...app import App
from ...core.errors import SandboxError
from ...core.texts.shown import shown
from ...core.texts.text import visible
from ...local.waiting import Chores
from ...services.jobs.values import Which

log = logging.getLogger(__name__)

ADDRESS = "job://{name}/log"
# Logs of the latest jobs are listed, so that a person can choose one; of each log its end is read.
MOST_LISTED, MOST_READ = 20, 64_000
# Between two looks at the logs that somebody subscribes to.
LOOK_S = 2.0


def address_of(name: str) -> str:
    return ADDRESS.format(name=quote(name, safe=""))


class JobLogs:
    """The logs of one app's jobs."""

    def __init__(self, app: App, subscribed: Callable[[], Collection[str]]) -> None:
        """`subscribed` gives addresses of resources that clients of earlier protocols subscribe to."""
        self._app = app
        self._subscribed = subscribed
        self._listening: Counter[str] = Counter()
        self._following = Chores("following logs of jobs")

    async def listed(self) -> list[Resource]:
        names = [*dict.fromkeys(await self._app.tasks.names())][:MOST_LISTED]
        return [Resource(uri=address_of(name), name=f"log of {name}", mime_type="text/plain") for name in names]

    async def read(self, name: str) -> str:
        """The end of a log. Raises SandboxError."""
        seen = await self._app.tasks.read(Which(session=name), lines=MOST_READ, most_bytes=MOST_READ)
        return visible(shown(seen.log.decode("utf-8", "replace")))

    @contextmanager
    def heard(self, addresses: Sequence[str]) -> Iterator[None]:
        """While a client of the present protocol listens to these."""
        self._listening.update(addresses)
        try:
            yield
        finally:
            self._listening.subtract(addresses)

    def follow(self, announce: Callable[[Sequence[str]], Awaitable[None]]) -> None:
        """Look after the logs that have subscribers, as long as there are any."""
        if not self._following and self._wanted():
            # In an empty context: it outlives the call that begins it, and must not see that call's session.
            contextvars.Context().run(self._following.start, self._follow(announce))

    def _wanted(self) -> dict[str, str]:
        """Names of the jobs with subscribers, by the addresses of their logs."""
        addresses = {*self._subscribed(), *(address for address, count in self._listening.items() if count > 0)}
        parts = [(address, address.removeprefix("job://").removesuffix("/log")) for address in addresses]
        return {address: name for address, name in parts if address == f"job://{name}/log"}

    async def _follow(self, announce: Callable[[Sequence[str]], Awaitable[None]]) -> None:
        known: dict[str, object] = {}
        while wanted := self._wanted():
            for address, name in wanted.items():
                seen = await self._state(name)
                if seen is not None and known.setdefault(address, seen) != seen:
                    known[address] = seen
                    await announce([address])
            await asyncio.sleep(LOOK_S)

    async def _state(self, name: str) -> object:
        """State and size of a log, which change when it grows; None where they cannot be told."""
        try:
            source, _, _ = await self._app.tasks.log(Which(session=name))
            seen = await source.read(0, 0)
        except SandboxError as problem:
            log.debug("the log of %s cannot be followed: %s", name, problem)
            return None
        return seen.state, seen.log_size
