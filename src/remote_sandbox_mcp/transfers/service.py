"""The verbs that move files between this machine and sandboxes, at once or as transfers."""

from __future__ import annotations

import functools
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..config import paths
from ..config.schema import Settings
from ..core import check
from ..core.errors import BadArgument, Unsupported
from ..core.machine import Machine
from ..core.transfer import Listener, Order, Outcome, Place, all_of, unheard
from ..fleet import Fleet
from ..gate import Gate
from ..session import absolute

if TYPE_CHECKING:
    from ..core.sandbox import Sandbox
    from ..core.transfer import Lane
    from ..store.transfers import Transfer
    from ..sync.archive import Archives
    from ..sync.engine import Synchronization
    from ..sync.sending import Bridging
    from ..sync.service import Routes, Syncs
    from .background import BackgroundTransfers

LARGEST_RULES = 1 << 20


def no_routes(source: str, target: str) -> None:
    """All files pass through this machine."""


class TransferService:
    """What is needed for moving files is loaded when the first are moved."""

    def __init__(
        self,
        fleet: Fleet,
        settings: Settings,
        routes: Routes,
        private: Sequence[str] = (),
        identity: str = "",
    ) -> None:
        """`identity` tells the configuration from others."""
        self._fleet = fleet
        self._settings = settings
        self._gate = Gate(settings, private)
        self._identity = identity
        self._routes = routes

    def needs(self) -> Sequence[str]:
        """The transfers that this process runs; those of others do not need it."""
        running = self.background.running if "background" in self.__dict__ else ()
        return [f"the transfer {task_id} runs" for task_id in running]

    async def reconfigure(
        self, settings: Settings, routes: Routes, private: Sequence[str], gone: Collection[str]
    ) -> None:
        """From now on these hold; sandboxes that are `gone` are not what they were."""
        self._settings, self._routes = settings, routes
        self._gate.reconfigure(settings, private)
        if "syncs" in self.__dict__:
            await self.syncs.forget(gone)

    async def settled(self) -> None:
        """Wait until the transfers have ended that run in this process now."""
        if "background" in self.__dict__:
            await self.background.settled()

    async def close(self) -> None:
        if "background" in self.__dict__:
            await self.background.close()
        if "syncs" in self.__dict__:
            await self.syncs.close()

    @functools.cached_property
    def syncs(self) -> Syncs:
        from ..backends import here
        from ..store.chunks import Chunks
        from ..sync.service import Syncs

        def route(source: str, target: str) -> Bridging | None:
            return self._routes(source, target)

        def opener(name: str) -> Callable[[], Awaitable[Sandbox]]:
            return self._fleet.member(name).open

        chunks = Chunks(paths.state_folder())
        return Syncs(self._fleet.get, here.open_lane, chunks, route, self._gate.admit, opener)

    @functools.cached_property
    def archives(self) -> Archives:
        from ..sync.archive import Archives

        return Archives(self._fleet.get, self.syncs)

    @functools.cached_property
    def background(self) -> BackgroundTransfers:
        from .background import BackgroundTransfers

        return BackgroundTransfers(paths.state_folder(), self._identity)

    def place(self, path: str, *, sandbox: str | None, free: bool = False) -> Place:
        """Where a path is: `gpu1:/data` names its sandbox; others are on `sandbox`, or here if that is None.

        `free`: the person at this machine names it, not an agent.
        """
        check.text_argument("path", path)
        if name := self.sandbox_in(path):
            return Place(self._fleet.member(name).name, path[len(name) + 1 :])
        if sandbox is not None:
            return Place(self._fleet.member(sandbox).name, path)
        whole = absolute(path) + ("/" if path.endswith("/") else "")
        return Place("", whole, free)

    def sandbox_in(self, path: str) -> str:
        """The sandbox that a path names, as gpu1:/data does. Raises UnknownSandbox for one that is over."""
        name, colon, _ = path.partition(":")
        return name if colon and self._fleet.knows(name) else ""

    def rules(self, excludes: Sequence[str], exclude_file: str = "", *, free: bool = False) -> tuple[str, ...]:
        """The lines of a file of this machine, then the given ones: the last that fits decides. Raises BadArgument."""
        check.text_argument("exclude_file", exclude_file, required=False)
        for line in excludes:
            check.text_argument("excludes", line, required=False)
        if any("\n" in line for line in excludes):
            raise BadArgument("excludes: a line holds a line break; give one pattern for each element")
        if not exclude_file:
            return tuple(excludes)
        try:
            text = self._gate.read(absolute(exclude_file), LARGEST_RULES + 1, free=free)
        except (OSError, ValueError) as problem:
            why = getattr(problem, "strerror", None) or problem
            raise BadArgument(f"exclude_file {exclude_file} cannot be read: {why}; check it") from None
        if len(text) > LARGEST_RULES:
            raise BadArgument(f"exclude_file {exclude_file} is over 1 MiB, which no list of patterns is; check it")
        lines = text.decode("utf-8", "surrogateescape").replace("\0", "").split("\n")
        return (*(line.rstrip("\r") for line in lines), *excludes)

    async def copy_in(self, local_path: str, path: str, *, name: str) -> Outcome:
        """A file or folder of this machine into a sandbox, as an agent may copy it."""
        order = Order(source=self.place(local_path, sandbox=None), target=self._inside(path, name))
        return await self._copy(order)

    async def copy_out(self, path: str, local_dir: str, *, name: str) -> tuple[str, Outcome]:
        """A file or folder of a sandbox into a folder of this machine, and where it is there."""
        here = self.place(f"{local_dir.rstrip('/')}/{path.rstrip('/').rpartition('/')[2] or 'files'}", sandbox=None)
        order = Order(source=self._inside(path, name), target=here)
        return here.path, await self._copy(order)

    def _inside(self, path: str, sandbox: str) -> Place:
        """A path of that sandbox and no other, whatever it looks like."""
        return Place(self._fleet.member(sandbox).name, check.text_argument("path", path))

    async def _copy(self, order: Order) -> Outcome:
        """As a sync or, where the sandbox has no lanes, as an archive."""
        try:
            return await self.syncs.run(order, unheard)
        except Unsupported:
            if order.source.sandbox and order.target.sandbox:
                raise
            return await self.archives.run(order)

    def check_roots(self, path: str) -> None:
        """Raises BadArgument for what lies outside of the folders that the operator has named, if any are."""
        roots = [os.path.realpath(os.path.expanduser(root)) for root in self._settings.allowed_roots]
        real = os.path.realpath(absolute(path))
        if roots and not any(os.path.commonpath((root, real)) == root for root in roots):
            raise BadArgument(
                f"{path} lies outside of the folders that may be used ({', '.join(roots)}); the operator adds others "
                "as allowed_roots under [server] in config.toml"
            )

    async def preview(self, order: Order) -> Synchronization:
        """What a sync would do; that it would delete much is what is to be seen."""
        job = self.syncs.begin(replace(order, confirmed=True))
        await job.prepare()
        job.release()
        return job

    async def sync(
        self, order: Order, *, wait_s: float, background: bool = False, listener: Listener = unheard
    ) -> Outcome | Transfer:
        """Do it at once if it is little; otherwise as a transfer that outlives this process, waited for a moment."""

        async def runner(order: Order, told: Listener) -> Outcome:
            return await self.syncs.run(order, all_of(told, listener), job)

        job: Synchronization | None = None
        if begun := await self.background.begun_before(runner):
            return await self.background.check(begun.id, wait_s=wait_s)
        job = self.syncs.begin(order)
        if background:
            return await self.background.begin(order, runner, wait_s=0)
        plan, settings = await job.prepare(listener), self._settings
        if len(plan.send) <= settings.inline_sync_max_files and plan.bytes <= settings.inline_sync_max_bytes:
            return await self.syncs.run(order, listener, job)
        try:
            return await self.background.begin(order, runner, wait_s=wait_s)
        except BaseException:
            if job.is_prepared:
                job.release()
            raise

    async def queue(self, order: Order) -> Transfer:
        """Leave it to the process that takes it up, which asks the gate again. Raises BadArgument for a refusal now."""
        self.syncs.begin(order)
        return await self.background.queue(order)

    async def take_up(self) -> None:
        """Go on here with transfers of this configuration that no process runs any more."""
        await self.background.take_up(self._run)

    async def check(self, task_id: str, *, wait_s: float = 0) -> Transfer:
        """How a transfer stands; see BackgroundTransfers.check. One that no process runs goes on here, if it can."""
        await self.take_up()
        return await self.background.check(task_id, wait_s=wait_s)

    async def _run(self, order: Order, listener: Listener) -> Outcome:
        return await self.syncs.run(order, listener)


def routes_between(configured: Iterable[Machine]) -> Routes:
    """The ways that the operator has opened."""
    machines = {machine.name: machine for machine in configured}

    def route(source: str, target: str) -> Bridging | None:
        if source not in machines or target not in machines or target not in machines[source].direct:
            return None
        destination, python = machines[source].direct[target], machines[target].python

        async def bridge(lane: Lane) -> Lane:
            from ..backends.outpost.lane import open_bridge

            return await open_bridge(lane, target, destination, python)

        return bridge

    return route
