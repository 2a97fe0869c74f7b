"""Files on sandboxes: read, write, edit, list and search; a client never overwrites what changed since it read it."""

from __future__ import annotations

import contextlib
import posixpath
from dataclasses import replace

from ..core import check
from ..core.client import is_again
from ..core.errors import BadArgument, FileProblem
from ..core.sandboxes.files import FileSlice, Found, Listing, Search, Span, Written
from ..core.texts.pages import read_cursor
from ..core.texts.text import replace_shown, visible
from .fleet import Fleet, Member
from .session import current

# Bound for paging: for each page, all earlier entries are listed again.
MOST_LISTED, MOST_FOUND, MOST_ENTRIES = 50_000, 10_000, 10_000


class FileService:
    """Verbs on the files of one user's sandboxes; `name` is that of the sandbox, empty for the selected one."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def _at(self, path: str, name: str, *, required: bool = True) -> tuple[Member, str]:
        """Find the sandbox that a path is on, and the path there. Raises BadArgument, UnknownSandbox."""
        found = self._fleet.address(check.text_argument("remote_path", path, required=required), name)
        return self._fleet.member(found.sandbox), found.path

    async def read(self, path: str, span: Span, *, name: str = "") -> FileSlice:
        member, path = self._at(path, name)
        found = await (await member.open()).read(path, span)
        current().versions.remember(member.name, path, found.version)
        return found

    async def write(
        self, path: str, data: bytes, *, create_only: bool = False, name: str = "", force: bool = False
    ) -> Written:
        """Write a file; refused if this client has read it and it has changed since, or if it is read-only."""
        if len(data) > check.LARGEST_WRITE:
            raise BadArgument(
                f"content has {len(data)} bytes; at most {check.LARGEST_WRITE} can be written in one call"
            )
        member, path = self._at(path, name)
        expected = "" if create_only else current().versions.get(member.name, path)
        try:
            return await self._put(member, path, data, expected, force)
        except FileProblem as problem:
            # A process of ours that died before it could answer may have written it: then that is what has changed.
            if problem.reason == "stale" and is_again() and (written := await self._as_written(member, path, data)):
                return written
            raise

    async def edit(
        self, path: str, old: str, new: str, *, every: bool = False, name: str = "", force: bool = False
    ) -> tuple[Written, int]:
        """Replace an exact text that occurs once (or all); the file must be as this client last read it."""
        if not old:
            raise BadArgument("old_text is empty; give the exact text to replace (write_remote_file makes a new file)")
        member, path = self._at(path, name)
        found = await (await member.open()).read(path, Span(limit=check.LARGEST_WRITE))
        if found.more:
            raise FileProblem(f"{path} is larger than {check.LARGEST_WRITE} bytes, too large to edit", "too_large")
        version = current().versions.get(member.name, path)
        if version is not None and version != found.version:
            current().versions.forget(member.name, path)
            raise FileProblem(f"{path} has changed since it was read; read it again, then repeat the edit", "stale")
        data, count = replaced(found.data, old, new)
        if not count:
            why = "read the file and copy the text exactly, with its white space"
            raise FileProblem(f"old_text does not occur in {path}; {why}", "no_match")
        if count > 1 and not every:
            why = "add surrounding lines until it is unique, or set replace_all"
            raise FileProblem(f"old_text occurs {count} times in {path}; {why}", "ambiguous")
        return await self._put(member, path, data, found.version, force), count

    async def list(
        self,
        path: str,
        *,
        recursive: bool = False,
        limit: int = 200,
        name: str = "",
        cursor: str = "",
        most: int = MOST_ENTRIES,
    ) -> Listing:
        """One page of a folder's entries, of which the reader takes `most`; `cursor` is where the page before ended."""
        member, path = self._at(path, name, required=False)
        check.in_range("max_entries", limit, 1, MOST_ENTRIES)
        page = read_cursor(cursor)
        check.in_range("the place of cursor", page.skip, 0, MOST_LISTED)
        found = await (await member.open()).list(path, recursive=recursive, limit=page.skip + min(limit, most))
        start = page.begin([entry.path for entry in found.entries])
        # The very first entry is directly in the folder.
        folder = posixpath.dirname(found.entries[0].path) if found.entries else ""
        return replace(found, entries=found.entries[start:], folder=folder, start=start)

    async def search(self, search: Search, *, name: str = "", cursor: str = "") -> Found:
        member, path = self._at(search.path, name, required=False)
        for argument in ("glob", "pattern"):
            check.text_argument(argument, getattr(search, argument), required=False)
        if not search.glob and not search.pattern:
            raise BadArgument("give a glob (which files), a pattern (which lines), or both")
        check.in_range("max_results", search.limit, 1, 2000)
        page = read_cursor(cursor)
        check.in_range("the place of cursor", page.skip, 0, MOST_FOUND)
        found = await (await member.open()).search(replace(search, path=path, limit=page.skip + search.limit))
        start = page.begin([match.key for match in found.matches])
        return replace(found, matches=found.matches[start:], start=start)

    async def _put(self, member: Member, path: str, data: bytes, expected: str | None, force: bool) -> Written:
        try:
            written = await (await member.open()).write(path, data, expected=expected, force=force)
        except FileProblem as problem:
            if problem.reason == "stale":
                current().versions.forget(member.name, path)
            raise
        current().versions.remember(member.name, path, written.version)
        return written

    async def _as_written(self, member: Member, path: str, data: bytes) -> Written | None:
        """The file, if it holds exactly this."""
        found = await (await member.open()).read(path, Span(limit=len(data) + 1))
        if found.data != data or found.more:
            return None
        current().versions.remember(member.name, path, found.version)
        return Written(len(data), found.version)


def replaced(data: bytes, old: str, new: str) -> tuple[bytes, int]:
    """`data` with `old` replaced, and how often; `old` may contain escapes as read_remote_file shows them."""
    raw = old.encode("utf-8", "surrogateescape")
    # If it contains such a character itself, it was not copied from our output, and is taken literally.
    if "\\u" in old.lower() and visible(old) == old:
        with contextlib.suppress(UnicodeDecodeError):
            text, count = replace_shown(data.decode("utf-8"), old, new)
            return text.encode("utf-8", "surrogateescape"), count
    return data.replace(raw, new.encode("utf-8", "surrogateescape")), data.count(raw)
