"""Files of a container without Python: moved by the platform, looked at and put in place by a shell."""

from __future__ import annotations

import posixpath
import re
import secrets
from collections.abc import Awaitable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from ...core.disposable import Disposable
from ...core.errors import FileProblem, SandboxError, UnknownSandbox
from ...core.files import Entry, FileSlice, Found, Listing, Match, Problem, Search, Span, Written
from ..outpost.far.files import LARGEST_SEARCHED, LONGEST_LINE, glob_test
from .link import Link
from .problems import told
from .shell import Answer, Shell

if TYPE_CHECKING:
    from opensandbox.models.filesystem import EntryInfo
    from opensandbox.services import Filesystem

T = TypeVar("T")
KINDS = {"directory": "dir", "symlink": "link", "file": "file"}
DEEPEST = 64


class PlainFiles:
    """Reads, writes, lists and searches. Paths are absolute, or begin at home."""

    def __init__(self, link: Link, disposable: Disposable, shell: Shell) -> None:
        self._link = link
        self._disposable = disposable
        self._shell = shell

    async def read(self, path: str, span: Span) -> FileSlice:
        path = await self.absolute(path)
        seen = await self._regular(path)
        size, version = seen.number("size"), seen.text("version")
        if span.line:
            return _lines(await self._bytes(path, 0, size), span, version)
        start = max(0, size + span.offset) if span.offset < 0 else span.offset
        data = await self._bytes(path, start, min(span.limit, size - start))
        return FileSlice(data, size, version, start, start + len(data) < size)

    async def write(self, path: str, data: bytes, expected: str | None) -> Written:
        path = await self.absolute(path)
        seen = await self._shell.ask("stat", values={"path": path})
        kind = seen.text("kind")
        self._may_be_replaced(path, kind, seen.text("version"), expected)
        folder, name = posixpath.split(path)
        part = posixpath.join(folder, f".{name[:100]}.{secrets.token_hex(4)}.part")
        files = await self._files()
        await self._moved(path, files.write_file(part, data, mode=600))
        given = {"from": part, "path": path, "mode": seen.text("mode") or "644"}
        given |= {} if expected is None else {"expected": expected}
        placed = await self._shell.ask("place", values=given)
        if placed.text("kind") == "stale":
            raise self._problem(path, "it has changed since it was read; read it again, then repeat", "stale")
        if placed.text("kind") != "file":
            raise self._problem(path, "it could not be put in place", "EACCES")
        return Written(placed.number("size"), placed.text("version"), kind == "none")

    def _may_be_replaced(self, path: str, kind: str, version: str, expected: str | None) -> None:
        if kind == "dir":
            raise self._problem(path, "it is a folder", "is_dir")
        if kind == "link":
            raise self._problem(path, "it is a symbolic link; write to the path that it leads to", "is_link")
        if kind == "other":
            raise self._problem(path, "it is not a regular file, so it is not replaced", "not_a_file")
        if expected == "" and kind == "file":
            raise self._problem(path, "it exists already", "exists")
        if expected is not None and expected != version:
            raise self._problem(path, "it has changed since it was read; read it again, then repeat", "stale")

    async def list(self, path: str, recursive: bool, limit: int) -> Listing:
        found = await self._entries(await self.absolute(path), DEEPEST if recursive else 1)
        entries = tuple(_entry(info) for info in found[:limit])
        return Listing(entries, len(found) > limit)

    async def search(self, search: Search) -> Found:
        top = await self.absolute(search.path)
        wanted = self._compiled(search)
        matches: list[Match] = []
        problems: list[Problem] = []
        for info in await self._candidates(top, search.glob):
            if wanted is None:
                matches.append(Match(info.path))
            elif info.size > LARGEST_SEARCHED:
                problems.append(Problem(info.path, "larger than 32 MiB, not searched"))
            else:
                matches += _matches(info.path, await self._bytes(info.path, 0, info.size), wanted)
            if len(matches) > search.limit:
                break
        return Found(tuple(matches[: search.limit]), len(matches) > search.limit, tuple(problems))

    def _compiled(self, search: Search) -> re.Pattern[bytes] | None:
        try:
            flags = re.IGNORECASE if search.ignore_case else 0
            return re.compile(search.pattern.encode(), flags) if search.pattern else None
        except re.error as problem:
            raise FileProblem(f"the pattern is not a regular expression: {problem}", "pattern") from None

    async def _candidates(self, top: str, glob: str) -> Sequence[EntryInfo]:
        fits = glob_test(glob)
        files = (info for info in await self._entries(top, DEEPEST) if info.entry_type == "file")
        named = ((info, posixpath.relpath(info.path, top).encode()) for info in files)
        return [info for info, path in named if path == b"." or fits(posixpath.basename(path), path)]

    async def _entries(self, path: str, depth: int) -> Sequence[EntryInfo]:
        from opensandbox.models.filesystem import DirectoryListEntry

        files = await self._files()
        if (await self._shell.ask("stat", values={"path": path})).text("kind") in ("file", "other"):
            return list((await self._moved(path, files.get_file_info([path]))).values())
        found = await self._moved(path, files.list_directory(DirectoryListEntry(path=path, depth=depth)))
        return sorted(found, key=lambda info: info.path)

    async def _bytes(self, path: str, start: int, count: int) -> bytes:
        if count <= 0:
            return b""
        files = await self._files()
        return await self._moved(path, files.read_bytes(path, range_header=f"bytes={start}-{start + count - 1}"))

    async def _regular(self, path: str) -> Answer:
        seen = await self._shell.ask("stat", values={"path": path})
        kind = seen.text("kind")
        if kind == "none":
            raise self._problem(path, "there is no such file", "ENOENT")
        if kind == "dir":
            raise self._problem(path, "it is a folder; list_remote_files shows what is in it", "is_dir")
        if kind == "other":
            raise self._problem(path, "it is a pipe, socket or device, not a file", "not_a_file")
        return seen

    async def _files(self) -> Filesystem:
        sandbox = await self._link.sandbox(self._disposable.key, f"unable to open {self._disposable.title}")
        return sandbox.files

    async def _moved(self, path: str, answer: Awaitable[T]) -> T:
        try:
            return await told(f"{self._disposable.title}: {path}", answer)
        except UnknownSandbox:
            raise self._problem(path, "there is no such file or folder", "ENOENT") from None
        except SandboxError as problem:
            if "ermission denied" in str(problem):
                raise self._problem(path, "permission denied", "EACCES") from None
            raise

    async def absolute(self, path: str) -> str:
        return posixpath.normpath(await self.from_home(path))

    async def from_home(self, path: str) -> str:
        """Raises FileProblem: the platform's agent takes names in JSON."""
        if any("\ud800" <= letter <= "\udfff" for letter in path):
            raise self._problem(path, "a name that is not UTF-8 cannot be used where there is no python3", "EILSEQ")
        below = path[2:] if path.startswith("~/") else "" if path == "~" else path
        return posixpath.join(await self._shell.home(), below)

    def _problem(self, path: str, why: str, reason: str) -> FileProblem:
        shown = path.encode("utf-8", "replace").decode()
        return FileProblem(f"{self._disposable.title}: {shown}: {why}", reason)


def _entry(info: EntryInfo) -> Entry:
    kind = KINDS.get(info.entry_type or "file", "other")
    return Entry(info.path, kind, 0 if kind == "dir" else info.size, info.modified_at.timestamp())


def _lines(data: bytes, span: Span, version: str) -> FileSlice:
    lines = data.splitlines(keepends=True) if b"\r" not in data else re.findall(rb"[^\n]*\n|[^\n]+", data)
    start = sum(map(len, lines[: span.line - 1]))
    wanted = b"".join(lines[span.line - 1 : span.line - 1 + span.lines] if span.lines else lines[span.line - 1 :])
    part = wanted[: span.limit]
    return FileSlice(part, len(data), version, start, start + len(part) < len(data))


def _matches(path: str, data: bytes, wanted: re.Pattern[bytes]) -> Iterator[Match]:
    if b"\0" in data[:8192]:
        return
    for number, line in enumerate(data.split(b"\n"), 1):
        text = line.rstrip(b"\r")
        if wanted.search(text) and (line or number <= data.count(b"\n")):
            yield Match(path, number, text[:LONGEST_LINE].decode("utf-8", "replace"))
