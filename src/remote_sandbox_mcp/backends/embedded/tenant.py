"""A disposable sandbox in the hands of this server: its line, its time, its disk, and whether it is paused."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from ...core.command import Environment
from ...core.disposable import Disposable
from ...core.errors import SandboxError
from ...core.machine import LocalPlace
from ...core.network import Network
from ..walls import Bounds, Folders
from . import cgroups, limits, processes
from .disk_watch import DiskWatch
from .sandbox import EmbeddedSandbox
from .shelf import Record, Shelf, is_alone

LONGEST_NAP_S = 3600.0


class Tenant:
    """Holds the lock of its folder from beginning to end."""

    def __init__(
        self,
        shelf: Shelf,
        record: Record,
        bounds: Bounds,
        env: Mapping[str, str],
        usual: Environment,
        network: Network,
        lock: int,
    ) -> None:
        self.record = record
        self._shelf = shelf
        self._lock = lock
        self._group = cgroups.known(record.groups)
        runs = shelf.runs(record.made.id)
        self._folders = Folders(shelf.box(record.made.id), shelf.root.parent, runs if runs.exists() else None)
        self._is_paused = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.Task[None] | None = None
        made = record.made
        environment = replace(usual, env={**usual.env, **env})
        place = LocalPlace(made.title, network, environment, made.image)
        self.sandbox = EmbeddedSandbox(place, self._folders, bounds, self._closed, self._full, self._release)
        self._disk = DiskWatch(
            self._folders.root, limits.most_on_disk(made.limits), self._is_active, self.sandbox.end_all, is_new=True
        )
        if not limits.has_real_disk(made.limits):
            self._later(self._disk.run())

    def _is_active(self) -> bool:
        return self.sandbox.is_in_use and not self._is_paused

    def _closed(self) -> str:
        if self._is_over():
            # Another server may have renewed it.
            self.record = self._shelf.read(self.record.made.id) or self.record
        made = self.record.made
        if self._is_over():
            return f"{made.title} has expired; create another"
        if not self._shelf.has(made.id):
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
        """Start it while its maker is still on the way back."""
        self._later(self._open_quietly())

    async def _open_quietly(self) -> None:
        # Who uses it is told why it cannot be opened.
        with contextlib.suppress(SandboxError):
            await self.sandbox.open()

    def begin(self, expire: Callable[[Disposable], Awaitable[None]]) -> None:
        """Let its time run, from what its record says now."""
        if self._timer:
            self._timer.cancel()
        self._timer = asyncio.create_task(self._outlive(expire)) if self.record.made.expires else None

    async def _outlive(self, expire: Callable[[Disposable], Awaitable[None]]) -> None:
        while True:
            left = self.record.made.expires - time.time()
            if left <= 0:
                break
            # In naps: clocks are set, and machines sleep.
            await asyncio.sleep(min(left, LONGEST_NAP_S))
        self._timer = None
        await expire(self.record.made)

    def is_alone(self) -> bool:
        """Whether no other server has it in use."""
        return is_alone(self._lock)

    async def pause(self) -> None:
        """Raises SandboxError, with everything going on, where it cannot be stopped."""
        # To others it would be dead; and to end what is frozen, as they would try to, takes for ever.
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
        """End our line into it, and whatever else of ours goes on for it."""
        mine = {task for task in (self._timer, *self._tasks) if task and task is not asyncio.current_task()}
        for task in mine:
            task.cancel()
        await asyncio.gather(*mine, return_exceptions=True)
        await self.sandbox.close()
        os.close(self._lock)

    def _later(self, chore: Awaitable[None]) -> None:
        task = asyncio.ensure_future(chore)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
