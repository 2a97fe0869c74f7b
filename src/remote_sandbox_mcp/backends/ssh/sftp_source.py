"""The sending side of an SFTP lane: scans trees and reads files, and gives them as the frames of any other lane."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import posixpath
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ...core.sync.transfer import Lane
from ...far.lane.source import BEGINNING, CHANGED, ENTRY, FLUSH, LARGEST_WHOLE, PIECE, names_in_order
from ...far.lane.tree import Problems, Survey, Teller, child, kind_of, meta_of
from ...far.outpost.place import to_bytes, to_text
from ...far.outpost.wire import DONE, FILES, PART
from ...local.waiting import end_all, unlogged
from .library import asyncssh
from .sftp_remote import Load, Remote, Root, check_file, each, goes_through_a_file, nanoseconds, outcome, to_path

if TYPE_CHECKING:
    from ...core import orders

# How many bytes of files may be in memory before they are passed on.
HELD = 8 << 20
UNREADABLE = bytes(16)
LONGEST_GITIGNORE = 1 << 20


class Speaker:
    """Hands one request's frames to the lane that takes them."""

    def __init__(self, to: Lane | None, number: int) -> None:
        self._to = to
        self._number = number
        self._pending: list[bytes] = []
        self._size = 0

    async def say(self, kind: int, body: bytes) -> None:
        if self._to is not None:
            self._to.pass_on(kind, self._number, body)
            await self._to.room()

    async def add(self, entry: bytes, data: bytes) -> None:
        """Add a small file; many of them go into one frame."""
        self._pending += [entry, data]
        self._size += len(data)
        if self._size > FLUSH:
            await self._flush()

    async def _flush(self) -> None:
        pending, self._pending, self._size = self._pending, [], 0
        if pending:
            await self.say(FILES, b"".join(pending))

    async def done(self) -> None:
        await self._flush()
        await self.say(DONE, b"")


@dataclass
class _Opened:
    """A large file that is kept open from part to part."""

    opening: asyncio.Task[asyncssh.SFTPClientFile]
    readers: int = 0

    @property
    def has_failed(self) -> bool:
        return self.opening.done() and (self.opening.cancelled() or self.opening.exception() is not None)


