"""Functions on an SFTP client: read and write files, describe them, and explain errors."""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import stat
import zlib
from typing import TYPE_CHECKING, Any

from ...core.sandboxes.files import Entry
from ...far.outpost.files import KINDS

if TYPE_CHECKING:
    import asyncssh

CHUNK = 1 << 20
# How many bytes of a file's beginning and end are part of its version.
SAMPLE = 1 << 16


def to_path(text: str, home: str) -> str:
    """A caller's path made absolute: `~` and relative paths start at the home folder."""
    below = text[2:] if text == "~" or text.startswith("~/") else text
    return posixpath.normpath(posixpath.join(home, below))


def to_bytes(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def to_text(path: bytes | str) -> str:
    return path if isinstance(path, str) else path.decode("utf-8", "surrogateescape")


def explain(problem: asyncssh.SFTPError) -> tuple[str, str]:
    """A reason for programs and a message for people. SFTP has codes for a few causes only."""
    import asyncssh

    known: dict[Any, tuple[str, str]] = {
        asyncssh.SFTPNoSuchFile: ("ENOENT", "No such file or directory"),
        asyncssh.SFTPNoSuchPath: ("ENOENT", "No such file or directory"),
        asyncssh.SFTPPermissionDenied: ("EACCES", "Permission denied"),
        asyncssh.SFTPNotADirectory: ("ENOTDIR", "Not a directory"),
        asyncssh.SFTPNoSpaceOnFilesystem: ("ENOSPC", "No space left on device"),
        asyncssh.SFTPQuotaExceeded: ("EDQUOT", "Disk quota exceeded"),
    }
    return known.get(type(problem), ("EIO", f"the machine's SFTP server says only: {problem.reason}"))


async def goes_through_a_file(client: asyncssh.SFTPClient, path: str) -> bool:
    """Whether a path cannot exist because something on the way is not a folder, for which SFTP has no code."""
    import asyncssh

    with contextlib.suppress(asyncssh.SFTPError):
        while path != (parent := posixpath.dirname(path)):
            path = parent
            with contextlib.suppress(asyncssh.SFTPNoSuchFile):
                return kind_of(await client.stat(to_bytes(path))) != "dir"
    return False


def kind_of(found: asyncssh.SFTPAttrs) -> str:
    return KINDS.get(stat.S_IFMT(found.permissions or 0), "other")


def entry_of(path: str, found: asyncssh.SFTPAttrs) -> Entry:
    return Entry(path, kind_of(found), found.size or 0, (found.mtime or 0) + (found.mtime_ns or 0) / 1e9)


async def look_at(client: asyncssh.SFTPClient, path: bytes) -> asyncssh.SFTPAttrs | None:
    import asyncssh

    try:
        return await client.lstat(path)
    except (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath):
        return None


def version_of(found: asyncssh.SFTPAttrs, sample: bytes) -> str:
    """Identifies one state of a file; also by content, because two writes within a second have the same time."""
    return f"{found.mtime or 0:x}-{found.mtime_ns or 0:x}-{found.size or 0:x}-{zlib.crc32(sample):x}"


def sample_of(data: bytes) -> bytes:
    """Return the bytes that `read_sample` would read from a file with this content."""
    return data[:SAMPLE] + data[max(SAMPLE, len(data) - SAMPLE) :]


async def read_sample(file: asyncssh.SFTPClientFile, size: int) -> bytes:
    head = read_exactly(file, 0, min(size, SAMPLE))
    return b"".join(await asyncio.gather(head, read_exactly(file, max(SAMPLE, size - SAMPLE), SAMPLE)))


async def read_exactly(file: asyncssh.SFTPClientFile, start: int, size: int) -> bytes:
    """Read this many bytes, or all there are. Files in /proc, larger than their size says, give short reads."""
    data = bytearray()
    while len(data) < size:
        piece = await read_piece(file, start + len(data), size - len(data))
        if not piece:
            break
        data += piece
    return bytes(data)


async def read_piece(file: asyncssh.SFTPClientFile, start: int, size: int) -> bytes:
    data = await file.read(size, start)
    assert isinstance(data, bytes)
    # A server may send more than it was asked for.
    return data[:size]


async def read_lines(file: asyncssh.SFTPClientFile, first: int, count: int, limit: int) -> tuple[int, bytes, bool]:
    """`count` lines from line `first`, counted from 1: their offset, their bytes, and whether more follows."""
    start = await skip_lines(file, first - 1)
    data, end = b"", -1
    while end < 0 and len(data) <= limit:
        piece = await read_piece(file, start + len(data), CHUNK)
        if not piece:
            break
        data += piece
        end = after_line(data, count)
    if end < 0:
        return start, data[:limit], len(data) > limit
    more = end > limit or len(data) > end or bool(await read_piece(file, start + end, 1))
    return start, data[: min(end, limit)], more


async def skip_lines(file: asyncssh.SFTPClientFile, count: int) -> int:
    start = 0
    while count > 0:
        piece = await read_piece(file, start, CHUNK)
        if not piece:
            break
        end = after_line(piece, count)
        count -= piece.count(b"\n")
        start += end if end >= 0 else len(piece)
    return start


def after_line(data: bytes, count: int) -> int:
    """The offset after the first `count` lines; -1 if the data has fewer."""
    at = 0
    for _ in range(count):
        at = data.find(b"\n", at) + 1
        if not at:
            return -1
    return at


async def put(client: asyncssh.SFTPClient, path: bytes, data: bytes, old: asyncssh.SFTPAttrs | None) -> None:
    """Write a new file, with the owner and mode of the one that it will replace."""
    import asyncssh

    flags = asyncssh.FXF_WRITE | asyncssh.FXF_CREAT | asyncssh.FXF_EXCL
    attrs = asyncssh.SFTPAttrs(permissions=0o666 if old is None else 0o600)
    async with client.open(path, flags, attrs, encoding=None) as file:
        await file.write(data)
        if old is not None:
            # Only root can give files away.
            with contextlib.suppress(asyncssh.SFTPPermissionDenied, asyncssh.SFTPFailure):
                await file.setstat(asyncssh.SFTPAttrs(uid=old.uid, gid=old.gid))
            await file.chmod(stat.S_IMODE(old.permissions or 0o600))
        with contextlib.suppress(asyncssh.SFTPOpUnsupported):
            await file.fsync()


async def replace(client: asyncssh.SFTPClient, fresh: bytes, target: bytes) -> None:
    """Put a new file in place in one step; if the server cannot, the old file is renamed until the new one is there."""
    import asyncssh

    try:
        await client.posix_rename(fresh, target)
    except asyncssh.SFTPOpUnsupported:
        aside = fresh + b"-old"
        if await look_at(client, target):
            await client.rename(target, aside)
        await client.rename(fresh, target)
        if await look_at(client, aside):
            await client.remove(aside)
