"""Tools that work on remote files as on local ones."""

from __future__ import annotations

import base64
import binascii
import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from mcp.types import CallToolResult
from pydantic import Field

from ....core.errors import BadArgument
from ....core.sandboxes.files import Entry, FileSlice, Found, Listing, Match, Problem, Search, Span
from ....core.texts.decoding import whole_characters
from ....core.texts.image import Image
from ....core.texts.pages import cursor_after
from ....core.texts.text import counted
from ....views.app_results import moment
from ....views.results import file_content, first_that_fit, lean, plain_text, size_of
from ....views.texts import content_text, image_text, listing_text, matches_text
from ..clients import room
from ..results import ResultImages, read_slice, reply
from ..server import SandboxName, SandboxServer
from ..shapes import ContentShape, FoundShape, ListingShape, WrittenShape
from ..toolbox import ASK, CHANGE, RUN, UNLISTED, Declaration, WorkspacePart

PATHS = ("remote_path",)
READS = Declaration(paths=PATHS, workspace=WorkspacePart(sends=True, is_read_only=True))
IN_FOLDER = Declaration(paths=PATHS, workspace=WorkspacePart(sends=True, folder="remote_path", is_read_only=True))
WRITES = Declaration(paths=PATHS, workspace=WorkspacePart(sends=True, brings=True))

USUAL_BYTES, MOST_BYTES = 200_000, 10_000_000
# Minimum per call, for files in which every byte takes many characters to show.
LEAST_BYTES = 64
# The fewest characters that an entry of a listing takes.
LEAST_ENTRY = 70

RemoteFile = Annotated[str, Field(description="The file")]
Cursor = Annotated[str, Field(description="next_cursor, to go on")]


def offer(server: SandboxServer) -> None:
    for tool, title, hints, declaration in (
        (list_remote_files, "List a folder", ASK, IN_FOLDER),
        (read_remote_file, "Read a file", ASK, replace(READS, is_first=True)),
        (write_remote_file, "Write a file", CHANGE, WRITES),
        (edit_remote_file, "Edit a file", RUN, WRITES),
        (search_remote_files, "Search files", ASK, IN_FOLDER),
    ):
        server.offer(tool, title, hints, declaration)


async def list_remote_files(
    server: SandboxServer,
    remote_path: Annotated[str, Field(description="Default: home")] = "",
    recursive: Annotated[bool, Field(description="With all folders in it")] = False,
    max_entries: Annotated[int, Field(description="Default 200, at most 10000")] = 200,
    sandbox_name: SandboxName = "",
    cursor: Cursor = "",
) -> Annotated[CallToolResult, ListingShape]:
    """List a folder by name. Unreadable folders are reported in problems."""
    found = await server.app.files.list(
        remote_path, recursive=recursive, limit=max_entries, name=sandbox_name, cursor=cursor,
        most=room() // LEAST_ENTRY + 1,
    )  # fmt: skip
    fields = listing_fields(found, room())
    return reply(fields, listing_text(fields, plain_text(found.folder)))


async def read_remote_file(
    server: SandboxServer,
    remote_path: RemoteFile,
    max_bytes: Annotated[int, Field(description="Default 200000", ge=1, le=MOST_BYTES)] = USUAL_BYTES,
    offset: Annotated[int, Field(description="Byte to start at; negative counts from the end")] = 0,
    start_line: Annotated[int, Field(description="First line, from 1, instead of offset", ge=0)] = 0,
    line_count: Annotated[int, Field(description="How many lines", ge=0)] = 0,
    sandbox_name: SandboxName = "",
) -> Annotated[CallToolResult, ContentShape]:
    """Read a file or a part of it. size is the whole file's. A PNG, JPEG, GIF or WebP is shown as an image; what
    else is not text comes as base64 (encoding)."""
    if not offset and not start_line and not line_count:
        found, image = await read_slice(
            server.app, remote_path, usual=USUAL_BYTES, limit=max_bytes, first=most_shown(room()), name=sandbox_name
        )
        return shown(image, found) if image else part_of_file(found)
    # Lines without a count: up to the end of the file, bounded by max_bytes.
    lines = (line_count or 1_000_000_000) if start_line or line_count else 0
    span = Span(offset, min(max_bytes, most_shown(room())), max(1, start_line), lines)
    return part_of_file(await server.app.files.read(remote_path, span, name=sandbox_name))


def most_shown(room: int) -> int:
    """The most bytes that so many characters can show: no more is asked for."""
    return 4 * room + LEAST_BYTES


def part_of_file(found: FileSlice) -> CallToolResult:
    part = fitting(found, room())
    fields = {"size": part.size, "truncated": part.more} | file_content(part.data)
    fields |= lean(offset=part.offset or None, next_offset=part.offset + len(part.data) if part.more else None)
    return reply(fields, content_text(fields, len(part.data)))


def shown(image: Image, found: FileSlice) -> CallToolResult:
    images = ResultImages()
    fields = images.add(image, found)
    return reply(fields | {"truncated": not images.blocks}, image_text(fields), images=images.blocks)