class Source:
    """The tree that a lane sends from, and the large files that are open."""

    def __init__(self, remote: Remote, root: Root) -> None:
        self.remote = remote
        self.root = root
        self._held = Load(HELD)
        self._large: dict[bytes, _Opened] = {}

    def close(self) -> None:
        for path in list(self._large):
            self._let_go(path)

    # Whole files

    async def send(self, raw: bytes, speaker: Speaker) -> orders.ProblemsAnswer:
        """Send small files and links, each in one piece."""
        await self.root.folder(b"")
        problems = Problems()

        async def send_one(item: tuple[int, tuple[bytes, bytes]]) -> None:
            number, (folder, name) = item
            try:
                await self._send_one(number, folder, name, speaker, problems)
            except OSError as problem:
                problems.note(child(folder, name), problem)

        await each(enumerate(names_in_order(raw)), send_one)
        await speaker.done()
        return problems.fields()

    async def _send_one(self, number: int, folder: bytes, name: bytes, speaker: Speaker, problems: Problems) -> None:
        path, found = await self._find(folder, name)
        mode, mtime, size = found.permissions or 0, nanoseconds(found), min(found.size or 0, LARGEST_WHOLE)
        if stat.S_ISLNK(mode):
            link = await self.remote.ask(self.remote.client.readlink(path))
            await speaker.add(ENTRY.pack(number, mode, mtime, len(link)), link)
            return
        await self._held.room()
        with self._held.held(size):
            data, changed = await self._read_whole(path, found, size)
            if changed:
                problems.note(child(folder, name), CHANGED)
            await speaker.add(ENTRY.pack(number, mode, mtime, len(data)), data)

    async def _find(self, folder: bytes, name: bytes) -> tuple[bytes, asyncssh.SFTPAttrs]:
        path = await self.root.entry(child(folder, name))
        return path, await self.remote.ask(self.remote.client.lstat(path))

    async def _read_whole(self, path: bytes, found: asyncssh.SFTPAttrs, size: int) -> tuple[bytes, bool]:
        """The content, and whether it changed meanwhile. Of a growing file, only the size it had is read."""
        async with self.remote.places:
            file = await self._open(path, found)
            *pieces, now, _ = await self.remote.ask_all(*self.remote.reads(file, 0, size), file.stat(), file.close())
        data = b"".join(pieces)
        return data, (len(data), now.size, now.mtime) != (found.size, found.size, found.mtime)

    async def _open(self, path: bytes, found: asyncssh.SFTPAttrs) -> asyncssh.SFTPClientFile:
        """Open what was seen to be a regular file: SFTP follows links, and waits for a pipe's writer for ever."""
        check_file(found)
        return await self.remote.open(path, asyncssh.FXF_READ)

    # Parts of large files

    async def part(self, order: orders.PartOrder, raw: bytes, speaker: Speaker) -> orders.Nothing:
        folder, name = raw.split(b"\0")
        start = int(order["offset"])

        async def say(at: int, data: bytes) -> None:
            # A file that has shrunk gives less. The near side notices by its size at the end (check).
            if data:
                await speaker.say(PART, PIECE.pack(at, 0) + data)

        async with self._opened(folder, name) as file:
            await self.remote.read_on(file, start, start + int(order["length"]), say)
        await speaker.done()
        return {}

    @contextlib.asynccontextmanager
    async def _opened(self, folder: bytes, name: bytes) -> AsyncIterator[asyncssh.SFTPClientFile]:
        path = child(folder, name)
        opened = self._large.get(path)
        if opened is None:
            for other in [other for other, kept in self._large.items() if not kept.readers]:
                self._let_go(other)
            opened = self._large[path] = _Opened(unlogged(asyncio.ensure_future(self._open_large(folder, name))))
        opened.readers += 1
        try:
            yield await outcome(opened.opening)
        finally:
            opened.readers -= 1
            if opened.has_failed:
                self._large.pop(path, None)

    async def _open_large(self, folder: bytes, name: bytes) -> asyncssh.SFTPClientFile:
        return await self._open(*await self._find(folder, name))

    def _let_go(self, path: bytes) -> None:
        opened = self._large.pop(path)
        if opened.opening.done() and not opened.has_failed:
            self.remote.close_later(opened.opening.result())

    async def check(self, raw: bytes) -> orders.CheckAnswer:
        """Size, time and mode of a large file after it was read; by its name, because it may have been replaced."""
        folder, name = raw.split(b"\0")
        if child(folder, name) in self._large:
            self._let_go(child(folder, name))
        _, found = await self._find(folder, name)
        check_file(found)
        return {"size": found.size or 0, "mtime": nanoseconds(found), "mode": stat.S_IMODE(found.permissions or 0)}

    # Digests

    async def digests(self, raw: bytes) -> bytes:
        """A digest of each file's content; zeros, which equal no digest, for a file that cannot be read."""
        return b"".join(await self._of_each(raw, self._digest, UNREADABLE))

    async def _digest(self, folder: bytes, name: bytes) -> bytes:
        whole = hashlib.sha256()

        async def take(at: int, data: bytes) -> None:
            whole.update(data)

        await self._read(folder, name, take)
        return whole.digest()[:16]

    async def texts(self, raw: bytes) -> bytes:
        """One byte for each name: 1 if it is a file that begins like text, without a NUL, else 0."""
        return b"".join(await self._of_each(raw, self._is_text, b"\0"))

    async def _is_text(self, folder: bytes, name: bytes) -> bytes:
        beginning = bytearray()

        async def take(at: int, data: bytes) -> None:
            beginning.extend(data)

        await self._read(folder, name, take, BEGINNING)
        return bytes([0 not in beginning])

    async def _of_each(
        self, raw: bytes, work: Callable[[bytes, bytes], Awaitable[bytes]], otherwise: bytes
    ) -> list[bytes]:
        """Do the work for each name, with another answer for those that cannot be read."""
        names = list(names_in_order(raw))
        found = [otherwise] * len(names)

        async def try_one(number: int) -> None:
            with contextlib.suppress(OSError):
                found[number] = await work(*names[number])

        await each(range(len(names)), try_one)
        return found

    async def _read(
        self, folder: bytes, name: bytes, take: Callable[[int, bytes], Awaitable[None]], most: int | None = None
    ) -> None:
        """Read a file, or its beginning. Raises OSError."""
        path, found = await self._find(folder, name)
        size = found.size or 0
        async with self.remote.places:
            file = await self._open(path, found)
            try:
                await self.remote.read_on(file, 0, size if most is None else min(size, most), take)
            finally:
                self.remote.close_later(file)


async def inspect_path(remote: Remote, order: orders.InspectPathOrder | orders.ScanOrder) -> orders.InspectPathAnswer:
    """Return kind and place of a path. A link there is followed, because the user named it."""
    path = to_path(str(order["path"]), remote.home)
    real, home, kind = await asyncio.gather(
        _real_path(remote, to_bytes(path)), _real_path(remote, to_bytes(remote.home)), _kind_at(remote, path)
    )
    return {"kind": kind, "path": path, "real": to_text(real), "home": to_text(home)}


async def _kind_at(remote: Remote, path: str) -> str:
    try:
        return kind_of((await remote.ask(remote.client.stat(to_bytes(path)))).permissions or 0)
    except FileNotFoundError:
        if await remote.attributes(to_bytes(path)):
            return "other"
        if await goes_through_a_file(remote.client, path):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory") from None
        return "missing"


async def _real_path(remote: Remote, path: bytes) -> bytes:
    """A path with its links resolved as far as it exists; the rest stays as it is."""
    rest: list[bytes] = []
    while path.strip(b"/"):
        try:
            path = await remote.ask(remote.client.realpath(path))
            break
        except OSError:
            path, name = posixpath.split(path)
            rest.insert(0, name)
    return posixpath.join(path, *rest)


