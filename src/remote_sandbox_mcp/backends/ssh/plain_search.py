"""Search with the machine's own find and grep, for patterns as Python writes them."""

from __future__ import annotations

import asyncio
import posixpath
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...core.errors import FileProblem, Unsupported
from ...core.files import Found, Match, Problem, Search
from ...core.foreign import NONSENSE, not_understood, too_much
from ...core.tree import MOST_BYTES
from ...waiting import within
from ..outpost.client import LineLost
from ..outpost.far.files import LONGEST_LINE, MOST_PROBLEMS, glob_test
from ..outpost.sandbox import LARGEST_LISTING
from .channels import Channels
from .runner import SILENCE_S, START_LINE, Marks, script_order
from .sftp import to_bytes, to_path, to_text

if TYPE_CHECKING:
    import asyncssh


_CLASSES = {"d": "0-9", "w": "[:alnum:]_", "s": "[:space:]"}
_LITERALS = {"t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
# A line ends before a carriage return, too.
_LINE_END = "\r?$"
_ANCHORS = {"A": "^", "Z": _LINE_END, "b": "\\b", "B": "\\B"}
_SPECIAL = frozenset(".[]\\()*+?{}|^$")


class NotExtended(ValueError):
    """What an extended expression cannot say."""


def to_extended(pattern: str) -> str:
    """The same expression for `grep -E`. Raises NotExtended, and re.error where it is no expression at all."""
    re.compile(pattern)
    letters, words = iter(pattern), [""]
    for letter in letters:
        # Whether a repetition is greedy makes no difference to whether a line fits.
        if not (letter in "?+" and words[-1] in ("*", "+", "?", "}")):
            words.append(_translate_pieces(letter, letters))
    text = "".join(words)
    if unknown := re.search(r"(?<!\\)\(\?(?!:).", text):
        raise NotExtended(f"{unknown[0]} is not known to the grep of this machine")
    return text.replace("(?:", "(")


def _translate_pieces(letter: str, letters: Iterator[str]) -> str:
    if letter == "\\":
        return _escaped(next(letters))
    if letter == "[":
        return _bracket(letters)
    return _LINE_END if letter == "$" else letter


def _escaped(letter: str) -> str:
    if letter in _CLASSES:
        return f"[{_CLASSES[letter]}]"
    if letter.lower() in _CLASSES:
        return f"[^{_CLASSES[letter.lower()]}]"
    if letter in _ANCHORS or letter in _LITERALS:
        return _ANCHORS.get(letter) or _LITERALS[letter]
    if letter.isalnum():
        raise NotExtended(f"\\{letter} is not known to the grep of this machine")
    return f"\\{letter}" if letter in _SPECIAL else letter


def _bracket(letters: Iterator[str]) -> str:
    """A set of letters: in an extended one a backslash means itself, and the place of `]`, `^` and `-` matters."""
    negated, members = False, list[str]()
    for letter in letters:
        if letter == "^" and not members and not negated:
            negated = True
        elif letter == "]" and members:
            break
        else:
            members.append(_member(next(letters)) if letter == "\\" else letter)
    return _arrange(members, negated)


def _member(letter: str) -> str:
    if letter in _CLASSES or letter in _LITERALS:
        return _CLASSES.get(letter) or _LITERALS[letter]
    if letter.isalnum():
        raise NotExtended(f"\\{letter} in [...] is not known to the grep of this machine")
    return "\\-" if letter == "-" else letter


def _arrange(members: list[str], negated: bool) -> str:
    """`]` means itself in the first place, `-` in the last one, `^` anywhere but in the first."""
    for at in (0, -1):
        members[at] = "\\-" if members[at] == "-" else members[at]
    ordered = ["]"] * ("]" in members) + [each for each in members if each not in ("]", "^", "\\-")]
    ordered += ["^"] * ("^" in members) + ["-"] * ("\\-" in members)
    if not negated and ordered[0] == "^":
        return "\\^" if len(ordered) == 1 else "[-^]"
    return f"[{'^' if negated else ''}{''.join(ordered)}]"


SEARCH_S = 60.0
ALL = 1_000_000_000
# As much as a listing of the largest tree.
MOST_HEARD = MOST_BYTES
MOST_COMPLAINTS, LONGEST_NUMBER = 1 << 20, 19
_COMPLAINT = re.compile(r"(?:find|grep): ['‘]?(?P<path>.*?)['’]?: (?P<reason>[^:]+)\Z")


async def find_matches(channels: Channels, name: str, home: str, search: Search) -> Found:
    """Raises FileProblem, Unsupported, ConnectError or LineLost."""
    import asyncssh

    gathered = _Gathered(search, to_path(search.path, home), name)
    # Only we know the globs that name folders, too: then all names have to come.
    enough = search.limit + 1 if "/" not in search.glob else ALL
    values = {
        "root": gathered.root,
        "glob": _names_that_fit(search.glob),
        "pattern": _translate(search.pattern, name),
        "case": "i" if search.ignore_case else "",
        "most": str(enough),
    }
    request = script_order(values, (), "search.sh")
    complaints = bytearray()
    async with channels.process(START_LINE, stderr=asyncio.subprocess.PIPE) as process:
        hearing = asyncio.create_task(_hear(process, complaints))
        try:
            process.stdin.write(request.text + request.last)
            process.stdin.write_eof()
            await within(_gather(process, Marks(request.token), gathered), SEARCH_S)
            await asyncio.wait((hearing,), timeout=1.0 if gathered.ended else 0.0)
        except (asyncio.TimeoutError, TimeoutError):
            raise FileProblem(
                f"{name}: the search was given up: it took longer than {SEARCH_S:g} s", "killed"
            ) from None
        except (OSError, asyncssh.Error) as problem:
            raise LineLost from problem
        except NONSENSE as problem:
            raise not_understood(name, problem) from None
        finally:
            hearing.cancel()
    return gathered.found(bytes(complaints))


async def _hear(process: asyncssh.SSHClientProcess[bytes], complaints: bytearray) -> None:
    while data := await process.stderr.read(1 << 16):
        # What is not kept is read all the same: who complains must not wait for us.
        complaints += data[: MOST_COMPLAINTS - len(complaints)]


def _translate(pattern: str, name: str) -> str:
    try:
        return to_extended(pattern)
    except (re.error, NotExtended) as problem:
        raise FileProblem(f"{name}: the pattern is not a regular expression: {problem}", "pattern") from None


def _names_that_fit(glob: str) -> str:
    """What the last part of a path must fit; a backslash means itself, as in a glob of ours."""
    return (glob.rpartition("/")[2] or "*").replace("\\", "\\\\")


async def _gather(process: asyncssh.SSHClientProcess[bytes], marks: Marks, gathered: _Gathered) -> None:
    heard = 0
    while not gathered.is_complete:
        data = await within(process.stdout.read(1 << 18), SILENCE_S)
        heard += len(data)
        if not data:
            raise LineLost
        for name, values, body in marks.feed(data):
            gathered.take(name, values, body)
        if marks.size > LARGEST_LISTING or heard > MOST_HEARD:
            raise too_much(gathered.name)


def _named(path: bytes) -> str:
    return to_text(path.replace(b"\1", b"\n"))


class _Gathered:
    """What has been found so far."""

    def __init__(self, search: Search, root: str, name: str) -> None:
        self.root = self._below = root
        self.ended = False
        self._search = search
        self.name = name
        self._fits = glob_test(search.glob)
        self._matches: list[Match] = []
        self._problems: list[Problem] = []

    @property
    def is_complete(self) -> bool:
        return self.ended or len(self._matches) > self._search.limit

    def take(self, name: str, values: str, body: bytes) -> None:
        if name == "here" and values == "file":
            self._below, self._fits = posixpath.dirname(self.root), glob_test("")
        elif name == "names":
            for path in body.split(b"\n")[:-1]:
                self._add(_named(path), 0, "")
        elif name == "lines":
            path, _, lines = body.partition(b"\0")
            self._take_lines(to_text(path), lines)
        elif name == "large":
            self._note(self._whole(_named(body)), "larger than 32 MiB, not searched")
        elif name == "failed":
            self._fail(*values.split(" ", 1))
        elif name == "ok":
            self.ended = True

    def _take_lines(self, path: str, body: bytes) -> None:
        for line in body.split(b"\n"):
            number, _, text = line.rstrip(b"\r").partition(b":")
            # A grep that does not skip binary files is not believed about them.
            if len(number) < LONGEST_NUMBER and number.isdigit() and b"\0" not in text:
                self._add(path, int(number), text.decode("utf-8", "replace")[:LONGEST_LINE])

    def _add(self, path: str, line: int, text: str) -> None:
        below = posixpath.normpath(path)
        if self._fits(to_bytes(posixpath.basename(below)), to_bytes(below)):
            self._matches.append(Match(self._whole(path), line, text))

    def _whole(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self._below, path))

    def _note(self, path: str, reason: str) -> None:
        if len(self._problems) < MOST_PROBLEMS:
            self._problems.append(Problem(path, reason))

    def _fail(self, reason: str, message: str = "") -> None:
        if reason == "unsupported":
            raise Unsupported(f"{self.name} cannot be searched: {message}")
        where = "" if reason == "pattern" else f"{self._search.path}: "
        raise FileProblem(f"{self.name}: {where}{message}", reason)

    def found(self, complained: bytes) -> Found:
        for line in complained.decode("utf-8", "replace").splitlines():
            if complaint := _COMPLAINT.match(line):
                self._note(self._whole(complaint["path"]), complaint["reason"])
        limit = self._search.limit
        matches = sorted(self._matches, key=lambda match: (to_bytes(match.path), match.line))
        return Found(tuple(matches[:limit]), len(matches) > limit, tuple(self._problems))
