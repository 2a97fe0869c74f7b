"""A tree on an SFTP machine, and the way down from its top, on which no link is followed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import posixpath
import stat
from collections.abc import Awaitable, Callable, Iterable
from itertools import groupby
from typing import TypeVar

from ..outpost.far.tree import checked
from .sftp import to_bytes, to_path
from .sftp_many import for_all, outcome
from .sftp_remote import Remote

T = TypeVar("T")


class Root:
    """SFTP opens whatever a path leads to, so each folder on the way is looked at once before it is used."""

    def __init__(self, remote: Remote, text: str) -> None:
        self.remote = remote
        # Without a slash at its end, even where it is one: names are added with their own.
        self.path = to_bytes(to_path(text, remote.home)).rstrip(b"/")
        self._known: set[bytes] = set()
        self._finding: dict[bytes, asyncio.Task[None]] = {}

    def forget(self) -> None:
        """Folders may be moved or removed now."""
        self._known.clear()

    def full(self, path: bytes) -> bytes:
        return self.path + b"/" + path if path else self.path or b"/"

    async def folder(self, path: bytes, make: bool = False) -> bytes:
        """The full path of a folder of the tree, for names to be added to. Raises OSError, BadName, LineLost."""
        if path not in self._known:
            if path not in self._finding:
                self._finding[path] = for_all(self._find(path, make))
                self._finding[path].add_done_callback(lambda _: self._finding.pop(path))
            await outcome(self._finding[path])
        return self.path + b"/" + path if path else self.path

    async def _find(self, path: bytes, make: bool) -> None:
        if not path:
            await self._find_top(make)
        else:
            above, _, name = path.rpartition(b"/")
            checked(name)
            await self.folder(above, make)
            if not await self._is_folder(path):
                if not make:
                    raise FileNotFoundError(errno.ENOENT, "No such file or directory")
                await self.within(above, lambda: self._make(path))
        self._known.add(path)

    async def _find_top(self, make: bool) -> None:
        """The top may be reached through links: its user named it."""
        try:
            await self._find_top_at(self.full(b""))
        except FileNotFoundError:
            if not make:
                raise
            await self._make_top(self.full(b""))

    async def _find_top_at(self, path: bytes) -> None:
        found = await self.remote.ask(self.remote.client.stat(path))
        if not stat.S_ISDIR(found.permissions or 0):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory")

    async def _make_top(self, path: bytes) -> None:
        """With what is missing above it, and with the usual mode, as a shell would."""
        above = posixpath.dirname(path)
        try:
            await self.remote.ask(self.remote.client.mkdir(path))
        except FileNotFoundError:
            if await self.remote.look(above):
                # A file has nothing below it, and neither has a file system of the kernel's.
                await self._find_top_at(above)
                raise
            await self._make_top(above)
            await self.remote.ask(self.remote.client.mkdir(path))
        except PermissionError:
            raise
        except OSError as problem:
            # Another lane may have been quicker.
            if await self.remote.look(path) is None:
                raise await self.remote.explain(problem, above) from None
            await self._find_top_at(path)

    async def _is_folder(self, path: bytes) -> bool:
        """Whether there is one; raises OSError where there is something else."""
        found = await self.remote.look(self.full(path))
        if found is None:
            return False
        if stat.S_ISLNK(found.permissions or 0):
            raise NotADirectoryError(errno.ENOTDIR, "a symbolic link is in the way, and is not followed")
        if not stat.S_ISDIR(found.permissions or 0):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory")
        return True

    async def _make(self, path: bytes) -> None:
        """Open to its owner alone until it has its own mode: files come first."""
        import asyncssh

        try:
            await self.remote.ask(self.remote.client.mkdir(self.full(path), asyncssh.SFTPAttrs(permissions=0o700)))
        except PermissionError:
            raise
        except OSError as problem:
            # Another lane may have been quicker.
            if not await self._is_folder(path):
                raise await self.remote.explain(problem, self.full(path.rpartition(b"/")[0])) from None

    async def within(self, folder: bytes, act: Callable[[], Awaitable[T]]) -> T:
        """Do something in a folder; one that its owner may not write to, as at the source, is opened for that.

        It gets its mode at the end.
        """
        try:
            return await act()
        except PermissionError:
            await self._open_up(self.full(folder))
            return await act()

    async def _open_up(self, path: bytes) -> None:
        """One that is open to its owner already is left alone: then it was something else, or somebody was quicker."""
        import asyncssh

        found = await self.remote.ask(self.remote.client.stat(path))
        mode = stat.S_IMODE(found.permissions or 0)
        if mode & 0o700 != 0o700:
            attrs = asyncssh.SFTPAttrs(permissions=mode | 0o700)
            with contextlib.suppress(PermissionError):
                await self.remote.ask(self.remote.client.setstat(path, attrs))


def from_the_deepest(paths: Iterable[bytes]) -> list[list[bytes]]:
    """Paths of one depth together, the deepest first: what is in a folder comes before the folder."""
    ordered = sorted(paths, key=_depth, reverse=True)
    return [list(group) for _, group in groupby(ordered, key=_depth)]


def _depth(path: bytes) -> int:
    return path.count(b"/") + 1 if path else 0
