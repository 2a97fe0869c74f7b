"""The lanes to one place: opened when needed, kept warm for a while, then closed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

from ...core.errors import SandboxError
from ...core.sync.transfer import Lane, Reply
from ...local.waiting import Chores

IDLE_S = 120.0


class Lanes:
    """A lane belongs to one transfer at a time."""

    def __init__(self, name: str, opener: Callable[[], Awaitable[Lane]], most: int) -> None:
        self.name = name
        self.most = most
        # The shortest round trip so far.
        self.round_trip_s = float("inf")
        self._opener = opener
        self._idle: list[Lane] = []
        self._timer: asyncio.TimerHandle | None = None
        self._coming = Chores(f"lanes to {name}", expected=(SandboxError,))
        self._closing = Chores(f"closing lanes to {name}")
        self._measuring = Chores(f"the round trip to {name}", expected=(SandboxError,))

    async def take(self) -> Lane:
        """A live lane. Raises ConnectError, Unsupported."""
        while True:
            while self._idle:
                lane = self._idle.pop()
                if lane.is_alive:
                    return lane
            if not self._coming:
                return await self._new()
            await asyncio.wait(tuple(self._coming), return_when=asyncio.FIRST_COMPLETED)

    async def _new(self) -> Lane:
        lane = await self._opener()
        # Not waited for: it is answered before all that is asked next, so it is known when there is something to send.
        self._measuring.start(self._measure(lane.begin({"verb": "rest"}), time.perf_counter()))
        return lane

    async def _measure(self, answer: Awaitable[Reply], asked: float) -> None:
        await answer
        self.round_trip_s = min(self.round_trip_s, time.perf_counter() - asked)

    def open_ahead(self, count: int) -> None:
        """Begin to open what a transfer will take presently, so that there are so many lanes."""
        for _ in range(min(count, self.most) - len(self._idle) - len(self._coming)):
            self._coming.start(self._come())

    async def _come(self) -> None:
        self.give_back(await self._new())

    @property
    def ready(self) -> int:
        """The number of lanes that can be taken without opening one."""
        return len(self._idle) + len(self._coming)

    async def open(self) -> Lane:
        """A further lane, which its caller keeps and closes. Raises ConnectError, Unsupported."""
        return await self._opener()

    async def take_more(self, count: int) -> list[Lane]:
        """Up to `count` lanes; fewer, or none, where no more can be opened."""
        taken: list[Lane] = []

        async def take_one() -> None:
            with contextlib.suppress(SandboxError):
                taken.append(await self.take())

        try:
            for problem in await asyncio.gather(*(take_one() for _ in range(count)), return_exceptions=True):
                if problem is not None:
                    raise problem
        except BaseException:
            for lane in taken:
                self.give_back(lane)
            raise
        return taken

    def give_back(self, lane: Lane) -> None:
        """Return a lane after use; it closes what it holds open."""
        if lane.is_alive:
            lane.begin({"verb": "rest"})
            self._idle.append(lane)
            if self._timer:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(IDLE_S, self._drop_idle)

    def _drop_idle(self) -> None:
        self._closing.start(self.close())

    async def close(self) -> None:
        coming = tuple(self._coming)
        self._coming.cancel()
        await asyncio.gather(*coming, return_exceptions=True)
        idle, self._idle = self._idle, []
        if self._timer:
            self._timer.cancel()
        await asyncio.gather(*(lane.close() for lane in idle), return_exceptions=True)
