"""Files over SFTP: read, write and list, with the same answers as an outpost's."""

from __future__ import annotations

import builtins
import contextlib
import posixpath
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

from ...core.errors import FileProblem, Unsupported
from ...core.sandboxes.files import Entry, FileSlice, Listing, Problem, Span, Written
from ...far.outpost.files import MOST_PROBLEMS
from ..link.client import LineLost
from .channels import Channels, NoSubsystem
from .sftp import (
    entry_of,
    explain,
    goes_through_a_file,
    kind_of,
    look_at,
    put,
    read_exactly,
    read_lines,
    read_sample,
    replace,
    sample_of,
    to_bytes,
    to_path,
    to_text,
    version_of,
)

if TYPE_CHECKING:
    import asyncssh

# SFTP lists a folder in no order: up to this many names are read to find the first ones.
MOST_NAMES = 20_000


class PlainFiles:
    """One machine's files; every method raises FileProblem, Unsupported, ConnectError or LineLost."""

    def __init__(self, channels: Channels, name: str, find_home: Callable[[], Awaitable[str]]) -> None:
        self._channels = channels
        self._name = name
        self._find_home = find_home

    @contextlib.asynccontextmanager
    async def _client(self, path: str) -> AsyncIterator[tuple[asyncssh.SFTPClient, str]]:
        """The SFTP client and the absolute path; asyncssh's exceptions become ours here."""
        import asyncssh

        full = to_path(path, await self._find_home())
        client = await self._open()
        try:
            yield client, full
        except (asyncssh.SFTPConnectionLost, asyncssh.SFTPNoConnection) as problem:
            self._channels.drop_sftp(client)
            raise LineLost from problem
        except asyncssh.SFTPError as problem:
            reason, message = explain(problem)
            if reason in ("ENOENT", "EIO") and await goes_through_a_file(client, full):
                reason, message = "ENOTDIR", "Not a directory"
            raise FileProblem(f"{self._name}: {path}: {message}", reason) from None
        except (asyncssh.Error, OSError) as problem:
            raise LineLost from problem

    async def _open(self) -> asyncssh.SFTPClient:
        try:
            return await self._channels.sftp()
        except NoSubsystem:
            raise Unsupported(
                f"{self._name} has neither python3 nor SFTP, so its files can only be reached with commands: "
                "use exec_bash with cat, or install one of them"
            ) from None

    def _refusal(self, reason: str, message: str) -> FileProblem:
        return FileProblem(f"{self._name}: {message}", reason)

    async def read(self, path: str, span: Span) -> FileSlice:
        async with self._client(path) as (client, full):
            found = await client.stat(to_bytes(full))
            self._check_readable(full, found)
            size = found.size or 0
            async with client.open(to_bytes(full), "rb") as file:
                if span.lines:
                    start, data, more = await read_lines(file, span.line, span.lines, span.limit)
                else:
                    start = max(0, size + span.offset) if span.offset < 0 else span.offset
                    # One byte more than is wanted shows whether more follows.
                    data = await read_exactly(file, start, span.limit + 1)
                    data, more = data[: span.limit], len(data) > span.limit
                version = version_of(found, await read_sample(file, size))
        return FileSlice(data, max(size, start + len(data)) if data else size, version, start, more)

    def _check_readable(self, path: str, found: asyncssh.SFTPAttrs) -> None:
        """Refuse anything but a regular file: opening a named pipe over SFTP would wait for its writer for ever."""
        kind = kind_of(found)
        if kind == "dir":
            raise self._refusal("is_dir", f"{path} is a folder; list_remote_files shows what is in it")
        if kind != "file":
            raise self._refusal("not_a_file", f"{path} is a pipe, socket or device, not a file")

    async def write(self, path: str, data: bytes, expected: str | None) -> Written:
        async with self._client(path) as (client, full):
            old = await self._check_target(client, full, expected)
            folder, target = to_bytes(posixpath.dirname(full)), to_bytes(full)
            if old is None:
                await client.makedirs(folder, exist_ok=True)
            fresh = posixpath.join(folder, b".remote-sandbox-" + secrets.token_hex(8).encode())
            try:
                await put(client, fresh, data, old)
                written = await client.lstat(fresh)
                # Again, because the file may have changed while the new one was written; SFTP has no locks.
                await self._check_target(client, full, expected)
                await replace(client, fresh, target)
            except BaseException:
                await self._remove(client, fresh)
                raise
        return Written(len(data), version_of(written, sample_of(data)), old is None)

    async def _remove(self, client: asyncssh.SFTPClient, path: bytes) -> None:
        import asyncssh

        with contextlib.suppress(asyncssh.Error, OSError):
            await client.remove(path)

    async def _check_target(
        self, client: asyncssh.SFTPClient, path: str, expected: str | None
    ) -> asyncssh.SFTPAttrs | None:
        """The file at `path`, None if there is none. Raises FileProblem if it must not be replaced."""
        found = await look_at(client, to_bytes(path))
        if found is None:
            if expected:
                raise self._refusal("stale", f"{path} is no longer there; it was removed since it was read")
            return None
        if kind_of(found) == "link":
            target = to_text(await client.readlink(to_bytes(path)))
            target = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
            raise self._refusal("is_link", f"{path} is a symbolic link to {target}; write to that path instead")
        if kind_of(found) != "file":
            raise self._refusal("not_a_file", f"{path} is not a regular file, so it is not replaced")
        if expected == "":
            raise self._refusal("exists", f"{path} exists already")
        if expected is not None and expected != await self._version(client, path, found):
            raise self._refusal("stale", f"{path} has changed since it was read; read it again, then repeat")
        return found

    async def _version(self, client: asyncssh.SFTPClient, path: str, found: asyncssh.SFTPAttrs) -> str:
        async with client.open(to_bytes(path), "rb") as file:
            return version_of(found, await read_sample(file, found.size or 0))

    async def list(self, path: str, recursive: bool, limit: int) -> Listing:
        async with self._client(path) as (client, full):
            if kind_of(await client.stat(to_bytes(full))) != "dir":
                return Listing((entry_of(full, await client.lstat(to_bytes(full))),))
            return await _Lister(client, recursive, limit).walk(full)


