"""A disposable bubblewrap sandbox: its connection, expiry and disk, pause and resume."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from weakref import WeakSet

from ...core.commands.command import Command, Completed, Environment, Running
from ...core.errors import ConnectError, LostContact, SandboxError
from ...core.progress import Progress, silent
from ...core.sandboxes.disposable import Disposable
from ...core.sandboxes.files import Written
from ...core.sandboxes.machine import LocalPlace
from ...core.sandboxes.network import Network
from ...core.sandboxes.sandbox import Capabilities, Description
from ...core.sync.transfer import Lane
from ...local.waiting import Chores
from ..link.client import OutpostClient
from ..link.lane import OutpostLane
from ..link.sandbox import OutpostSandbox
from . import KIND, cgroups, limits, lines, processes
from .disk import DiskWatch
from .memory import MemoryWatch
from .store import Record, SandboxStore, is_alone
from .walls import USER, Bounds, Folders

CROWDED = (
    "it has as many processes as it may: wait until some have ended, stop its jobs with stop_background_task, or "
    "delete it with delete_sandbox and create another"
)
LONGEST_NAP_S = 3600.0


class StillClient(OutpostClient):
    """A client that does not mistake a paused outpost for a dead one."""

    is_held = False

    def hold(self) -> None:
        """Expect no sign of life until `go_on`."""
        self.is_held = True
        self._tasks.pop().cancel()

    def go_on(self) -> None:
        if self.is_held:
            self.is_held = False
            self._heard, self._pinged = time.monotonic(), 0.0
            self._tasks.append(asyncio.create_task(self._watch()))


class EmbeddedSandbox(OutpostSandbox):
    """An outpost in bubblewrap; refuses work, with one sentence, if its state forbids it."""

    crowded = CROWDED

    def __init__(
        self,
        place: LocalPlace,
        folders: Folders,
        bounds: Bounds,
        closed: Callable[[], str],
        full: Callable[[], str],
        release: Callable[[], None],
        description: Description | None = None,
    ) -> None:
        async def start() -> OutpostClient:
            if reason := closed():
                raise ConnectError(reason)
            return await lines.open_outpost(place, folders, self._bounds, StillClient)

        super().__init__(
            description or describe(place),
            place.environment,
            start,
            lambda _: lines.open_lane(place, folders, self._bounds),
            lines.Doors(place.name),
        )
        self._bounds = bounds
        # Why it cannot be reached now, and why nothing more may be done in it; both are empty without a reason.
        self._closed = closed
        self._full = full
        # Thaws frozen processes, which cannot be ended otherwise.
        self._release = release
        self._lanes: WeakSet[OutpostLane] = WeakSet()
        self._lanes_to_come = 0

    async def _reach(self) -> OutpostClient:
        if reason := self._closed():
            raise ConnectError(reason)
        return await super()._reach()

    async def run(
        self, command: Command, *, patience_s: float | None = None, progress: Progress = silent
    ) -> Completed | Running:
        self._refuse_more()
        try:
            return await super().run(command, patience_s=patience_s, progress=progress)
        except LostContact as lost:
            if reason := self._full():
                sentence = f"{reason}. All that ran in it was ended"
                raise LostContact(sentence, outcome=lost.outcome, so_far=lost.so_far) from None
            raise

    async def write(self, path: str, data: bytes, *, expected: str | None = None, force: bool = False) -> Written:
        self._refuse_more()
        return await super().write(path, data, expected=expected, force=force)

    async def open_lane(self) -> Lane:
        self._refuse_more()
        self._lanes_to_come += 1
        try:
            lane = await super().open_lane()
        except ConnectError as problem:
            # Another bubblewrap has to be started for it, which reports that itself.
            raise problem.with_more(self.crowded) if problem.reason == lines.CROWDED else problem from None
        finally:
            self._lanes_to_come -= 1
        assert isinstance(lane, OutpostLane)
        self._lanes.add(lane)
        return lane

    @property
    def is_in_use(self) -> bool:
        return self.is_open or self.is_moving_files

    @property
    def is_moving_files(self) -> bool:
        return self._lanes_to_come > 0 or any(lane.is_alive for lane in self._lanes)

    async def end_all(self) -> None:
        """End all its processes, and syncs into it."""
        await asyncio.gather(*(lane.close() for lane in list(self._lanes)), return_exceptions=True)
        await EmbeddedSandbox.close(self)

    async def preopen(self) -> None:
        """Open it once for the next caller, who is told why if it cannot be opened; one that is closed stays closed."""
        with contextlib.suppress(SandboxError):
            await self._reach()

    async def settle(self) -> None:
        """Wait until nothing is being opened."""
        if self._opening is not None:
            await asyncio.gather(self._opening, return_exceptions=True)

    def _refuse_more(self) -> None:
        if reason := self._full():
            raise ConnectError(reason)

    def hold(self) -> None:
        if isinstance(self._client, StillClient) and self._client.is_alive:
            self._client.hold()

    def go_on(self) -> None:
        if isinstance(self._client, StillClient) and self._client.is_alive:
            self._client.go_on()

    async def close(self) -> None:
        """Close it; on return nothing is being started any more."""
        self._release()
        await super().close()
        await self.settle()


def describe(place: LocalPlace) -> Description:
    capabilities = Capabilities(kills_trees=True, network=bool(place.network))
    return Description(place.name, KIND, user=USER, capabilities=capabilities)


class Tenant:
    """A sandbox in use by this process; holds the lock of its folder all the time."""

    def __init__(
        self,
        store: SandboxStore,
        record: Record,
        bounds: Bounds,
        env: Mapping[str, str],
        usual: Environment,
        network: Network,
        lock: int,
        walls: str = "",
    ) -> None:
        self.record = record
        self._store = store
        self._lock = lock
        self._group = cgroups.existing(record.groups)
        runs = store.runs(record.made.id)
        self._folders = Folders(store.box(record.made.id), store.root.parent, runs if runs.exists() else None)
        self._is_paused = False
        self._chores = Chores(f"work on {record.made.title}")
        self._timer: asyncio.Task[None] | None = None
        made = record.made
        environment = replace(usual, env={**usual.env, **env})
        place = LocalPlace(made.title, network, environment, made.image, walls=walls)
        self.sandbox = EmbeddedSandbox(place, self._folders, bounds, self._closed, self._full, self._release)
        self._disk = DiskWatch(
            self._folders.root, limits.most_on_disk(made.limits), self._is_active, self.sandbox.end_all, is_new=True
        )
        if not record.has_real_disk:
            self._chores.start(self._disk.run())
        if bounds.watched_mb:
            memory = MemoryWatch(made.title, self._folders.home, bounds.watched_mb, self._is_active)
            self._chores.start(memory.run())

    def _is_active(self) -> bool:
        return self.sandbox.is_in_use and not self._is_paused

    def _closed(self) -> str:
        if self._is_over():
            # Another process may have renewed it.
            self.record = self._store.read(self.record.made.id) or self.record
        made = self.record.made
        if self._is_over():
            return f"{made.title} has expired; create another"
        if not self._store.has(made.id):
            return f"{made.title} was deleted; create another"
        return f"{made.title} is paused; resume it first" if self._is_paused else ""

    def _is_over(self) -> bool:
        return 0 < self.record.made.expires <= time.time()

    def _full(self) -> str:
        made, used = self.record.made, self._disk.over
        if not used:
            return ""
        return (
            f"{made.title} holds {limits.too_much(used, made.limits)}: take what you need out of it, delete it, and "
            "create another with a larger disk_mb"
        )

    def warm(self) -> None:
        """Open it in the background, because its maker will use it at once."""
        self._chores.start(self.sandbox.preopen())

    def begin(self, expire: Callable[[Disposable], Awaitable[None]]) -> None:
        """Start the expiry timer, by the record's current time."""
        if self._timer:
            self._timer.cancel()
        self._timer = asyncio.create_task(self._outlive(expire)) if self.record.made.expires else None

    async def _outlive(self, expire: Callable[[Disposable], Awaitable[None]]) -> None:
        while True:
            left = self.record.made.expires - time.time()
            if left <= 0:
                break
            # In short sleeps, because clocks are set and computers suspend.
            await asyncio.sleep(min(left, LONGEST_NAP_S))
        self._timer = None
        await expire(self.record.made)

    def is_alone(self) -> bool:
        """Whether no other process uses it."""
        return is_alone(self._lock)

    async def pause(self) -> None:
        """Freeze all its processes. Raises SandboxError, with everything still running, if that fails."""
        # Other processes would think it dead, and try to end frozen processes, which never finishes.
        if not self.is_alone():
            raise SandboxError(f"unable to pause {self.record.made.title}: another server uses it; close it there")
        if self.sandbox.is_moving_files:
            raise SandboxError(f"unable to pause {self.record.made.title}: files are being moved; wait for their end")
        self._is_paused = True
        try:
            await self.sandbox.settle()
            self.sandbox.hold()
            if not self._group.can_freeze():
                await asyncio.to_thread(processes.stop, self._folders.home)
            elif not await asyncio.to_thread(self._group.freeze):
                raise SandboxError(f"{self.record.made.title} could not be paused in time; try again")
        except BaseException:
            await self.resume()
            raise

    async def resume(self) -> None:
        if self._is_paused:
            self._release()
            self.sandbox.go_on()

    def _release(self) -> None:
        if not self._is_paused:
            return
        self._is_paused = False
        if self._group.can_freeze():
            self._group.thaw()
        else:
            processes.go_on(self._folders.home)

    async def leave(self) -> None:
        """Close our connection and other work of this process for it."""
        if self._timer and self._timer is not asyncio.current_task():
            self._timer.cancel()
            await asyncio.gather(self._timer, return_exceptions=True)
        await self._chores.close()
        await self.sandbox.close()
        os.close(self._lock)
