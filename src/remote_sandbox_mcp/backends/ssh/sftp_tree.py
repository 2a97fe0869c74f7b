"""What is in a tree on an SFTP machine: many folders are read at once, and told in the order of any other lane."""

from __future__ import annotations

import asyncio
import errno
import posixpath
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ..outpost.far.tree import Survey, Teller, child, kind_of, meta_of
from .sftp import goes_through_a_file, to_bytes, to_path, to_text
from .sftp_many import each, end
from .sftp_remote import Remote, nanoseconds

if TYPE_CHECKING:
    import asyncssh

LONGEST_GITIGNORE = 1 << 20


async def look_at(remote: Remote, order: dict[str, Any]) -> dict[str, Any]:
    """What is at a path; a link there is followed, because its user named it."""
    path = to_path(str(order["path"]), remote.home)
    real, home, kind = await asyncio.gather(
        _real_path(remote, to_bytes(path)), _real_path(remote, to_bytes(remote.home)), _kind_at(remote, path)
    )
    return {"kind": kind, "path": path, "real": to_text(real), "home": to_text(home)}


async def _kind_at(remote: Remote, path: str) -> str:
    try:
        return kind_of((await remote.ask(remote.client.stat(to_bytes(path)))).permissions or 0)
    except FileNotFoundError:
        if await remote.look(to_bytes(path)):
            return "other"
        if await goes_through_a_file(remote.client, path):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory") from None
        return "missing"


async def _real_path(remote: Remote, path: bytes) -> bytes:
    """Without links as far as it exists, and the rest as it is."""
    rest: list[bytes] = []
    while path.strip(b"/"):
        try:
            path = await remote.ask(remote.client.realpath(path))
            break
        except OSError:
            path, name = posixpath.split(path)
            rest.insert(0, name)
    return posixpath.join(path, *rest)


async def scan(remote: Remote, order: dict[str, Any], say: Callable[[bytes], None]) -> dict[str, Any]:
    """Say the tree folder by folder; return what else there is to say of it."""
    survey = SftpSurvey(remote, order, await look_at(remote, order))
    if survey.fields["kind"] == "dir":
        await survey.tell(say)
    elif survey.fields["kind"] == "file":
        found: Any = Found.of(await remote.ask(remote.client.stat(survey.root)))
        survey.fields["meta"] = to_text(meta_of(found))
    return {**survey.result(), "coarse": True}


class Found(NamedTuple):
    """What SFTP says of an entry, as the other lanes' survey reads it."""

    st_mode: int
    st_size: int
    st_mtime_ns: int
    link: bytes | OSError = b""

    @classmethod
    def of(cls, found: asyncssh.SFTPAttrs) -> Found:
        return cls(found.permissions or 0, found.size or 0, nanoseconds(found))


class Entry(NamedTuple):
    """The same for a folder's entry."""

    name: bytes
    found: Found

    def is_dir(self, *, follow_symlinks: bool) -> bool:
        return stat.S_ISDIR(self.found.st_mode)

    def stat(self, *, follow_symlinks: bool) -> Found:
        return self.found


class _Visit(NamedTuple):
    block: bytes
    files: int
    folders: list[bytes]


class SftpSurvey(Survey):
    """One look over a tree."""

    def __init__(self, remote: Remote, order: dict[str, Any], fields: dict[str, Any]) -> None:
        super().__init__(order, fields)
        self.remote = remote
        self._visits: dict[bytes, asyncio.Task[_Visit | None]] = {}

    async def tell(self, say: Callable[[bytes], None]) -> None:
        folders, teller = [b""], Teller(say, False)
        self._begin(b"")
        try:
            while folders:
                folder = folders.pop()
                visit = await self._visits.pop(folder)
                if visit is None:
                    continue
                folders += visit.folders
                teller.tell(folder, visit.block, visit.files)
            teller.flush()
        finally:
            await end(self._visits.values())

    def _begin(self, folder: bytes) -> None:
        self._visits[folder] = asyncio.ensure_future(self._visit(folder))

    async def _visit(self, folder: bytes) -> _Visit | None:
        """None where it could not be read; for the top that is the whole answer. Raises OSError, LineLost."""
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
        return _Visit(b"\0".join(fields), len(fields) // 2 - len(folders), folders)

    async def _entries(self, folder: bytes) -> list[Entry]:
        path = posixpath.join(self.root, folder)
        found = {name: Found.of(attrs) for name, attrs in (await self.remote.list_folder(path)).items()}

        async def follow(name: bytes) -> None:
            try:
                link = await self.remote.ask(self.remote.client.readlink(posixpath.join(path, name)))
                found[name] = found[name]._replace(link=link)
            except OSError as problem:
                found[name] = found[name]._replace(link=problem)

        await each([name for name, entry in found.items() if stat.S_ISLNK(entry.st_mode)], follow)
        if self.gitignore and b".gitignore" in found:
            await self._heed(folder)
        return [Entry(name, entry) for name, entry in found.items()]

    async def _heed(self, folder: bytes) -> None:
        """Take the folder's .gitignore into account; SFTP would wait for a pipe's writer for ever."""
        try:
            text = await self._read(posixpath.join(self.root, folder, b".gitignore"))
        except OSError as problem:
            self.problems.note(child(folder, b".gitignore"), problem)
            return
        self.ignore.add(folder, text.split(b"\n"))
        self.gitignores.append([to_text(folder), to_text(text)])

    async def _read(self, path: bytes) -> bytes:
        import asyncssh

        found = await self.remote.ask(self.remote.client.stat(path))
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
