"""The `local` sandbox: a permanent one in bubblewrap, with limits like those of disposable ones."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import time
from pathlib import Path

from ...core.commands.command import Command, Completed, Running
from ...core.errors import ConnectError, Unsupported
from ...core.progress import Progress, silent
from ...core.sandboxes.disposable import Limits
from ...core.sandboxes.files import Written
from ...core.sandboxes.machine import LocalPlace
from ...core.sandboxes.sandbox import Capabilities, Description
from ...core.sync.transfer import Lane
from ..link.client import OutpostClient
from ..mending import opened
from . import cgroups, landlock, limits
from .disk import DiskUse, DiskWatch
from .disposable import EmbeddedSandbox
from .landlock import find_footing, why_not
from .memory import MemoryWatch
from .store import claim
from .walls import USER, Bounds, Folders

__all__ = ["LocalSandbox", "describe", "find_footing", "open_local", "why_not"]

CLAIM_S = 5.0
REMOVE_S = 1.0
# This far over its limit, nothing is run any more: each command that was ended may have left something.
MUCH = DiskUse(2048, 100_000)


def describe(place: LocalPlace) -> Description:
    """The description of the local sandbox before it is opened."""
    capabilities = Capabilities(kills_trees=True, network=bool(place.network), is_this_computer=True)
    return Description(place.name, "local", user=USER, capabilities=capabilities)


async def open_local(place: LocalPlace, state_folder: Path) -> LocalSandbox:
    """Open it isolated, or not at all. Raises Unsupported, ConnectError."""
    return await opened(LocalSandbox(place, Folders.of(place, state_folder)))


class LocalSandbox(EmbeddedSandbox):
    """Local sandbox; its home and /tmp stay when it is closed. All processes that have it open share one control group.

    Over its disk's limit, commands may run that remove something; much over it, none.
    """

    crowded = (
        "it has as many processes as it may: wait until some have ended, or end all of them with delete_sandbox, which "
        "leaves its files; `processes` under [local] in config.toml allows more"
    )

    def __init__(self, place: LocalPlace, folders: Folders) -> None:
        super().__init__(place, folders, Bounds(), lambda: "", self._too_much, lambda: None, describe(place))
        self._place = place
        self._folders = folders
        self._group = cgroups.Group()
        self._lock: int | None = None
        self._moving_in = asyncio.Lock()
        self._watching: list[asyncio.Task[object]] = []
        self._disk: DiskWatch | None = None
        self.limits = Limits()

    async def _reach(self) -> OutpostClient:
        # One at a time: two calls at once must not take two locks.
        async with self._moving_in:
            if self._lock is None:
                await self._move_in()
        return await super()._reach()

    async def _move_in(self) -> None:
        """Enforce its limits, and watch its disk."""
        limits.check(self._place.limits)
        footing = await find_footing(self._place.walls)
        if isinstance(footing, str):
            raise Unsupported(footing)
        root = self._folders.root
        try:
            landlock.make_root(root, footing)
            self._lock = await asyncio.to_thread(claim_patiently, root)
            self._group = cgroups.make(cgroups.plan(cgroups.find_bases(), group_name(root)))
        except OSError as problem:
            raise ConnectError.of_parts(f"unable to open {self._place.name}", f"{root}: {problem.strerror}") from None
        held = limits.hold(self._place.limits, self._group, footing, is_disk_real=False, shm_mb=self._place.shm_mb)
        self._bounds, self.limits = held.bounds, held.limits
        most = limits.most_on_disk(held.limits)
        self._disk = DiskWatch(root, most, lambda: self.is_in_use, self.end_all, is_new=False)
        # Its files are measured while it is being opened.
        self._watching = [asyncio.ensure_future(self._disk.check()), asyncio.ensure_future(self._disk.run())]
        if most_mb := held.bounds.watched_mb:
            memory = MemoryWatch(self._place.name, self._folders.home, most_mb, lambda: self.is_in_use)
            self._watching.append(asyncio.ensure_future(memory.run()))

    def _too_much(self) -> str:
        return self._over_limit("remove something with a short command, or ")

    def _over_limit(self, advice: str = "") -> str:
        used = self._disk.over if self._disk else None
        if not used:
            return ""
        return (
            f"{self._place.name} holds {limits.too_much(used, self.limits)}: {advice}let its owner remove something "
            f"from {self._folders.root} or set a larger disk_mb under [local] in config.toml"
        )

    async def _check_again(self) -> None:
        """Scan again: files may have been removed since, even from outside."""
        if self._disk and self._disk.over:
            await self._disk.check()

    def _refuse_more(self) -> None:
        most = limits.most_on_disk(self.limits).plus(MUCH)
        if self._disk and self._disk.over and self._disk.over.exceeds(most):
            raise ConnectError(self._over_limit())

    async def run(
        self, command: Command, *, patience_s: float | None = None, progress: Progress = silent
    ) -> Completed | Running:
        await self._check_again()
        return await super().run(command, patience_s=patience_s, progress=progress)

    async def write(self, path: str, data: bytes, *, expected: str | None = None, force: bool = False) -> Written:
        await self._check_again()
        return await super().write(path, data, expected=expected, force=force)

    async def open_lane(self) -> Lane:
        await self._check_again()
        return await super().open_lane()

    async def close(self) -> None:
        """End all its processes, unless another process of ours has it open, too; then only our own."""
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        await super().close()
        lock, self._lock = self._lock, None
        if lock is not None:
            await asyncio.to_thread(leave, lock, self._group)


def group_name(root: Path) -> str:
    # A digest, because a path is too long and may contain anything.
    return f"local-{hashlib.sha256(os.fsencode(root)).hexdigest()[:12]}"


def claim_patiently(root: Path) -> int:
    """Take a shared lock. A process that is just leaving has it exclusively for a moment."""
    until = time.monotonic() + CLAIM_S
    while (lock := claim(root)) is None:
        if time.monotonic() > until:
            raise TimeoutError(0, "another server does not let go of it")
        time.sleep(0.01)
    return lock


def leave(lock: int, group: cgroups.Group) -> None:
    """Remove the control group if no other process uses it."""
    try:
        # An exclusive lock succeeds only if no other process has the sandbox open.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        group.remove(REMOVE_S)
    except BlockingIOError:
        pass
    finally:
        os.close(lock)
