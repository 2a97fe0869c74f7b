"""A sandbox's files on the host: a file system of a size of their own, how much there is, and how all of it goes."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ..bubblewrap import SYSTEM_PATH

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
