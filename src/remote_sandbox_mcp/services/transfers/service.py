"""The verbs that move files between this computer and sandboxes, in the call or in the background."""

from __future__ import annotations

import functools
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...config import paths
from ...config.schema import Settings
from ...core import check
from ...core.errors import BadArgument, Unsupported
from ...core.lazy import lazy
from ...core.sandboxes.machine import Machine
from ...core.sync.ignore import is_secret_path
from ...core.sync.secret_names import is_secret_name
from ...core.sync.transfer import Lane, Listener, Order, Outcome, Place, all_of, unheard
from ..fleet import Fleet
from ..gate.paths import Gate
from ..session import absolute, client_folder

if TYPE_CHECKING:
    from ...core.sandboxes.sandbox import Sandbox
    from ...local.store.transfers import Transfer
    from ..sync.archive import Archives
    from ..sync.engine import Synchronization
    from ..sync.sending import Bridging
    from ..sync.service import Routes, Syncs
    from .background import BackgroundTransfers, Runner

LARGEST_RULES = 1 << 20


def _pattern(line: str) -> str:
    """Line of a .gitignore, where ./ and spaces at the beginning are as people mean them."""
    line = line.lstrip()
    mark, path = line[: line.startswith("!")], line.removeprefix("!")
    # To git, ./ fits nothing; whoever writes it means the top folder.
    while path.startswith("./"):
        path = path[2:]
        line = f"{mark}/{path}"
    return line


def _name_here(path: str) -> str:
    """The name under which a file or folder of a sandbox is copied into a local folder. Raises BadArgument."""
    # The name of the root folder is empty.
    name = path.rstrip("/").rpartition("/")[2] or "files"
    if name in (".", ".."):
        raise BadArgument(
            f"{path[:200]!r} ends in {name!r}, under which nothing can be copied; name the file or folder itself"
        )
    return name