async def write_remote_file(
    server: SandboxServer,
    remote_path: RemoteFile,
    content: Annotated[str, Field(description="All of it")],
    encoding: Annotated[Literal["text", "base64"], Field(description="How content is given")] = "text",
    create_only: Annotated[bool, Field(description="Refuse if the file exists")] = False,
    sandbox_name: SandboxName = "",
    force: Annotated[bool, UNLISTED] = False,
) -> Annotated[CallToolResult, WrittenShape]:
    """Create or replace a file at once, keeping its mode; missing folders are made.

    Refused if the file changed since you read it."""
    data = decode(content, encoding)
    files = server.app.files
    written = await files.write(remote_path, data, create_only=create_only, name=sandbox_name, force=force)
    return reply({"size": written.size} | lean(created=written.created), f"{counted(written.size, 'byte')} written")


async def edit_remote_file(
    server: SandboxServer,
    remote_path: RemoteFile,
    old_text: Annotated[str, Field(description="Exact text that occurs once")],
    new_text: Annotated[str, Field(description="Put in its place")],
    replace_all: Annotated[bool, Field(description="Wherever it occurs")] = False,
    sandbox_name: SandboxName = "",
    force: Annotated[bool, UNLISTED] = False,
) -> Annotated[CallToolResult, WrittenShape]:
    """Replace an exact text in a file.

    Refused if it is not there, is not unique, or the file changed since you read it."""
    edit = functools.partial(server.app.files.edit, every=replace_all, name=sandbox_name, force=force)
    written, count = await edit(remote_path, old_text, new_text)
    return reply({"size": written.size, "replacements": count}, f"{count} replaced, {counted(written.size, 'byte')}")


async def search_remote_files(
    server: SandboxServer,
    remote_path: Annotated[str, Field(description="Folder or file; default: home")] = "",
    pattern: Annotated[str, Field(description="Regular expression for lines; none: only names")] = "",
    glob: Annotated[str, Field(description="Which files: *.py by name, src/**/*.c by path")] = "",
    ignore_case: Annotated[bool, Field(description="For pattern")] = False,
    max_results: Annotated[int, Field(description="Default 100, at most 2000")] = 100,
    sandbox_name: SandboxName = "",
    cursor: Cursor = "",
) -> Annotated[CallToolResult, FoundShape]:
    """Find files by name (glob) and lines by regular expression (pattern), at any depth.

    Binary files and .git are skipped."""
    search = Search(remote_path, glob, pattern, ignore_case, max_results)
    found = await server.app.files.search(search, name=sandbox_name, cursor=cursor)
    fields = found_fields(found, room())
    return reply(fields, matches_text(fields))


def decode(content: str, encoding: str) -> bytes:
    if encoding == "text":
        try:
            # A lone surrogate from U+DC80 to U+DCFF stands for one byte that is not UTF-8.
            return content.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise BadArgument("content holds half of a surrogate pair; send it as base64") from None
    return from_base64(content, "content is not valid base64, though encoding says so; check it")


def from_base64(content: str, otherwise: str) -> bytes:
    """Raises BadArgument, saying `otherwise`."""
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        raise BadArgument(otherwise) from None


def fitting(found: FileSlice, room: int) -> FileSlice:
    """Cut to as much as fits, up to the end of a character, so that the next part is valid text again."""
    data = whole_characters(found.data) if found.more else found.data
    while (size := size_of(file_content(data))) > room and len(data) > LEAST_BYTES:
        # A tenth less than the proportion, because the cut part may need more escapes than the average.
        data = whole_characters(data[: max(LEAST_BYTES, len(data) * room // size * 9 // 10)])
    return replace(found, data=data, more=found.more or len(data) < len(found.data))


def listing_fields(found: Listing, room: int) -> dict[str, Any]:
    rows = [entry_fields(entry) for entry in found.entries]
    shown = first_that_fit(rows, room)
    truncated = found.truncated or len(shown) < len(rows)
    # The next page begins after the last entry that is shown; more may have been found.
    keys = [entry.path for entry in found.entries[: len(shown)]]
    fields = {"truncated": truncated, "entries": shown} | next_cursor(truncated, found.start, keys)
    return fields | problem_fields(found.problems)


def found_fields(found: Found, room: int) -> dict[str, Any]:
    rows = [match_fields(match) for match in found.matches]
    shown = first_that_fit(rows, room)
    truncated = found.truncated or len(shown) < len(rows)
    keys = [match.key for match in found.matches[: len(shown)]]
    fields = {"truncated": truncated, "matches": shown} | next_cursor(truncated, found.start, keys)
    return fields | problem_fields(found.problems)


def next_cursor(truncated: bool, start: int, keys: Sequence[str]) -> dict[str, Any]:
    return {"next_cursor": cursor_after(start + len(keys), keys[-1])} if truncated and keys else {}


def entry_fields(entry: Entry) -> dict[str, Any]:
    path, mtime, kind = plain_text(entry.path), entry.mtime, entry.kind
    fields = {"path": path, "is_dir": kind == "dir", "size": entry.size, "mtime": int(mtime), "modified": moment(mtime)}
    return fields if kind in ("file", "dir") else fields | {"kind": kind}


def match_fields(match: Match) -> dict[str, Any]:
    return {"path": plain_text(match.path)} | lean(line=match.line or None, text=plain_text(match.text))


def problem_fields(problems: tuple[Problem, ...]) -> dict[str, Any]:
    rows = [{"path": plain_text(problem.path), "reason": plain_text(problem.reason)} for problem in problems]
    return lean(problems=rows)
