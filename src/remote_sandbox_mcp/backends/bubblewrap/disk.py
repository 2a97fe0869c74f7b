"""Disk space of a sandbox: a file system of its own size, or a watch over how much it takes."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import subprocess
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from .bwrap import SYSTEM_PATH

NO_SETUID, NO_DEVICES = 2, 4
DETACH = 2
# A file needs a page; those who make many small ones reach this first.
FILES_PER_MB = 512
# A disk has a table entry for 16 KB, as a rule; few projects have smaller files on average, but many are small.
FILES_PER_MB_ON_DISK = 64
LEAST_FILES = 20_000


def mount_sized(folder: Path, megabytes: int, owner: int = 0) -> bool:
    """A file system in memory on that folder, seen by every bubblewrap; False where this server may not."""
    if os.path.ismount(folder):
        return True
    if os.geteuid() != 0:
        return False
    options = f"size={megabytes}m,nr_inodes={megabytes * FILES_PER_MB},mode=0700,uid={owner},gid={owner}"
    mount = ctypes.CDLL(None, use_errno=True).mount
    words = (b"tmpfs", os.fsencode(folder), b"tmpfs", ctypes.c_ulong(NO_SETUID | NO_DEVICES), options.encode())
    return not mount(*words)


def unmount(folder: Path) -> None:
    """Detached at once, whoever still looks into it."""
    if os.path.ismount(folder):
        ctypes.CDLL(None).umount2(os.fsencode(folder), DETACH)


@dataclass(frozen=True)
class Usage:
    """What files take of a disk: room, and entries in its tables, of which it has a fixed number as well."""

    megabytes: int
    files: int

    def exceeds(self, most: Usage) -> bool:
        return self.megabytes > most.megabytes or self.files > most.files

    def plus(self, more: Usage) -> Usage:
        return Usage(self.megabytes + more.megabytes, self.files + more.files)


def most_files(megabytes: int) -> int:
    """How many files may share so much room on the host's disk, which has a table entry for about as many."""
    return max(LEAST_FILES, megabytes * FILES_PER_MB_ON_DISK)


def measure(folder: Path) -> Usage:
    """What the files below take; `du` follows no link, and no tree is too deep for it."""
    return Usage(_du("-skx", folder) >> 10, _du("-sx", folder, "--inodes"))


def _du(flags: str, folder: Path, *more: str) -> int:
    words = ["du", flags, *more, str(folder)]
    told = subprocess.run(words, capture_output=True, env={"PATH": SYSTEM_PATH}, check=False)
    size = told.stdout.split(b"\t")[0]
    return int(size) if size.isdigit() else 0


def room_left(folder: Path) -> Usage:
    """What the file system there can still take, from anybody; nothing where it cannot be asked."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return Usage(0, 0)
    return Usage((found.f_bfree * found.f_frsize) >> 20, found.f_ffree)


def remove_tree(folder: Path) -> None:
    """Remove a folder whose makers are dead, however deep it is and whatever its modes are.

    Each folder is moved up to the top before it is emptied, so that no path is long and no recursion deep.
    """
    try:
        top = _open_folder(str(folder))
    except FileNotFoundError:
        return
    try:
        number = 0
        while names := os.listdir(top):
            for name in names:
                number = _empty(top, name, number)
    finally:
        os.close(top)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(folder)


def _empty(top: int, name: str, number: int) -> int:
    """Remove one entry of the top; what it holds of folders becomes entries of the top."""
    if _unlinked(top, name):
        return number
    try:
        inner = _open_folder(name, top)
    except FileNotFoundError:
        return number
    try:
        for below in os.listdir(inner):
            if not _unlinked(inner, below):
                number = _move_up(inner, below, top, number)
    finally:
        os.close(inner)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(name, dir_fd=top)
    return number


def _unlinked(folder: int, name: str) -> bool:
    """False for a folder."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return True
    except (IsADirectoryError, PermissionError):
        return False
    return True


def _move_up(inner: int, name: str, top: int, number: int) -> int:
    with contextlib.suppress(FileNotFoundError):
        # A folder that nobody may write cannot be moved either: it knows the one above it.
        os.chmod(name, 0o700, dir_fd=inner)
        while True:
            number += 1
            try:
                os.rename(name, f".moved-{number}", src_dir_fd=inner, dst_dir_fd=top)
            except OSError as problem:
                if problem.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
            else:
                break
    return number


def _open_folder(name: str, above: int | None = None) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    found = os.stat(name, dir_fd=above, follow_symlinks=False)
    if found.st_mode & 0o700 != 0o700:
        os.chmod(name, 0o700, dir_fd=above)
    return os.open(name, flags, dir_fd=above)


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
        left = room_left(self._folder)
        gone = Usage(last.left.megabytes - left.megabytes, last.left.files - left.files)
        return since > last.took and last.used.plus(gone).exceeds(self._allowed)

    async def look(self) -> bool:
        """Whether the files have grown beyond what they may, or beyond what they took when they already had."""
        begun, left = time.monotonic(), room_left(self._folder)
        used = await asyncio.to_thread(measure, self._folder)
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
