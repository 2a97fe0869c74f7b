"""The history of machines: what any look at one has seen, and looks at those that are connected, once a minute."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from ..config import paths
from ..core.errors import SandboxError
from ..core.lazy import lazy
from ..core.resources.history import GpuHours, Minute, Owner, mean_owners, mean_point, owners
from ..core.resources.usage import Point, Usage, point_of
from ..local.store.mark import STATE_FILE
from ..local.waiting import Chores
from .fleet import Member, unforeseen
from .probe.measure import measure

if TYPE_CHECKING:
    from ..local.store.machines import MachineRows

T = TypeVar("T")
MINUTE_S, TIDY_EVERY_S = 60.0, 3600.0
# A machine that was not seen for a moment is credited with the minutes in between, but not for longer.
LONGEST_GAP = 2
# Without a page: how many machines are asked at once, and in a minute; those that are left out come first in the next.
MOST_AT_ONCE, MOST_EACH_MINUTE = 8, 64
# A slow one rests for so many times as long as it took.
REST_AFTER_ANSWER = 10.0
# One that a page asks is left to it.
FRESH_S = 45.0


class MachineHistory:
    """Keeps how busy machines are. On a full disk only these rows are lost."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, str], list[tuple[Point, Mapping[Owner, float]]]] = {}
        self._last: dict[str, int] = {}
        self._tidied = 0.0
        self._writing = Chores("writing down how busy machines are")

    @lazy
    def _rows(self) -> MachineRows:
        from ..local.store.database import Database
        from ..local.store.machines import MachineRows

        return MachineRows(Database(paths.state_folder() / STATE_FILE))

    def record(self, member: Member, usage: Usage) -> None:
        """Keep what was seen; it is written when its minute is over."""
        now, member.rests_until = time.time(), time.monotonic() + FRESH_S
        self._seen.setdefault((int(now // MINUTE_S), member.name), []).append((point_of(usage, now), owners(usage)))
        if not self._writing:
            # In an empty context: that of a caller would keep its session.
            contextvars.Context().run(self._writing.start, self._write_each_minute())

    async def _write_each_minute(self) -> None:
        while self._seen:
            await asyncio.sleep(MINUTE_S - time.time() % MINUTE_S)
            await self.write(until=int(time.time() // MINUTE_S))

    async def write(self, until: float = float("inf")) -> None:
        """Write the minutes before `until`. What cannot be written is lost."""
        keys = sorted(key for key in self._seen if key[0] < until)
        minutes = [self._minute(key, self._seen.pop(key)) for key in keys]
        with suppress(SandboxError):
            await asyncio.to_thread(self._store, minutes)

    def _minute(self, key: tuple[int, str], seen: Sequence[tuple[Point, Mapping[Owner, float]]]) -> Minute:
        at, name = key
        gap = min(LONGEST_GAP, at - self._last.get(name, at - 1))
        self._last[name] = at
        points, cards = zip(*seen, strict=True)
        return Minute(name, mean_point(points), mean_owners(cards), gap * MINUTE_S)

    def _store(self, minutes: Sequence[Minute]) -> None:
        self._rows.write(minutes)
        if time.monotonic() - self._tidied > TIDY_EVERY_S or not self._tidied:
            self._tidied = time.monotonic()
            self._rows.tidy(time.time())

    async def points(self, since_s: float, machine: str = "") -> dict[str, tuple[Point, ...]]:
        """The points of all machines, or of one, of the last so many seconds. Raises ConfigError."""
        return await self._read(lambda: self._rows.points(time.time() - since_s, machine), {})

    async def gpu_hours(self, since_s: float, machine: str = "") -> list[GpuHours]:
        """The GPU-hours of the last so many seconds. Raises ConfigError."""
        return await self._read(lambda: self._rows.hours(time.time() - since_s, machine), [])

    async def _read(self, ask: Callable[[], T], nothing: T) -> T:
        """Ask the rows; no state file is made for this."""
        return await asyncio.to_thread(ask) if (paths.state_path() / STATE_FILE).exists() else nothing

    async def close(self) -> None:
        """Write what is left."""
        self._writing.cancel()
        if self._seen:
            await self.write()
        if MachineHistory._rows.made(self):
            await asyncio.to_thread(self._rows.database.close)

    # Where nobody looks

    async def watch(self, members: Callable[[], Iterable[Member]]) -> None:
        """Look at machines that are connected, for a call, a job or a watch; none is logged in to for this."""
        turn = asyncio.Semaphore(MOST_AT_ONCE)

        async def look(member: Member) -> None:
            async with turn:
                begun = time.monotonic()
                if member.is_connected and member.sandbox:
                    with suppress(SandboxError):
                        self.record(member, await measure(member.sandbox, cluster=member.slurm))
                rest = REST_AFTER_ANSWER * (time.monotonic() - begun)
                member.rests_until = max(member.rests_until, begun + rest)

        while True:
            await asyncio.sleep(MINUTE_S)
            due = [it for it in members() if it.is_connected and time.monotonic() > it.rests_until]
            first = sorted(due, key=lambda member: member.rests_until)[:MOST_EACH_MINUTE]
            for problem in await asyncio.gather(*map(look, first), return_exceptions=True):
                if problem is not None:
                    unforeseen(problem, "looking at machines")
