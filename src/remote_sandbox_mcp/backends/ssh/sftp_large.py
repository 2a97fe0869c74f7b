"""Large files on their way in over SFTP: a partial file beside the final place, filled by any number of lanes."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..outpost.far.expected import UNKNOWN
from ..outpost.far.source import PIECE
from ..outpost.far.tree import PARTIAL, BadName, Refusal, checked
from .sftp import to_bytes
from .sftp_remote import SECOND, Remote, attributes, check_file
from .sftp_root import Root

if TYPE_CHECKING:
    import asyncssh


@dataclass(frozen=True)
class Large:
    """A large file on its way. All of it is sent: what an earlier transfer left could not be told from rubbish."""

    folder: bytes
    name: bytes
    partial: bytes
    size: int
    file: asyncssh.SFTPClientFile


class LargeFiles:
    """The large files that a lane is writing, by key."""

    def __init__(self, remote: Remote, root: Root) -> None:
        self.remote = remote
        self.root = root
        self.large: dict[bytes, Large] = {}

    def close(self) -> None:
        for large in self.large.values():
            self.remote.close_later(large.file)
        self.large.clear()

    async def begin(self, order: dict[str, Any], raw: bytes) -> dict[str, Any]:
        """Make the partial file, instead of one that is there."""
        folder, name, key = raw.split(b"\0")
        if key in self.large:
            raise Refusal("busy", f"{key!r} is being received already")
        partial, size = PARTIAL + checked(key), int(order["size"])
        checked(name)
        path = await self.root.folder(folder, make=True) + b"/" + partial
        file = await self.root.within(folder, lambda: self._create(path))
        self.large[key] = Large(folder, name, partial, size, file)
        return {"fresh": True, "partial": partial.decode()}

    async def _create(self, path: bytes) -> asyncssh.SFTPClientFile:
        found = await self.remote.look(path)
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

    async def join(self, order: dict[str, Any], raw: bytes) -> dict[str, Any]:
        """Another lane writes the same partial file."""
        import asyncssh

        folder, name, key, partial = raw.split(b"\0")
        if key not in self.large:
            checked(name)
            if not checked(partial).startswith(PARTIAL):
                raise BadName(f"{partial!r} is no partial file")
            path = await self.root.folder(folder) + b"/" + partial
            check_file(await self.remote.ask(self.remote.client.lstat(path)))
            file = await self.remote.open(path, asyncssh.FXF_WRITE)
            self.large[key] = Large(folder, name, partial, int(order["size"]), file)
        return {}

    async def write_part(self, key: bytes, body: bytes) -> int:
        """A hole is nothing to do: the file was empty, and gets its size at the end."""
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

    async def commit(self, order: dict[str, Any], raw: bytes) -> dict[str, Any]:
        """All parts are there: put it in place."""
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

    async def leave(self, order: dict[str, Any], raw: bytes) -> dict[str, Any]:
        """This lane is done with a large file; what is written of it stays."""
        if raw in self.large:
            self.remote.close_later(self.large.pop(raw).file)
        return {}


async def _sync(file: asyncssh.SFTPClientFile) -> None:
    import asyncssh

    with contextlib.suppress(asyncssh.SFTPOpUnsupported):
        await file.fsync()