class TransferService:
    """The verbs on syncs; what they need is imported with the first one."""

    def __init__(
        self, fleet: Fleet, settings: Settings, routes: Routes, private: Sequence[str] = (), identity: str = ""
    ) -> None:
        """`identity` identifies the configuration."""
        self._fleet = fleet
        self._settings = settings
        self.gate = Gate(settings, private)
        self._identity = identity
        self._routes = routes
        # Brings the large files of a workspace; set where workspaces can be used.
        self.fetch: Runner | None = None

    def needs(self) -> Sequence[str]:
        """The transfers that this process runs, as sentences."""
        if not TransferService.background.made(self):
            return ()
        from ...local.store.transfers import number_of

        return [f"the transfer {number_of(task_id)} runs" for task_id in self.background.running]

    async def reconfigure(
        self, settings: Settings, routes: Routes, private: Sequence[str], gone: Collection[str]
    ) -> None:
        """Use new settings; `gone` sandboxes are closed or replaced."""
        self._settings, self._routes = settings, routes
        self.gate.reconfigure(settings, private)
        if TransferService.syncs.made(self):
            await self.syncs.forget(gone)

    async def settled(self) -> None:
        """Wait for the transfers that this process runs now."""
        if TransferService.background.made(self):
            await self.background.settled()

    async def close(self) -> None:
        if TransferService.background.made(self):
            await self.background.close()
        if TransferService.syncs.made(self):
            await self.syncs.close()

    @lazy
    def syncs(self) -> Syncs:
        from ...backends import here
        from ...local.store.chunks import Chunks
        from ..sync.service import Syncs

        # Not self._routes itself: these are replaced by a new configuration, and the Syncs stay.
        def route(source: str, target: str) -> Bridging | None:
            return self._routes(source, target)

        def opener(name: str) -> Callable[[], Awaitable[Sandbox]]:
            return self._fleet.member(name).open

        chunks = Chunks(paths.state_folder())
        return Syncs(self._fleet.get, here.open_lane, chunks, route, self.gate.admit, opener)

    @functools.cached_property
    def archives(self) -> Archives:
        from ..sync.archive import Archives

        return Archives(self._fleet.get, self.syncs)

    @lazy
    def background(self) -> BackgroundTransfers:
        from .background import BackgroundTransfers

        return BackgroundTransfers(paths.state_folder(), self._identity)

    def place(self, path: str, *, sandbox: str | None, free: bool = False) -> Place:
        """Place of a path: `gpu1:/data` names its sandbox; others are on `sandbox`, or local if that is None.

        Raises UnknownSandbox, and BadArgument where two are named. `free`: a person named it on the command line.
        """
        check.text_argument("path", path)
        found = self._fleet.address_in(path) if sandbox is None else self._fleet.address(path, sandbox)
        if found:
            return Place(found.sandbox, found.path)
        # A slash at the end means "into this folder", and os.path.abspath drops it.
        whole = absolute(path) + ("/" if path.endswith("/") else "")
        return Place("", whole, free)

    def rules(self, excludes: Sequence[str], exclude_file: str = "", *, free: bool = False) -> tuple[str, ...]:
        """Lines of a local file, then the given ones: the last match decides. Raises BadArgument."""
        check.text_argument("exclude_file", exclude_file, required=False)
        for line in excludes:
            check.text_argument("excludes", line, required=False)
        if any("\n" in line for line in excludes):
            raise BadArgument("excludes: a line holds a line break; give one pattern for each element")
        if not exclude_file:
            return tuple(map(_pattern, excludes))
        try:
            text = self.gate.read(absolute(exclude_file), LARGEST_RULES + 1, free=free)
        except (OSError, ValueError) as problem:
            why = getattr(problem, "strerror", None) or problem
            raise BadArgument(f"exclude_file {exclude_file} cannot be read: {why}; check it") from None
        if not free and self.is_secret(os.path.realpath(absolute(exclude_file))):
            # The other side is told all lines.
            raise BadArgument(f"exclude_file {exclude_file} has the name of a secret, so it is not used; name another")
        if len(text) > LARGEST_RULES:
            raise BadArgument(f"exclude_file {exclude_file} is over 1 MiB, which no list of patterns is; check it")
        # No path contains a NUL byte, and it separates paths on the wire.
        lines = text.decode("utf-8", "surrogateescape").replace("\0", "").split("\n")
        return tuple(map(_pattern, (*(line.rstrip("\r") for line in lines), *excludes)))

    def secret_at(self, place: Place) -> str:
        """The path of a local secret that an agent names by this place; empty for none. Raises BadArgument."""
        if place.sandbox or place.free:
            return ""
        real = self.gate.admit(place, False).way.path
        return real if self.is_secret(real) else ""

    @staticmethod
    def is_secret(real: str) -> bool:
        """Whether a path has the name of a secret; what the client's own folder is called says nothing."""
        start, path = client_folder(), os.fsencode(real)
        folder = os.path.realpath(start).rstrip("/")
        below = real[len(folder) + 1 :] if start and f"{real}/".startswith(f"{folder}/") else real
        is_name = bool(below) and is_secret_name(path.rpartition(b"/")[2], path)
        return is_name or is_secret_path(os.fsencode(below))

    async def copy_in(self, local_path: str, path: str, *, name: str) -> Outcome:
        """Copy a local file or folder into a sandbox, under the rules for agents."""
        order = Order(source=self.place(local_path, sandbox=None), target=self.place(path, sandbox=name))
        return await self.copy(order)

    async def copy_out(self, path: str, local_dir: str, *, name: str) -> tuple[str, Outcome]:
        """Copy a file or folder of a sandbox into a local folder; returns where it is then."""
        source = self.place(path, sandbox=name)
        here = self.place(f"{local_dir.rstrip('/')}/{_name_here(source.path)}", sandbox=None)
        order = Order(source=source, target=here)
        return here.path, await self.copy(order)

    async def copy(self, order: Order) -> Outcome:
        """Copy by a sync or, where the sandbox has no lanes, by an archive."""
        try:
            return await self.syncs.run(order, unheard)
        except Unsupported:
            # An archive needs one local end.
            if order.source.sandbox and order.target.sandbox:
                raise
            return await self.archives.run(order)

    def check_folder(self, path: str) -> None:
        """Raises BadArgument for a folder of this computer that a sandbox may not be shown."""
        self.gate.admit(Place("", absolute(path)), False)

    def _rooted(self, order: Order) -> Order:
        """An order that another process may go on with, which asks the gate again."""
        source, target = self.gate.rooted(order.source, writing=False), self.gate.rooted(order.target, writing=True)
        return replace(order, source=source, target=target)

    async def preview(self, order: Order) -> Synchronization:
        """Prepare a sync without doing it; that it would delete much is shown, not refused."""
        job = await self.syncs.prepare(replace(order, confirmed=True))
        job.release()
        return job

    async def sync(
        self, order: Order, *, wait_s: float, background: bool = False, listener: Listener = unheard
    ) -> Outcome | Transfer:
        """Run it in the call if it is small; otherwise in the background, and wait for it up to `wait_s`."""

        async def runner(order: Order, reporter: Listener) -> Outcome:
            return await self.syncs.attempt(order, all_of(reporter, listener), job)

        job: Synchronization | None = None
        order = self._rooted(order)
        # Repeated by a new hub after the old one died: the earlier transfer continues, and no second one begins.
        if begun := await self.background.begun_before(runner):
            return await self.background.check(begun.id, wait_s=wait_s)
        if background:
            # What the gate refuses is told now.
            self.syncs.begin(order)
            return await self.background.begin(order, runner, wait_s=0)
        job = await self.syncs.prepare(order, listener)
        plan, settings = job.plan, self._settings
        if len(plan.send) <= settings.inline_sync_max_files and plan.bytes <= settings.inline_sync_max_bytes:
            return await self.syncs.run(order, listener, job)
        try:
            return await self.background.begin(order, runner, wait_s=wait_s)
        except BaseException:
            # Not prepared any more means that the transfer has taken the plan over, and gives its lanes back.
            if job.is_prepared:
                job.release()
            raise

    async def queue(self, order: Order) -> Transfer:
        """Add it for another process to run, which asks the gate again. Raises BadArgument for a refusal now."""
        self.syncs.begin(order)
        return await self.background.queue(self._rooted(order))

    async def take_up(self) -> None:
        """Continue transfers of this configuration that no process runs any more."""
        await self.background.take_up(self._run)

    async def check(self, task_id: int | str, *, wait_s: float = 0) -> Transfer:
        """State of a transfer; see BackgroundTransfers.check. One that no process runs is continued here."""
        await self.take_up()
        return await self.background.check(task_id, wait_s=wait_s)

    async def begin_fetching(self, order: Order) -> Transfer:
        """Bring the large files of a workspace in the background; returns its row at once."""
        return await self.background.begin(order, self._run, wait_s=0, of_call=False)

    async def _run(self, order: Order, listener: Listener) -> Outcome:
        if order.workspace and self.fetch:
            return await self.fetch(order, listener)
        return await self.syncs.attempt(order, listener)


def routes_between(configured: Iterable[Machine]) -> Routes:
    """The direct routes between machines that the operator configured."""
    machines = {machine.name: machine for machine in configured}

    def route(source: str, target: str) -> Bridging | None:
        if source not in machines or target not in machines or target not in machines[source].direct:
            return None
        if machines[target].writable is not None:
            # A lane that the other machine starts there would have no walls.
            return None
        destination, python = machines[source].direct[target], machines[target].python

        async def bridge(lane: Lane) -> Lane:
            from ...backends.link.lane import open_bridge

            return await open_bridge(lane, target, destination, python)

        return bridge

    return route
