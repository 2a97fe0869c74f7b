"""Search where there is no Python: find and grep there send lines that may match, and we match those here."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator

from ...core.errors import FileProblem
from ...core.sandboxes.files import Found, Match, Problem, Search
from ...far.outpost.files import LONGEST_LINE, MOST_PROBLEMS, glob_test
from ...far.outpost.place import to_bytes, to_text
from .files import ShellFiles, complaints, inside
from .patterns import search as search_in
from .program import ShellAnswer

ALL = 1_000_000_000
MOST_PAGES, LONGEST_NUMBER = 1000, 19
# The most bytes of one answer; after that, the next files are asked for.
LARGEST_PAGE = 4 << 20
# The most bytes of names that come for a glob with folders, which is matched here.
MOST_NAMED = 32 << 20
LONGEST_INSPECTED = 1000
_PIECES = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{[^}]*\}|.", re.DOTALL)
# Escapes that take more characters than their first letter, as \x41 does.
_NUMBERED = re.compile(r"\\[^\W_AbBdDsSwWZtnrfva]")


async def find_matches(files: ShellFiles, search: Search) -> Found:
    """Find names, or lines in files. Raises SandboxError."""
    _check(search)
    gathered = _Gathered(search, await files.absolute(search.path))
    values = {"glob": (search.glob.rpartition("/")[2] or "*").replace("\\", "\\\\")}
    if not search.pattern:
        # find there matches names only. For a glob with folders all names come, and are matched here.
        most = search.limit + 1 if "/" not in search.glob else ALL
        answer = await files.ask("search", gathered.path, MOST_NAMED, count=str(most), **values)
        gathered.take_names(answer)
    else:
        values |= {"literal": required(search.pattern), "case": "i" if search.ignore_case else ""}
        for _ in range(MOST_PAGES):
            if gathered.is_complete:
                break
            await _page(files, gathered, values)
    return gathered.found()


async def _page(files: ShellFiles, gathered: _Gathered, values: dict[str, str]) -> None:
    token = secrets.token_hex(16)
    asked = {**values, "skip": str(gathered.records_read), "count": str(LARGEST_PAGE)}
    answer = await files.ask("search", gathered.path, LARGEST_PAGE, token=token, **asked)
    await gathered.take_lines(answer, token.encode())


def _check(search: Search) -> None:
    """Raises FileProblem for a pattern that is not a regular expression."""
    try:
        re.compile(to_bytes(search.pattern))
    except (re.error, OverflowError, RecursionError) as problem:
        raise FileProblem(f"the pattern is not a regular expression: {problem}", "pattern") from None


def required(pattern: str) -> str:
    """The longest text that every matching line contains, for grep there; "" if that is not easy to see."""
    # It only reduces the lines that come. In a long pattern, unclosed brackets would take quadratic time.
    if len(pattern) > LONGEST_INSPECTED:
        return ""
    runs = [""]
    for piece in _PIECES.findall(pattern):
        if piece in "(|" or _NUMBERED.match(piece):
            return ""
        if piece[0] in "*?{":
            # The character before a quantifier may be absent.
            runs[-1:] = [runs[-1][:-1], ""]
        elif piece[0] in "+.^$[" or (piece[0] == "\\" and piece[1].isalnum()):
            runs.append("")
        else:
            runs[-1] += piece[-1]
    return max(runs, key=len)


class _Gathered:
    """The matches and problems found so far."""

    def __init__(self, search: Search, path: str) -> None:
        self.path = path
        self.records_read = 0
        self._search = search
        self._fits = glob_test(search.glob)
        self._matches: list[Match] = []
        self._problems: dict[Problem, None] = {}
        self._ended = False

    @property
    def is_complete(self) -> bool:
        return self._ended or len(self._matches) > self._search.limit

    def take_names(self, answer: ShellAnswer) -> None:
        below = self._note(answer)
        for name in _names(answer, "names"):
            if self._is_wanted(name, below):
                self._matches.append(Match(inside(below, name)))

    async def take_lines(self, answer: ShellAnswer, token: bytes) -> None:
        below, text = self._note(answer), answer.data("lines")
        for name in _names(answer, "large"):
            if self._is_wanted(name, below):
                self._problems[Problem(inside(below, name), "larger than 32 MiB, not searched")] = None
        records = text.split(token)[1:]
        self._ended = len(text) < LARGEST_PAGE
        if not self._ended and len(records) > 1:
            # The last file's lines were cut off; they come again with the next page.
            records.pop()
        elif not records:
            self._ended = True
        elif not self._ended:
            name = to_text(records[0].partition(b"\0")[0])
            self._problems[Problem(inside(below, name), "too many lines of it may fit; only the first were seen")] = (
                None
            )
        self.records_read += len(records)
        found: list[tuple[str, int, bytes]] = []
        for record in records:
            path, _, lines = record.partition(b"\0")
            if self._is_wanted(to_text(path), below):
                found += _numbered(inside(below, to_text(path)), lines)
        for place in await self._fitting([text for _, _, text in found]):
            path_of, number, text = found[place]
            self._matches.append(Match(path_of, number, text[:LONGEST_LINE].decode("utf-8", "replace")))

    async def _fitting(self, lines: list[bytes]) -> list[int]:
        verb = "any_case" if self._search.ignore_case else "all"
        printed = await search_in(verb, self._search.pattern, b"\n".join(lines)) if lines else b""
        return [int(place) for place in printed.split()]

    def _is_wanted(self, name: str, below: str) -> bool:
        if inside(below, name) == self.path:
            return True
        path = to_bytes(name).removeprefix(b"./")
        return bool(self._fits(path.rpartition(b"/")[2], path))

    def _note(self, answer: ShellAnswer) -> str:
        below = to_text(answer.data("below"))
        self._problems.update(dict.fromkeys(complaints(answer, below)))
        return below

    def found(self) -> Found:
        limit = self._search.limit
        problems = tuple(self._problems)[:MOST_PROBLEMS]
        return Found(tuple(self._matches[:limit]), len(self._matches) > limit, problems)


def _names(answer: ShellAnswer, word: str) -> Iterator[str]:
    for name in answer.data(word).split(b"\n")[:-1]:
        yield to_text(name.replace(b"\1", b"\n"))


def _numbered(path: str, lines: bytes) -> Iterator[tuple[str, int, bytes]]:
    """The lines of a file that may match, from grep's `NUMBER:TEXT`."""
    for line in lines.split(b"\n"):
        number, _, text = line.removesuffix(b"\r").partition(b":")
        # Not every grep skips binary files; a NUL shows one.
        if len(number) < LONGEST_NUMBER and number.isdigit() and b"\0" not in text:
            yield path, int(number), text
