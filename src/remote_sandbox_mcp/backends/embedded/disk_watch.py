"""Watches how much disk a sandbox takes, where no file system of its own holds it to a size."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from . import disk
from .disk import Usage

# Between two glances at how much room the host's file system has left, which cost one system call.
GLANCE_S = 0.1
# Between two looks at all files, and the share of the time that these may take.
LOOK_S = 1.0
SHARE_OF_LOOKING = 0.05
# What one that is over its limit may still add: enough to run the commands that remove something.
SLACK = Usage(16, 1000)


@dataclass(frozen=True)
class Look:
    """What all files took at one moment, and the room that the host's file system had left then."""

    used: Usage
    left: Usage
    at: float
    took: float


class DiskWatch:
    """Ends what runs in a sandbox when its files pass `most`, or when they grow further after that.

    `over` is what they took when they were last looked at, as long as that is more than they may. In a sandbox that
    `is_new` everything was written by what runs in it.
    """

    def __init__(
        self,
        folder: Path,
        most: Usage,
        is_active: Callable[[], bool],
        end: Callable[[], Awaitable[None]],
        *,
        is_new: bool,
    ) -> None:
        self.over: Usage | None = None
        self._folder = folder
        self._most = self._allowed = most
        self._is_active = is_active
        self._end = end
        self._is_new = is_new
        self._last: Look | None = None

    async def run(self) -> None:
        while True:
            await asyncio.sleep(GLANCE_S)
            if self._is_active() and self._is_due() and await self.look():
                await self._end()

    def _is_due(self) -> bool:
        """At a steady pace; and sooner when the host has lost so much room that the limit may have been passed."""
        last = self._last
        if last is None:
            return True
        since = time.monotonic() - last.at
        if since > max(LOOK_S, last.took / SHARE_OF_LOOKING):
            return True
        left = disk.room_left(self._folder)
        gone = Usage(last.left.megabytes - left.megabytes, last.left.files - left.files)
        return since > last.took and last.used.plus(gone).exceeds(self._allowed)

    async def look(self) -> bool:
        """Whether the files have grown beyond what they may, or beyond what they took when they already had."""
        begun, left = time.monotonic(), disk.room_left(self._folder)
        used = await asyncio.to_thread(disk.measure, self._folder)
        is_first, now = self._last is None, time.monotonic()
        self._last = Look(used, left, now, now - begun)
        self.over = used if used.exceeds(self._most) else None
        is_beyond = used.exceeds(self._allowed)
        if self.over is None:
            self._allowed = self._most
        elif is_beyond:
            self._allowed = used.plus(SLACK)
        # What was there before, nothing that runs now has written.
        return is_beyond and not (is_first and not self._is_new)
