"""The receiving side of an SFTP lane: writes files beside their place, renames them, and never leaves its tree."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import secrets
import stat
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...far.lane.expected import UNKNOWN, Expected, with_found
from ...far.lane.source import PIECE
from ...far.lane.target import Receiving, attributes_in
from ...far.lane.tree import (
    FAILURES,
    FOREIGN_S,
    OURS,
    PARTIAL,
    BadName,
    Problems,
    Refusal,
    checked_name,
    child,
    paths_in,
)
from ...far.outpost.place import to_bytes
from ...far.outpost.wire import FILES, PART
from .library import asyncssh
from .sftp_remote import SECOND, Remote, Root, attributes, attributes_of, check_file, each, from_the_deepest

if TYPE_CHECKING:
    from ...core import orders


class Target:
    """The tree that a lane writes to."""

    def __init__(self, remote: Remote, root: Root) -> None:
        self.remote = remote
        self.root = root
        self.large = SftpLargeFiles(remote, root)
        self._stem = OURS + f"sync-{secrets.token_hex(8)}-".encode()
        self._made = 0

    def close(self) -> None:
        self.large.close()

    # Small entries

    async def put(self, folder: bytes, name: bytes, expected: Expected, mtime: int, data: bytes) -> None:
        """Write a file under a temporary name, then rename it over the old one: there is always one. Raises OSError."""
        # Before that, the old one must still be what the scan found, or already be what came.
        where = await self.root.folder(folder, make=True)
        self._made += 1
        fresh, final = where + b"/" + self._stem + b"%d" % self._made, where + b"/" + checked_name(name)
        # SFTP keeps times in whole seconds.
        coming = expected.described(mtime // SECOND * SECOND, len(data))
        async with self.remote.places:
            try:
                now = await self.root.within(folder, lambda: self._create(fresh, final, expected, mtime, data))
                try:
                    await self.remote.compare(final, now, expected.found, coming)
                except OSError:
                    await self._remove_fresh(fresh)
                    raise
                await self.remote.put_in_place(fresh, final)
            except OSError as problem:
                raise await self._explain(problem, where, name, len(data)) from None

    async def _create(
        self, fresh: bytes, final: bytes, expected: Expected, mtime: int, data: bytes
    ) -> asyncssh.SFTPAttrs | None:
        """Write the temporary file; returns what is at its final place, asked for in the same round trip."""
        if expected.link is not None:
            await self.remote.link(expected.link, fresh)
            return await self.remote.attributes(final)
        file = await self.remote.create(fresh, expected.mode & 0o777)
        then = file.setstat(attributes(expected.mode, mtime)), file.close(), attributes_of(self.remote.client, final)
        try:
            *_, now = await self.remote.ask_all(*self.remote.writes(file, 0, data), *then)
        except OSError:
            await self._remove_fresh(fresh)
            raise
        found: asyncssh.SFTPAttrs | None = now
        return found

    async def _remove_fresh(self, fresh: bytes) -> None:
        with contextlib.suppress(OSError):
            await self.remote.ask(self.remote.client.remove(fresh))

    async def _explain(self, problem: OSError, where: bytes, name: bytes, size: int = 0) -> OSError:
        if problem.errno == errno.EIO and await self._is_folder(where + b"/" + name):
            return IsADirectoryError(errno.EISDIR, "Is a directory")
        return await self.remote.explain(problem, where or b"/", size)

    async def _is_folder(self, path: bytes) -> bool:
        found = await self.remote.attributes(path)
        return found is not None and stat.S_ISDIR(found.permissions or 0)

    # Deletions

    async def clear(self, order: orders.ClearOrder, raw: bytes) -> orders.ProblemsAnswer:
        """Remove files, links and empty folders that are in the way of an entry of another kind."""
        problems, found = Problems(), dict(with_found(order, paths_in(raw)))
        folders: list[bytes] = []

        async def clear_one(path: bytes) -> None:
            if path and await self._is_folder(self.root.full(path)):
                folders.append(path)
            else:
                await self._remove_file(path, found[path])

        await _try_each(paths_in(raw), clear_one, problems)
        for level in from_the_deepest(folders):
            await _try_each(level, self._remove_folder, problems)
        self.root.forget()
        return problems.fields()

    async def _remove(self, path: bytes, how: Callable[[bytes], Awaitable[None]], found: bytes = UNKNOWN) -> None:
        full = await self.root.entry(path)
        async with self.remote.places:
            if found != UNKNOWN:
                await self.remote.check_still(full, found)
            await self.root.within(path.rpartition(b"/")[0], lambda: self.remote.ask(how(full)))

    async def _remove_file(self, path: bytes, found: bytes) -> None:
        try:
            await self._remove(path, self.remote.client.remove, found)
        except OSError as problem:
            raise await self._explain(problem, self.root.path, path) from None

    async def _remove_folder(self, path: bytes) -> None:
        try:
            await self._remove(path, self.remote.client.rmdir)
        except OSError as problem:
            # SFTP has no code for a folder that is not empty.
            if problem.errno == errno.EIO and await self.remote.list_folder(self.root.full(path)):
                raise OSError(errno.ENOTEMPTY, "Directory not empty") from None
            raise

    async def delete(self, order: orders.DeleteOrder, raw: bytes) -> orders.DeleteAnswer:
        """Delete files, then folders from the deepest up; a folder that is not empty stays."""
        files, _, folders = raw.partition(b"\0\0")
        problems, gone = Problems(), {"files": 0, "dirs": 0}
        found = dict(with_found(order, paths_in(files)))

        async def delete_file(path: bytes) -> None:
            with contextlib.suppress(FileNotFoundError):
                await self._remove_file(path, found[path])
                gone["files"] += 1

        async def delete_folder(path: bytes) -> None:
            try:
                await self._remove_folder(path)
                gone["dirs"] += 1
            except OSError as problem:
                if problem.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                    raise

        await _try_each(paths_in(files), delete_file, problems)
        self.root.forget()
        for level in from_the_deepest(paths_in(folders)):
            await _try_each(level, delete_folder, problems)
        self.root.forget()
        return {**problems.fields(), "files": gone["files"], "dirs": gone["dirs"]}

    # Folders, attributes, leftovers

    async def finish(self, order: orders.FinishOrder, raw: bytes) -> orders.FinishAnswer:
        """Give folders their modes and times, from the deepest up, after everything was written into them."""
        problems, there, made = Problems(), [], 0
        wanted = {path: (mode, mtime) for path, mode, mtime in attributes_in(raw)}

        async def make(path: bytes) -> None:
            await self.root.folder(path, make=True)
            there.append(path)

        async def set_attributes(path: bytes) -> None:
            nonlocal made
            await self.remote.ask(self.remote.client.setstat(self.root.full(path), attributes(*wanted[path])))
            made += 1

        # All folders are made before modes are set: a mode may close a folder to us.
        await _try_each(list(wanted), make, problems)
        for level in from_the_deepest(there):
            await _try_each(level, set_attributes, problems)
        self.root.forget()
        return {**problems.fields(), "made": made}

    async def touch(self, order: orders.TouchOrder, raw: bytes) -> orders.ProblemsAnswer:
        """Give files whose content is already right their mode and time."""
        problems = Problems()
        wanted = {path: (mode, mtime) for path, mode, mtime in attributes_in(raw)}
        found = dict(with_found(order, list(wanted)))

        async def touch_one(path: bytes) -> None:
            full = await self.root.entry(path)
            now = await self.remote.ask(self.remote.client.lstat(full))
            check_file(now)
            # With the source's time, later syncs would take a file edited meanwhile for a copy of the source.
            await self.remote.compare(full, now, found[path])
            await self.remote.ask(self.remote.client.setstat(full, attributes(*wanted[path])))

        await _try_each(list(wanted), touch_one, problems)
        return problems.fields()

    async def tidy(self, order: orders.TidyOrder, raw: bytes) -> orders.TidyAnswer:
        """Remove files that an earlier transfer left under temporary names; by age, because SFTP has no locks."""
        removed = 0

        async def tidy_one(path: bytes) -> None:
            nonlocal removed
            full = await self.root.entry(path)
            found = await self.remote.ask(self.remote.client.lstat(full))
            if (
                path.rpartition(b"/")[2].startswith(OURS)
                and time.time() - max(found.mtime or 0, found.atime or 0) > FOREIGN_S
            ):
                await self._remove(path, self.remote.client.remove)
                removed += 1

        await _try_each(paths_in(raw), tidy_one, Problems())
        return {"removed": removed}


async def _try_each(paths: list[bytes], work: Callable[[bytes], Awaitable[None]], problems: Problems) -> None:
    """Do the work for each path; failures are noted and do not stop the others."""

    async def try_one(path: bytes) -> None:
        try:
            await work(path)
        except (OSError, BadName) as problem:
            problems.note(path, problem)

    await each(paths, try_one)


class SftpReceiving(Receiving):
    """Takes the frames of one request, many at once."""

    def __init__(self, find_target: Callable[[], Target], order: orders.ReceiveOrder, raw: bytes) -> None:
        super().__init__(None, order, raw)
        self._find_target = find_target
        # Frames that are being written.
        self.pending: set[asyncio.Task[None]] = set()

    async def take_frame(self, kind: int, body: bytes) -> None:
        """Take one frame. Raises LineLost."""
        if self.failure:
            return
        try:
            if self.key and kind == PART:
                written = await self._find_target().large.write_part(self.key, body)
                self.bytes += written
            elif kind == FILES and not self.key:
                await self._find_target().root.folder(b"", make=True)
                await each(list(self.incoming(body)), self._put)
            else:
                raise Refusal("broken", f"a frame of kind {kind} was not expected")
        except FAILURES as problem:
            self.fail(problem)

    async def _put(self, entry: tuple[bytes, bytes, Expected, int, int, bytes]) -> None:
        folder, name, expected, mode, mtime, data = entry
        try:
            expected.check(mode, data)
            await self._find_target().put(folder, checked_name(name), expected, mtime, data)
            self.note_put(child(folder, name), expected, mtime, len(data))
        except (OSError, BadName) as problem:
            self.problems.note(child(folder, name), problem)

    async def answer(self) -> orders.ReceiveAnswer:
        """The answer, after all frames are written. Raises Refusal."""
        if self.pending:
            await asyncio.wait(self.pending)
        if not self.key:
            await self._find_target().root.folder(b"", make=True)
        return self.result()


@dataclass(frozen=True)
class SftpLargeFile:
    """A large file that is being received. It is always sent whole: SFTP cannot check what an earlier transfer left."""

    folder: bytes
    name: bytes
    partial: bytes
    size: int
    file: asyncssh.SFTPClientFile


class SftpLargeFiles:
    """The large files that a lane is writing, by key."""

    def __init__(self, remote: Remote, root: Root) -> None:
        self.remote = remote
        self.root = root
        self.large: dict[bytes, SftpLargeFile] = {}

    def close(self) -> None:
        for large in self.large.values():
            self.remote.close_later(large.file)
        self.large.clear()

    async def begin(self, order: orders.BeginOrder, raw: bytes) -> orders.BeginAnswer:
        """Make the partial file; one that is there is replaced."""
        folder, name, key = raw.split(b"\0")
        if key in self.large:
            raise Refusal("busy", f"{key!r} is being received already")
        partial, size = PARTIAL + checked_name(key), int(order["size"])
        checked_name(name)
        path = await self.root.folder(folder, make=True) + b"/" + partial
        file = await self.root.within(folder, lambda: self._create(path))
        self.large[key] = SftpLargeFile(folder, name, partial, size, file)
        return {"fresh": True, "partial": partial.decode()}

    async def _create(self, path: bytes) -> asyncssh.SFTPClientFile:
        found = await self.remote.attributes(path)
        if found is not None:
            try:
                check_file(found)
            except OSError:
                raise Refusal("in_the_way", f"{path.decode('utf-8', 'replace')} is in the way") from None
            await self.remote.ask(self.remote.client.remove(path))
        try:
            return await self.remote.create(path, 0o600)
        except OSError as problem:
            raise await self.remote.explain(problem, path.rpartition(b"/")[0]) from None

    async def join(self, order: orders.JoinOrder, raw: bytes) -> orders.Nothing:
        """Have this lane write a partial file that another lane has begun."""
        folder, name, key, partial = raw.split(b"\0")
        if key not in self.large:
            checked_name(name)
            if not checked_name(partial).startswith(PARTIAL):
                raise BadName(f"{partial!r} is no partial file")
            path = await self.root.folder(folder) + b"/" + partial
            check_file(await self.remote.ask(self.remote.client.lstat(path)))
            file = await self.remote.open(path, asyncssh.FXF_WRITE)
            self.large[key] = SftpLargeFile(folder, name, partial, int(order["size"]), file)
        return {}

    async def write_part(self, key: bytes, body: bytes) -> int:
        """Write a part. A hole needs nothing: the file was empty, and gets its size at the end."""
        large = self.large[key]
        offset, hole = map(int, PIECE.unpack_from(body))
        data = body[PIECE.size :]
        if offset + hole + len(data) > large.size:
            raise Refusal("bounds", "a part that lies beyond the end of its file")
        try:
            await self.remote.ask_all(*self.remote.writes(large.file, offset, data))
        except OSError as problem:
            raise await self.remote.explain(problem, self.root.full(large.folder), len(data)) from None
        return hole + len(data)

    async def commit(self, order: orders.CommitOrder, raw: bytes) -> orders.CommitAnswer:
        """Put a file whose parts are all there in place."""
        large = self.large.pop(raw)
        size, mtime = int(order["size"]), int(order["mtime"])
        found = to_bytes(str(order.get("found", UNKNOWN.decode())))
        attrs = attributes(int(order["mode"]), mtime, size)
        try:
            await self.remote.ask_all(large.file.setstat(attrs), _sync(large.file), large.file.close())
        except OSError as problem:
            raise await self.remote.explain(problem, self.root.full(large.folder), size) from None
        where = await self.root.folder(large.folder, make=True)
        coming = b"f %d %d" % (size, mtime // SECOND * SECOND)
        await self.remote.check_still(where + b"/" + large.name, found, coming)
        await self.remote.put_in_place(where + b"/" + large.partial, where + b"/" + large.name)
        return {"state": f"{attrs.mtime:x}-{size:x}"}

    async def leave(self, order: orders.LeaveOrder, raw: bytes) -> orders.Nothing:
        """Have this lane close a large file; its partial file stays."""
        if raw in self.large:
            self.remote.close_later(self.large.pop(raw).file)
        return {}


async def _sync(file: asyncssh.SFTPClientFile) -> None:
    with contextlib.suppress(asyncssh.SFTPOpUnsupported):
        await file.fsync()
