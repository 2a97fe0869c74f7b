"""Syncs between any two places: keeps their lanes, and continues after a cut."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace

from ...backends import here
from ...core.errors import CUT, BadArgument, SandboxError, Unreachable
from ...core.gate import Admitted
from ...core.sandboxes.sandbox import Sandbox
from ...core.sync.ignore import is_secret_path
from ...core.sync.secret_names import secret_lines_in
from ...core.sync.transfer import Headway, Lane, Listener, Order, Outcome, Place, unheard
from ...core.workspaces.workspace import SECRET_LIKE
from .ends import End
from .engine import Synchronization
from .lanes import Lanes
from .large import IndexMemory
from .patience import CutOff, Ear, adding_up, persist
from .sending import Bridging

HERE_LANES, FAR_LANES = 2, 8
SILENCE_S = 4.0
# After a plan with more files, and when nobody has it any more, memory goes back to the system.
MANY_FILES, LATER_S = 100, 1.0
# How one machine reaches another directly, where that is allowed.
Routes = Callable[[str, str], Bridging | None]
# Resolves a place of this computer and decides whether it may be written or read. Raises BadArgument.
Gate = Callable[[Place, bool], Admitted]


class Syncs:
    """All syncs of one process."""

    def __init__(
        self, open_sandbox: Callable[[str], Awaitable[Sandbox]], open_here: Callable[[], Awaitable[Lane]],
        chunks: IndexMemory, routes: Routes = lambda source, target: None, gate: Gate = here.settle,
        opener_of: Callable[[str], Callable[[], Awaitable[Sandbox]]] | None = None,
    ) -> None:  # fmt: skip
        """`opener_of` binds a name to the sandbox that has it now, whatever has that name later."""
        self._opener_of = opener_of or (lambda name: functools.partial(open_sandbox, name))
        self._open_sandbox = open_sandbox
        self._routes = routes
        self._gate = gate
        self._open_here = open_here
        self._chunks = chunks
        self._lanes: dict[str, Lanes] = {}

    async def forget(self, names: Iterable[str]) -> None:
        """Forget names that now mean other machines: the next sync opens new lanes. A running one keeps its own."""
        gone = [self._lanes.pop(name) for name in names if name in self._lanes]
        await asyncio.gather(*(lanes.close() for lanes in gone))

    def begin(self, order: Order) -> Synchronization:
        """A sync that is to be prepared, and then carried out or released. Raises BadArgument."""
        source, target = self._end(order.source, writing=False), self._end(order.target, writing=True)
        if source.admitted:
            # For both ends: what is not read must not be deleted as an extra, either. Behind all other lines, so that
            # none of them brings it back.
            withheld = () if order.source.free else SECRET_LIKE
            order = replace(order, excludes=(*order.excludes, *withheld, *source.admitted.rules))
        bridge = self._routes(order.source.sandbox, order.target.sandbox)
        return Synchronization(order, source, target, self._chunks, bridge)

    async def prepare(self, order: Order, listener: Listener = unheard) -> Synchronization:
        """A sync that is prepared, to be carried out or released. A scan whose line is cut is begun again.

        A machine that cannot be reached in the first place is told at once. Raises SandboxError.
        """
        listener(Headway("scanning"))
        fresh = [self.begin(order)]
        try:
            await fresh[0].open()
        except Unreachable as problem:
            if problem.reason != CUT:
                raise
            fresh = [self.begin(order)]
            await fresh[0].open()

        async def attempt(hear: Listener) -> Synchronization:
            job = fresh.pop() if fresh else self.begin(order)
            async with self._heeding_silence(order, hear) as heard:
                await job.prepare(heard)
            return job

        return await persist(attempt, listener)

    async def run(self, order: Order, listener: Listener, prepared: Synchronization | None = None) -> Outcome:
        """Make the target like the source; what was done before a cut is not done again. Raises SandboxError."""
        return await persist(adding_up(lambda hear: self.attempt(order, hear, prepared)), listener)

    async def attempt(self, order: Order, listener: Listener, prepared: Synchronization | None = None) -> Outcome:
        """Sync once, without trying again. Raises CutOff, SandboxError."""
        job = prepared if prepared and prepared.is_prepared else self.begin(order)
        try:
            async with self._heeding_silence(order, listener) as heard:
                if not job.is_prepared:
                    await job.prepare(heard)
                return await job.carry_out(heard)
        except Unreachable as problem:
            raise CutOff(problem, job.outcome() if job.source_tree is not None else None) from problem
        finally:
            if len(job.plan.send) + job.plan.skipped > MANY_FILES:
                asyncio.get_running_loop().call_later(LATER_S, give_back_memory)

    @contextlib.asynccontextmanager
    async def _heeding_silence(self, order: Order, listener: Listener) -> AsyncIterator[Listener]:
        """While it lasts, machines that say nothing are asked for a sign of life."""
        ear = Ear(listener)
        asking = asyncio.ensure_future(self._ask_in_silence(order, ear))
        try:
            yield ear.hear
        finally:
            asking.cancel()

    async def _ask_in_silence(self, order: Order, ear: Ear) -> None:
        """Ping both machines while nothing moves: a frozen connection is noticed only by asking."""
        while True:
            await asyncio.sleep(SILENCE_S)
            if ear.silent_s > SILENCE_S:
                names = {place.sandbox for place in (order.source, order.target) if place.sandbox}
                for name in names:
                    with contextlib.suppress(SandboxError):
                        await (await self._open_sandbox(name)).open()

    async def close(self) -> None:
        await asyncio.gather(*(lanes.close() for lanes in self._lanes.values()))

    def _end(self, place: Place, *, writing: bool) -> End:
        if place.sandbox not in self._lanes:
            self._lanes[place.sandbox] = self._make_lanes(place.sandbox)
        return End(place, self._lanes[place.sandbox], None if place.sandbox else self._admit(place, writing))

    def _admit(self, place: Place, writing: bool) -> Admitted:
        """Raises BadArgument."""
        admitted = self._gate(place, writing)
        if writing or place.free:
            return admitted
        given, real = os.path.abspath(place.path), admitted.way.path
        if is_secret_path(os.fsencode(real)) and not is_secret_path(os.fsencode(given)):
            raise BadArgument(
                f"{place} leads to {real}, whose name is that of a secret, so it was not sent; to send it, name that "
                "very path"
            )
        return replace(admitted, rules=(*secret_lines_in(real), *admitted.rules))

    def _make_lanes(self, name: str) -> Lanes:
        if not name:
            return Lanes("this machine", self._open_here, HERE_LANES)

        # Looked up once: a sync that began on one machine must not continue on another with the same name.
        opened = self._opener_of(name)

        async def open_lane() -> Lane:
            return await (await opened()).open_lane()

        return Lanes(name, open_lane, FAR_LANES)


def give_back_memory() -> None:
    """Let glibc return what is free: it would keep it for as long as the process lives."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
