"""Disk space of a sandbox: a file system of fixed size, or a watch over how much its files take."""

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

from ...local.processes.programs import find_helper
from .bwrap import SYSTEM_PATH

NO_SETUID, NO_DEVICES = 2, 4
DETACH = 2
# A file in memory takes at least a page; many small files reach this limit first.
FILES_PER_MB = 512
# Disks usually have one inode per 16 KB; few projects have smaller files on average.
FILES_PER_MB_ON_DISK = 64
LEAST_FILES = 20_000
# Between two checks of the host's free space, which cost one system call.
POLL_EVERY_S = 0.1
# Between two scans of all files, and the share of time that scans may take.
CHECK_S = 1.0
SHARE_OF_CHECKING = 0.05


def mount_sized(folder: Path, megabytes: int, owner: int = 0) -> bool:
    """Mount a file system in memory there, visible to every bubblewrap; False where this process may not."""
    if os.path.ismount(folder):
        return True
    if os.geteuid() != 0:
        return False
    options = f"size={megabytes}m,nr_inodes={megabytes * FILES_PER_MB},mode=0700,uid={owner},gid={owner}"
    mount = ctypes.CDLL(None, use_errno=True).mount
    words = (b"tmpfs", os.fsencode(folder), b"tmpfs", ctypes.c_ulong(NO_SETUID | NO_DEVICES), options.encode())
    return not mount(*words)


def unmount(folder: Path) -> None:
    """Detach it at once, even if it is in use."""
    if os.path.ismount(folder):
        ctypes.CDLL(None).umount2(os.fsencode(folder), DETACH)


@dataclass(frozen=True)
class DiskUse:
    """Space and number of files: a disk has a fixed number of inodes as well."""

    megabytes: int
    files: int

    def exceeds(self, most: DiskUse) -> bool:
        return self.megabytes > most.megabytes or self.files > most.files

    def plus(self, more: DiskUse) -> DiskUse:
        return DiskUse(self.megabytes + more.megabytes, self.files + more.files)


def most_files(megabytes: int) -> int:
    """Number of files for this much space; the host's disk has about as many inodes."""
    return max(LEAST_FILES, megabytes * FILES_PER_MB_ON_DISK)


def measure(folder: Path) -> DiskUse:
    """Measure the space and the files below a folder, or a link to one; `du` follows no links and handles any depth."""
    folder = folder.resolve()
    return DiskUse(_du("-skx", folder) >> 10, _du("-sx", folder, "--inodes"))


def _du(flags: str, folder: Path, *more: str) -> int:
    words = [find_helper("du") or "/usr/bin/du", flags, *more, str(folder)]
    result = subprocess.run(words, capture_output=True, env={"PATH": SYSTEM_PATH}, check=False)
    size = result.stdout.split(b"\t")[0]
    return int(size) if size.isdigit() else 0


def room_left(folder: Path) -> DiskUse:
    """Free space of the file system; zero where it cannot be determined."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return DiskUse(0, 0)
    return DiskUse((found.f_bfree * found.f_frsize) >> 20, found.f_ffree)


def remove_tree(folder: Path) -> None:
    """Remove a folder of any depth and with any modes, after its processes have ended."""
    # Each folder is moved up to the top before it is emptied, so that no path is long and no recursion deep.
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
    """Remove one entry of the top folder; its subfolders are moved to the top."""
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
    """Remove a file; False for a folder."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return True
    except (IsADirectoryError, PermissionError):
        return False
    return True


def _move_up(inner: int, name: str, top: int, number: int) -> int:
    with contextlib.suppress(FileNotFoundError):
        # A read-only folder cannot be moved, because its `..` entry would change.
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


# What a sandbox over its limit may still add: enough to run commands that delete something.
SLACK = DiskUse(16, 1000)


@dataclass(frozen=True)
class DiskCheck:
    """Result of a scan, and the host's free space at that moment."""

    used: DiskUse
    left: DiskUse
    at: float
    took: float


class DiskWatch:
    """Ends a sandbox's processes when its files exceed `most`, or grow further after that."""

    def __init__(
        self,
        folder: Path,
        most: DiskUse,
        is_active: Callable[[], bool],
        end: Callable[[], Awaitable[None]],
        *,
        is_new: bool,
    ) -> None:
        # The usage at the last scan, while that exceeds the limit.
        self.over: DiskUse | None = None
        self._folder = folder
        self._most = self._allowed = most
        self._is_active = is_active
        self._end = end
        # Whether all files were written by processes of this sandbox; else the first scan ends nothing.
        self._is_new = is_new
        self._last: DiskCheck | None = None

    async def run(self) -> None:
        while True:
            await asyncio.sleep(POLL_EVERY_S)
            if self._is_active() and self._is_due() and await self.check():
                await self._end()

    def _is_due(self) -> bool:
        """Whether to scan: at a steady pace, and sooner when the host's disk lost enough to pass the limit."""
        last = self._last
        if last is None:
            return True
        since = time.monotonic() - last.at
        if since > max(CHECK_S, last.took / SHARE_OF_CHECKING):
            return True
        left = room_left(self._folder)
        gone = DiskUse(last.left.megabytes - left.megabytes, last.left.files - left.files)
        return since > last.took and last.used.plus(gone).exceeds(self._allowed)

    async def check(self) -> bool:
        """Scan; returns whether the files have grown over the limit, or further over it than before."""
        begun, left = time.monotonic(), room_left(self._folder)
        used = await asyncio.to_thread(measure, self._folder)
        is_first, now = self._last is None, time.monotonic()
        self._last = DiskCheck(used, left, now, now - begun)
        self.over = used if used.exceeds(self._most) else None
        is_beyond = used.exceeds(self._allowed)
        if self.over is None:
            self._allowed = self._most
        elif is_beyond:
            self._allowed = used.plus(SLACK)
        # Files that were there before were not written by processes that run now.
        return is_beyond and not (is_first and not self._is_new)