async def scan(remote: Remote, order: orders.ScanOrder, say: Callable[[bytes], None]) -> orders.ScanAnswer:
    """Send the tree folder by folder; returns the rest of the answer."""
    survey = SftpSurvey(remote, order, await inspect_path(remote, order))
    if survey.fields["kind"] == "dir":
        await survey.report(say)
    elif survey.fields["kind"] == "file":
        found: Any = SftpStat.of(await remote.ask(remote.client.stat(survey.root)))
        survey.meta = to_text(meta_of(found))
    said = survey.result()
    # SFTP's times are in whole seconds.
    said["coarse"] = True
    return said


class SftpStat(NamedTuple):
    """SFTP's attributes of an entry under the names of os.stat_result, which Survey reads."""

    st_mode: int
    st_size: int
    st_mtime_ns: int
    link: bytes | OSError = b""

    @classmethod
    def of(cls, found: asyncssh.SFTPAttrs) -> SftpStat:
        return cls(found.permissions or 0, found.size or 0, nanoseconds(found))


class SftpEntry(NamedTuple):
    """An entry of a folder with the methods of os.DirEntry, which Survey calls."""

    name: bytes
    found: SftpStat

    def is_dir(self, *, follow_symlinks: bool) -> bool:
        return stat.S_ISDIR(self.found.st_mode)

    def stat(self, *, follow_symlinks: bool) -> SftpStat:
        return self.found


# A folder's block, how many files it has, and its folders.
Visit = tuple[bytes, int, list[bytes]]


class SftpSurvey(Survey):
    """One scan of a tree over SFTP."""

    def __init__(self, remote: Remote, order: orders.ScanOrder, fields: orders.InspectPathAnswer) -> None:
        super().__init__(order, fields)
        self.remote = remote
        self._visits: dict[bytes, asyncio.Task[Visit | None]] = {}

    async def report(self, say: Callable[[bytes], None]) -> None:
        folders, teller = [b""], Teller(say, False)
        self._begin(b"")
        try:
            while folders:
                folder = folders.pop()
                if visit := await self._visits.pop(folder):
                    block, files, inner = visit
                    folders += inner
                    teller.report(folder, block, files)
            teller.flush()
        finally:
            await end_all(self._visits.values())

    def _begin(self, folder: bytes) -> None:
        self._visits[folder] = asyncio.ensure_future(self._visit(folder))

    async def _visit(self, folder: bytes) -> Visit | None:
        """Read a folder and begin with those in it; None if it cannot be read. Raises OSError for the top, LineLost."""
        folders: list[bytes] = []
        try:
            async with self.remote.places:
                entries = await self._entries(folder)
        except OSError as problem:
            if not folder:
                raise
            self.problems.note(folder, problem)
            return None
        fields = self.describe(folder, entries, folders)
        for inner in folders:
            self._begin(inner)
        return b"\0".join(fields), len(fields) // 2 - len(folders), folders

    async def _entries(self, folder: bytes) -> list[SftpEntry]:
        path = posixpath.join(self.root, folder)
        found = {name: SftpStat.of(attrs) for name, attrs in (await self.remote.list_folder(path)).items()}

        async def follow(name: bytes) -> None:
            try:
                link = await self.remote.ask(self.remote.client.readlink(posixpath.join(path, name)))
                found[name] = found[name]._replace(link=link)
            except OSError as problem:
                found[name] = found[name]._replace(link=problem)

        await each([name for name, entry in found.items() if stat.S_ISLNK(entry.st_mode)], follow)
        if self.gitignore and b".gitignore" in found:
            await self._read_gitignore(folder)
        return [SftpEntry(name, entry) for name, entry in found.items()]

    async def _read_gitignore(self, folder: bytes) -> None:
        """Take the folder's .gitignore into account."""
        try:
            text = await self._read(posixpath.join(self.root, folder, b".gitignore"))
        except OSError as problem:
            self.problems.note(child(folder, b".gitignore"), problem)
            return
        self.add_rules(folder, text)

    async def _read(self, path: bytes) -> bytes:
        found = await self.remote.ask(self.remote.client.stat(path))
        # Opening a named pipe over SFTP would wait for its writer for ever.
        if not stat.S_ISREG(found.permissions or 0):
            raise OSError(errno.EINVAL, "is not a file")
        file = await self.remote.open(path, asyncssh.FXF_READ)
        try:
            size = min(found.size or 0, LONGEST_GITIGNORE)
            return b"".join(await self.remote.ask_all(*self.remote.reads(file, 0, size)))
        finally:
            self.remote.close_later(file)

    def describe_other(self, path: bytes, found: Any) -> list[bytes]:
        if not stat.S_ISLNK(found.st_mode):
            return super().describe_other(path, found)
        if isinstance(found.link, OSError):
            raise found.link
        return [posixpath.basename(path), b"l777 0 0 %s" % found.link]
