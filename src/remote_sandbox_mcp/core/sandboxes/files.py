"""Remote files as values: slices, entries, listings, matches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """A part of a file: `limit` bytes from `offset` (from the end if negative), or `lines` lines from `line`."""

    offset: int = 0
    limit: int = 200_000
    line: int = 0
    lines: int = 0


@dataclass(frozen=True)
class FileSlice:
    """Part of a file that was read. `offset` is where `data` begins; `version` names this state of the file."""

    data: bytes
    size: int
    version: str
    offset: int = 0
    more: bool = False


@dataclass(frozen=True)
class Written:
    """A file that is now in place."""

    size: int
    version: str
    created: bool = False


@dataclass(frozen=True)
class Entry:
    """One name in a folder. `kind` is file, dir, link or other; links are reported, not followed."""

    path: str
    kind: str
    size: int
    mtime: float

    @property
    def is_dir(self) -> bool:
        return self.kind == "dir"


@dataclass(frozen=True)
class Problem:
    """A path that could not be read, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class Listing:
    """Entries in the order of their names, and what could not be read. `start` entries came on earlier pages."""

    entries: tuple[Entry, ...]
    truncated: bool = False
    problems: tuple[Problem, ...] = ()
    folder: str = ""
    start: int = 0


@dataclass(frozen=True)
class Search:
    """Search for files (by glob, at any depth) and, where `pattern` is given, for lines (by regular expression)."""

    path: str
    glob: str = ""
    pattern: str = ""
    ignore_case: bool = False
    limit: int = 100


@dataclass(frozen=True)
class Match:
    """A file that fits, or a line of it."""

    path: str
    line: int = 0
    text: str = ""

    @property
    def key(self) -> str:
        return f"{self.path}:{self.line}"


@dataclass(frozen=True)
class Found:
    """Matches of a search, and whether there may be more. `start` matches came on earlier pages."""

    matches: tuple[Match, ...]
    truncated: bool = False
    problems: tuple[Problem, ...] = ()
    start: int = 0
