"""Access to an SFTP server: many requests at once, its refusals as OSErrors, and paths that follow no links."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import posixpath
import stat
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from itertools import groupby
from typing import Any, TypeVar, cast

from ...far.lane.expected import EDITED, UNKNOWN, link_of
from ...far.lane.tree import checked_name
from ...far.outpost.place import to_bytes
from ...local.waiting import Chores, end_all, unlogged
from ..link.client import LineLost
from .library import asyncssh

# How many entries are worked on at once.
AT_ONCE = 64

T = TypeVar("T")
# How many bytes of a file, and how many hundreds of a folder's names, are asked for before the first have come.
AHEAD, NAMES_REQUESTED = 2 << 20, 16
# A folder with more names than this is not read.
MOST_NAMES = 1_000_000
LONGEST_READ = 128 << 10
# Small enough that even a slow connection brings answers often, which tells it from a frozen one.
LONGEST_WRITE = 32 << 10
SECOND = 10**9
# The latest time that SFTP version 3 can carry.
LATEST = (1 << 32) - 1
ST_RDONLY = 1


class Load:
    """Counts bytes that are held in memory; callers wait in `room` while there are too many."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._held = 0
        self._light = asyncio.Event()
        self._light.set()

    def add(self, size: int) -> None:
        """Add to the count; a negative size subtracts."""
        self._held += size
        self._light.set() if self._held <= self._limit else self._light.clear()

    async def room(self) -> None:
        while self._held > self._limit:
            await self._light.wait()

    def lift(self) -> None:
        """Remove the limit, so that no caller waits any more."""
        self._limit = float("inf")
        self._light.set()

    @contextlib.contextmanager
    def held(self, size: int) -> Iterator[None]:
        self.add(size)
        try:
            yield
        finally:
            self.add(-size)


async def each(items: Iterable[T], work: Callable[[T], Awaitable[None]]) -> None:
    """Do the work for all items, AT_ONCE at a time; if one fails, the others are ended before that is raised."""
    todo = iter(items)

    async def go_on() -> None:
        for item in todo:
            await work(item)

    first = list(itertools.islice(todo, AT_ONCE))
    todo = itertools.chain(first, todo)
    tasks = [asyncio.ensure_future(go_on()) for _ in first]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        await end_all(tasks)
        raise


async def outcome(task: asyncio.Task[T]) -> T:
    """Wait for shared work; it goes on if the caller is cancelled."""
    await asyncio.wait((task,))
    return task.result()


def ours(problem: Exception) -> OSError | LineLost:
    """The server's refusal as an OSError; any other exception means that the connection is lost."""
    is_cut = isinstance(problem, (asyncssh.SFTPConnectionLost, asyncssh.SFTPNoConnection))
    if is_cut or not isinstance(problem, asyncssh.SFTPError):
        return LineLost()
    # SFTP has codes for a few causes only.
    numbers: dict[Any, int] = {
        asyncssh.SFTPNoSuchFile: errno.ENOENT,
        asyncssh.SFTPNoSuchPath: errno.ENOENT,
        asyncssh.SFTPPermissionDenied: errno.EACCES,
        asyncssh.SFTPNotADirectory: errno.ENOTDIR,
        asyncssh.SFTPNoSpaceOnFilesystem: errno.ENOSPC,
        asyncssh.SFTPQuotaExceeded: errno.EDQUOT,
    }
    if number := numbers.get(type(problem)):
        return OSError(number, os.strerror(number))
    return OSError(errno.EIO, f"the machine's SFTP server says only: {problem.reason}")


def to_path(text: str, home: str) -> str:
    """A caller's path made absolute: `~` and relative paths start at the home folder."""
    below = text[2:] if text == "~" or text.startswith("~/") else text
    return posixpath.normpath(posixpath.join(home, below))


async def goes_through_a_file(client: asyncssh.SFTPClient, path: str) -> bool:
    """Whether a path cannot exist because something on the way is not a folder, for which SFTP has no code."""
    with contextlib.suppress(asyncssh.SFTPError):
        while path != (parent := posixpath.dirname(path)):
            path = parent
            with contextlib.suppress(asyncssh.SFTPNoSuchFile):
                return not stat.S_ISDIR((await client.stat(to_bytes(path))).permissions or 0)
    return False


async def attributes_of(client: asyncssh.SFTPClient, path: bytes) -> asyncssh.SFTPAttrs | None:
    try:
        return await client.lstat(path)
    except (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath):
        return None


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