class _Lister:
    """Walks folders in the order of their names, and stops as soon as there are enough entries."""

    def __init__(self, client: asyncssh.SFTPClient, recursive: bool, limit: int) -> None:
        self._client = client
        self._recursive = recursive
        self._limit = limit
        self._entries: builtins.list[Entry] = []
        self._problems: builtins.list[Problem] = []
        self._truncated = False

    async def walk(self, root: str) -> Listing:
        folders = self._take(await self._names_in(root))
        while folders and self._recursive and not self._truncated:
            folder = folders.pop()
            folders += self._take(await self._names_or_problem(folder))
        return Listing(tuple(self._entries), self._truncated, tuple(self._problems))

    def _take(self, entries: builtins.list[Entry]) -> builtins.list[str]:
        """Keep entries as long as there is room; returns the folders among them, the last one first."""
        room = self._limit - len(self._entries)
        self._truncated = self._truncated or len(entries) > room
        self._entries += entries[:room]
        return [entry.path for entry in reversed(entries[:room]) if entry.is_dir]

    async def _names_or_problem(self, folder: str) -> builtins.list[Entry]:
        import asyncssh

        try:
            return await self._names_in(folder)
        except (asyncssh.SFTPConnectionLost, asyncssh.SFTPNoConnection):
            raise
        except asyncssh.SFTPError as problem:
            self._note(folder, explain(problem)[1])
            return []

    async def _names_in(self, folder: str) -> builtins.list[Entry]:
        found: builtins.list[Entry] = []
        async for name in self._client.scandir(to_bytes(folder)):
            filename = to_text(name.filename)
            if len(found) == MOST_NAMES:
                self._truncated = True
                self._note(folder, f"more than {MOST_NAMES} names; the others were not looked at")
                break
            if filename not in (".", ".."):
                found.append(entry_of(posixpath.join(folder, filename), name.attrs))
        return sorted(found, key=lambda entry: to_bytes(entry.path))

    def _note(self, path: str, reason: str) -> None:
        if len(self._problems) < MOST_PROBLEMS:
            self._problems.append(Problem(path, reason))
