"""Functions on an SFTP client: read and write files, describe them, and explain errors."""

from __future__ import annotations

import contextlib
import posixpath
import stat
from typing import Any

from ...far.outpost.files import KINDS
from ...far.outpost.place import to_bytes
from .library import asyncssh


def to_path(text: str, home: str) -> str:
    """A caller's path made absolute: `~` and relative paths start at the home folder."""
    below = text[2:] if text == "~" or text.startswith("~/") else text
    return posixpath.normpath(posixpath.join(home, below))


def explain(problem: asyncssh.SFTPError) -> tuple[str, str]:
    """A reason for programs and a message for people. SFTP has codes for a few causes only."""
    reasons: dict[Any, tuple[str, str]] = {
        asyncssh.SFTPNoSuchFile: ("ENOENT", "No such file or directory"),
        asyncssh.SFTPNoSuchPath: ("ENOENT", "No such file or directory"),
        asyncssh.SFTPPermissionDenied: ("EACCES", "Permission denied"),
        asyncssh.SFTPNotADirectory: ("ENOTDIR", "Not a directory"),
        asyncssh.SFTPNoSpaceOnFilesystem: ("ENOSPC", "No space left on device"),
        asyncssh.SFTPQuotaExceeded: ("EDQUOT", "Disk quota exceeded"),
    }
    return reasons.get(type(problem), ("EIO", f"the machine's SFTP server says only: {problem.reason}"))


async def goes_through_a_file(client: asyncssh.SFTPClient, path: str) -> bool:
    """Whether a path cannot exist because something on the way is not a folder, for which SFTP has no code."""
    with contextlib.suppress(asyncssh.SFTPError):
        while path != (parent := posixpath.dirname(path)):
            path = parent
            with contextlib.suppress(asyncssh.SFTPNoSuchFile):
                return kind_of(await client.stat(to_bytes(path))) != "dir"
    return False


def kind_of(found: asyncssh.SFTPAttrs) -> str:
    return KINDS.get(stat.S_IFMT(found.permissions or 0), "other")


async def attributes_of(client: asyncssh.SFTPClient, path: bytes) -> asyncssh.SFTPAttrs | None:
    try:
        return await client.lstat(path)
    except (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath):
        return None


async def read_piece(file: asyncssh.SFTPClientFile, start: int, size: int) -> bytes:
    data = await file.read(size, start)
    assert isinstance(data, bytes)
    # A server may send more than it was asked for.
    return data[:size]


async def replace(client: asyncssh.SFTPClient, fresh: bytes, target: bytes) -> None:
    """Put a new file in place in one step; if the server cannot, the old file is renamed until the new one is there."""
    try:
        await client.posix_rename(fresh, target)
    except asyncssh.SFTPOpUnsupported:
        aside = fresh + b"-old"
        if await attributes_of(client, target):
            await client.rename(target, aside)
        await client.rename(fresh, target)
        if await attributes_of(client, aside):
            await client.remove(aside)