def nanoseconds(found: asyncssh.SFTPAttrs) -> int:
    """The modification time in nanoseconds, as other lanes have it; SFTP knows it to the second."""
    return (found.mtime or 0) * SECOND


def check_file(found: asyncssh.SFTPAttrs) -> None:
    """Raises OSError for anything but a regular file."""
    if not stat.S_ISREG(found.permissions or 0):
        raise OSError(errno.EINVAL, "is no longer a file")


def attributes(mode: int, mtime: int, size: int | None = None) -> asyncssh.SFTPAttrs:
    """Attributes to be set in one step. With an access time of now, `tidy` does not take the file for a leftover."""
    seconds = max(0, min(mtime // SECOND, LATEST))
    return asyncssh.SFTPAttrs(size=size, permissions=mode & 0o7777, atime=int(time.time()), mtime=seconds)


class Remote:
    """A machine's SFTP server. Every method raises OSError if it refuses, and LineLost if the connection is cut."""

    def __init__(self, client: asyncssh.SFTPClient, home: str) -> None:
        self.client = client
        self.home = home
        # Bytes of files, in both directions.
        self.moved = 0
        # Limits how many files and folders are open at once.
        self.places = asyncio.Semaphore(AT_ONCE)
        limits = client.limits
        self._read_step = min(limits.max_read_len or LONGEST_READ, LONGEST_READ)
        self._write_step = min(limits.max_write_len or LONGEST_WRITE, LONGEST_WRITE)
        self._swaps_links: bool | None = None
        self._links_turn = asyncio.Lock()
        # Failures are not logged: a cut connection closes all files anyway.
        self._chores = Chores("closing a file", expected=(Exception,))

    async def ask(self, question: Awaitable[T]) -> T:
        try:
            return await question
        except (asyncssh.Error, OSError) as problem:
            raise ours(problem) from None

    async def ask_all(self, *questions: Awaitable[Any]) -> list[Any]:
        """Send requests without waiting in between; a server handles those about one file in order."""
        answers = await asyncio.gather(*questions, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, Exception):
                raise ours(answer)
        return answers

    async def attributes(self, path: bytes) -> asyncssh.SFTPAttrs | None:
        """The attributes of an entry, not following a link; None if there is none."""
        return await self.ask(attributes_of(self.client, path))

    async def check_still(self, path: bytes, *metas: bytes) -> None:
        """Raise OSError if an entry matches none of these metas: somebody has changed it since the scan."""
        await self.compare(path, await self.attributes(path), *metas)

    async def compare(self, path: bytes, now: asyncssh.SFTPAttrs | None, *metas: bytes) -> None:
        """Compare attributes that were read. Only files and links are compared; an entry may be gone."""
        if now is None or UNKNOWN in metas:
            return
        if stat.S_ISLNK(now.permissions or 0):
            link = await self.ask(self.client.readlink(path))
            if link in map(link_of, metas):
                return
            try:
                # A single file was scanned through the link that the user named.
                now = await self.ask(self.client.stat(path))
            except OSError:
                raise OSError(errno.ESTALE, EDITED) from None
        elif not stat.S_ISREG(now.permissions or 0):
            return
        described = b" %d %d" % (now.size or 0, nanoseconds(now))
        if not any(meta.startswith(b"f") and meta.endswith(described) for meta in metas):
            raise OSError(errno.ESTALE, EDITED)

    async def list_folder(self, folder: bytes) -> dict[bytes, asyncssh.SFTPAttrs]:
        """A folder's entries by name, in order."""
        found = {cast(bytes, entry.filename): entry.attrs for entry in await self.ask(self._names(folder))}
        if not found:
            # OpenSSH leaves out entries that it may not stat. If even `.` is missing, those are all: raise the error.
            await self.ask(self.client.lstat(folder + b"/."))
        return {name: found[name] for name in sorted(found) if name not in (b".", b"..")}

    async def _names(self, folder: bytes) -> list[asyncssh.SFTPName]:
        """List a folder with several requests under way: the client's scandir waits after each hundred names."""
        # asyncssh has no public way to send single readdir requests.
        handler = self.client._handler
        handle = await handler.opendir(folder)
        names: list[asyncssh.SFTPName] = []
        count, at_end = 2, False
        try:
            while not at_end:
                answers = await asyncio.gather(*(handler.readdir(handle) for _ in range(count)), return_exceptions=True)
                for answer in answers:
                    if isinstance(answer, asyncssh.SFTPEOFError):
                        at_end = True
                    elif isinstance(answer, BaseException):
                        raise answer
                    else:
                        names += answer[0]
                if len(names) > MOST_NAMES:
                    raise OSError(errno.EFBIG, f"more than {MOST_NAMES} names; none of them was looked at")
                count = min(2 * count, NAMES_REQUESTED)
        finally:
            self._chores.start(handler.close(handle))
        return names

    async def put_in_place(self, fresh: bytes, final: bytes) -> None:
        """Rename a temporary file to its final name; if that fails, remove it."""
        try:
            await self.ask(replace(self.client, fresh, final))
        except OSError:
            with contextlib.suppress(OSError):
                await self.ask(self.client.remove(fresh))
            raise

    async def link(self, target: bytes, path: bytes) -> None:
        async with self._links_turn:
            if self._swaps_links is None:
                self._swaps_links = await self._find_order(path)
        names = (path, target) if self._swaps_links else (target, path)
        await self.ask(self.client.symlink(*names))

    async def _find_order(self, path: bytes) -> bool:
        """Whether the server swaps the two names of a symlink request, as OpenSSH's does against the specification."""
        # Its version string does not tell if it runs behind another sshd. A swapped request would make a link at the
        # target's path, so it is tried with two names of ours first.
        one, other = path + b"-a", path + b"-b"
        await self.ask(self.client.symlink(other, one))
        swapped = await self.attributes(one) is None
        await self.ask(self.client.remove(other if swapped else one))
        return swapped

    async def open(self, path: bytes, flags: int, mode: int = 0o600) -> asyncssh.SFTPClientFile:
        """Open a file whose reads and writes are single requests."""
        attrs = asyncssh.SFTPAttrs(permissions=mode) if flags & asyncssh.FXF_CREAT else asyncssh.SFTPAttrs()
        return await self.ask(self.client.open(path, flags, attrs, encoding=None, block_size=0))

    async def create(self, path: bytes, mode: int) -> asyncssh.SFTPClientFile:
        return await self.open(path, asyncssh.FXF_WRITE | asyncssh.FXF_CREAT | asyncssh.FXF_EXCL, mode)

    def writes(self, file: asyncssh.SFTPClientFile, offset: int, data: bytes) -> Iterator[Coroutine[Any, Any, int]]:
        """The requests that write the data."""
        self.moved += len(data)
        for at in range(0, len(data), self._write_step):
            yield file.write(data[at : at + self._write_step], offset + at)

    def reads(self, file: asyncssh.SFTPClientFile, start: int, stop: int) -> Iterator[Coroutine[Any, Any, bytes]]:
        """The requests that read a range; an answer is short only at the end of the file."""
        for at in range(start, stop, self._read_step):
            yield self._read(file, at, min(self._read_step, stop - at))

    async def _read(self, file: asyncssh.SFTPClientFile, at: int, size: int) -> bytes:
        data = await file.read(size, at)
        assert isinstance(data, bytes)
        # A server may send more than it was asked for.
        self.moved += len(data[:size])
        return data[:size]

    async def read_on(
        self, file: asyncssh.SFTPClientFile, start: int, stop: int, take: Callable[[int, bytes], Awaitable[None]]
    ) -> None:
        """Read a range, asking for pieces ahead; each is passed to `take` in order, shorter at the end of the file."""
        requests: deque[asyncio.Future[bytes]] = deque()
        at = start
        try:
            for question in self.reads(file, start, stop):
                requests.append(asyncio.ensure_future(question))
                if len(requests) * self._read_step >= AHEAD:
                    await take(at, await self.ask(requests.popleft()))
                    at += self._read_step
            while requests:
                await take(at, await self.ask(requests.popleft()))
                at += self._read_step
        finally:
            await end_all(requests)

    def close_later(self, file: asyncssh.SFTPClientFile) -> None:
        """Close a file without awaiting the answer."""
        self._chores.start(file.close())

    async def explain(self, problem: OSError, folder: bytes, size: int = 0) -> OSError:
        """A more exact error: SFTP has one code for a full disk and much else, so the file system is asked."""
        if problem.errno != errno.EIO:
            return problem
        try:
            found = await self.ask(self.client.statvfs(folder))
        except OSError:
            return problem
        if found.flags & ST_RDONLY:
            return OSError(errno.EROFS, os.strerror(errno.EROFS))
        if (found.blocks and found.bavail * found.frsize <= size) or (found.files and not found.favail):
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return problem


class Root:
    """The top of a tree. SFTP follows links in paths, so each folder on the way is checked once before it is used."""

    def __init__(self, remote: Remote, text: str) -> None:
        self.remote = remote
        # Without a slash at its end, so "" for the root: names are added with a slash.
        self.path = to_bytes(to_path(text, remote.home)).rstrip(b"/")
        self._checked: set[bytes] = set()
        self._finding: dict[bytes, asyncio.Task[None]] = {}

    def forget(self) -> None:
        """Forget which folders were checked_name, because they may be moved or removed now."""
        self._checked.clear()

    def full(self, path: bytes) -> bytes:
        return self.path + b"/" + path if path else self.path or b"/"

    async def folder(self, path: bytes, make: bool = False) -> bytes:
        """The full path of a folder of the tree, after checking it. Raises OSError, BadName, LineLost."""
        if path not in self._checked:
            if path not in self._finding:
                self._finding[path] = unlogged(asyncio.ensure_future(self._find(path, make)))
                self._finding[path].add_done_callback(lambda _: self._finding.pop(path))
            await outcome(self._finding[path])
        return self.path + b"/" + path if path else self.path

    async def entry(self, path: bytes) -> bytes:
        """The full path of an entry of the tree, after checking the folders on the way. Raises OSError, BadName."""
        folder, _, name = path.rpartition(b"/")
        return await self.folder(folder) + b"/" + checked_name(name)

    async def _find(self, path: bytes, make: bool) -> None:
        if not path:
            await self._find_top(make)
        else:
            above, _, name = path.rpartition(b"/")
            checked_name(name)
            await self.folder(above, make)
            if not await self._is_folder(path):
                if not make:
                    raise FileNotFoundError(errno.ENOENT, "No such file or directory")
                await self.within(above, lambda: self._make(path))
        self._checked.add(path)

    async def _find_top(self, make: bool) -> None:
        """Check the top, which may be reached through links, because the user named it; with `make`, create it."""
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
        """Make the top folder and those above it, with the default mode."""
        above = posixpath.dirname(path)
        try:
            await self.remote.ask(self.remote.client.mkdir(path))
        except FileNotFoundError:
            if await self.remote.attributes(above):
                # The folder above exists: it is a file, or in a kernel file system such as /proc.
                await self._find_top_at(above)
                raise
            await self._make_top(above)
            await self.remote.ask(self.remote.client.mkdir(path))
        except PermissionError:
            raise
        except OSError as problem:
            # Another lane may have been quicker.
            if await self.remote.attributes(path) is None:
                raise await self.remote.explain(problem, above) from None
            await self._find_top_at(path)

    async def _is_folder(self, path: bytes) -> bool:
        """Whether there is a folder; False if there is nothing. Raises OSError for anything else."""
        found = await self.remote.attributes(self.full(path))
        if found is None:
            return False
        if stat.S_ISLNK(found.permissions or 0):
            raise NotADirectoryError(errno.ENOTDIR, "a symbolic link is in the way, and is not followed")
        if not stat.S_ISDIR(found.permissions or 0):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory")
        return True

    async def _make(self, path: bytes) -> None:
        """Make a folder of the tree, open to its owner alone: it gets its mode at the end, after its files."""
        try:
            await self.remote.ask(self.remote.client.mkdir(self.full(path), asyncssh.SFTPAttrs(permissions=0o700)))
        except PermissionError:
            raise
        except OSError as problem:
            # Another lane may have been quicker.
            if not await self._is_folder(path):
                raise await self.remote.explain(problem, self.full(path.rpartition(b"/")[0])) from None

    async def within(self, folder: bytes, act: Callable[[], Awaitable[T]]) -> T:
        """Do something in a folder. One that is read-only, as it is at the source, is made writable first."""
        # It gets its mode at the end.
        try:
            return await act()
        except PermissionError:
            await self._open_up(self.full(folder))
            return await act()

    async def _open_up(self, path: bytes) -> None:
        """Let the owner write to a folder. If the owner may already, the failure had another cause: nothing is done."""
        found = await self.remote.ask(self.remote.client.stat(path))
        mode = stat.S_IMODE(found.permissions or 0)
        if mode & 0o700 != 0o700:
            attrs = asyncssh.SFTPAttrs(permissions=mode | 0o700)
            with contextlib.suppress(PermissionError):
                await self.remote.ask(self.remote.client.setstat(path, attrs))


def from_the_deepest(paths: Iterable[bytes]) -> list[list[bytes]]:
    """Paths grouped by depth, the deepest first, so that the content of a folder comes before the folder."""
    ordered = sorted(paths, key=_depth, reverse=True)
    return [list(group) for _, group in groupby(ordered, key=_depth)]


def _depth(path: bytes) -> int:
    return path.count(b"/") + 1 if path else 0
