"""Paths that .gitignore lines leave out; also sent to the far side as text, so it stays Python 3.6."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from .secret_names import is_secret_folder, is_secret_name

# A line of our own that stands for all that has a name like those of secrets; to git it is a comment.
NAMES_OF_SECRETS = b"# remote-sandbox-mcp: names of secrets"
IGNORE_BOM = b"\xef\xbb\xbf"
# No path is longer, and a bracket without an end takes the square of its length to read.
IGNORE_LONGEST = 4096
IGNORE_SPECIAL = re.compile(rb"[*?\[\\]")
# A class such as [:digit:], or a byte and perhaps the end of the range that it begins.
IGNORE_BRACKET_ITEM = re.compile(rb"\[:([^\]]*):\]|\\?(.)(?:-(?!\])\\?(.))?", re.DOTALL)
IGNORE_CLASSES = {
    b"alnum": rb"0-9A-Za-z",
    b"alpha": rb"A-Za-z",
    b"blank": rb" \t",
    b"cntrl": rb"\x00-\x1f\x7f",
    b"digit": rb"0-9",
    b"graph": rb"\x21-\x7e",
    b"lower": rb"a-z",
    b"print": rb"\x20-\x7e",
    b"punct": rb"\x21-\x2f\x3a-\x40\x5b-\x60\x7b-\x7e",
    b"space": rb" \t\n\r",
    b"upper": rb"A-Z",
    b"xdigit": rb"0-9A-Fa-f",
}
IGNORE_BYTES = rb"[^/]*"
IGNORE_FOLDERS = rb"(?:[^/]+/)*"


class IgnoreRule:
    """One line that says something: what it fits, and whether that is left out or kept."""

    __slots__ = ("anchored", "dirs_only", "is_plain", "is_secret", "is_suffix", "out", "pattern")

    def __init__(self, line: bytes) -> None:
        self.is_secret = line == NAMES_OF_SECRETS
        self.out = not line.startswith(b"!")
        pattern = line if self.out else line[1:]
        self.dirs_only = pattern.endswith(b"/")
        pattern = pattern[:-1] if self.dirs_only else pattern
        self.anchored = b"/" in pattern
        self.pattern = pattern[1:] if pattern.startswith(b"/") else pattern
        self.is_plain = not IGNORE_SPECIAL.search(pattern)
        self.is_suffix = pattern.startswith(b"*") and not self.anchored and not IGNORE_SPECIAL.search(pattern, 1)


def ignore_rules(lines: "Iterable[bytes]") -> "list[IgnoreRule]":
    """The lines without their ends, comments and what says nothing."""
    ended = (line[:-1] if line.endswith(b"\n") else line for line in lines)
    plain = (line[:-1] if line.endswith(b"\r") else line for line in ended)
    rules = [IgnoreRule(ignore_trimmed(line)) for line in plain if line[:1] != b"#" or line == NAMES_OF_SECRETS]
    return [rule for rule in rules if 0 < len(rule.pattern) <= IGNORE_LONGEST]


def ignore_trimmed(line: bytes) -> bytes:
    """Without the spaces at its end, but with the first of them where a backslash holds it."""
    trimmed = line.rstrip(b" ")
    backslashes = len(trimmed) - len(trimmed.rstrip(b"\\"))
    return line[: len(trimmed) + backslashes % 2]


def ignore_bracket(pattern: bytes, at: int) -> "tuple[bytes, int]":
    """The expression for the bracket whose inside begins here, empty where it is not one, and where it ends."""
    negated = pattern[at : at + 1] in (b"!", b"^")
    at = first = at + negated
    inside = b""
    while at == first or pattern[at : at + 1] != b"]":
        item = IGNORE_BRACKET_ITEM.match(pattern, at)
        if item is None or item.group(1) not in (None, *IGNORE_CLASSES):
            return b"", at
        inside += ignore_bracket_item(*item.groups())
        at = item.end()
    return (b"[^/" if negated else b"(?!/)[") + inside + b"]", at + 1


def ignore_bracket_item(name: "bytes | None", low: bytes, high: "bytes | None") -> bytes:
    if name is not None:
        return IGNORE_CLASSES[name]
    # To git, a range that runs backwards still has the byte that it begins with.
    return b"\\x%02x-\\x%02x" % (ord(low), ord(max(low, high or low)))


def ignore_token(pattern: bytes, at: int) -> "tuple[bytes, int]":
    """The star, the slash or the expression for one byte that begins here, empty where nothing fits; its end."""
    byte = pattern[at : at + 1]
    if byte == b"[":
        return ignore_bracket(pattern, at + 1)
    if byte == b"?":
        return b"[^/]", at + 1
    if byte == b"*":
        return byte, at + 1
    if byte == b"\\":
        at += 1
        byte = pattern[at : at + 1]
    return byte if byte == b"/" else re.escape(byte), at + 1


def ignore_segments(pattern: bytes) -> "list[list[bytes]]":
    """The tokens between slashes; nothing where the pattern can never fit."""
    segments: list[list[bytes]] = [[]]
    at = 0
    while at < len(pattern):
        token, at = ignore_token(pattern, at)
        if not token:
            return []
        if token == b"/":
            segments.append([])
        else:
            segments[-1].append(token)
    return segments


class IgnoreWriter:
    """Writes expressions that are never slow: no choice is made again, unless only one can be right."""

    def __init__(self) -> None:
        self.count = 0

    def path(self, segments: "list[list[bytes]]") -> bytes:
        """A whole path, with any folders for `**`."""
        pieces = [b""]
        for segment in segments:
            if self.any_folders(segment):
                pieces.append(b"")
            else:
                pieces[-1] += self.name(segment) + b"/"
        if self.any_folders(segments[-1]):
            pieces[-1] = IGNORE_BYTES + b"/"
        pieces[-1] = pieces[-1][:-1]
        return self.spread(pieces, IGNORE_FOLDERS)

    @staticmethod
    def any_folders(segment: "list[bytes]") -> bool:
        return len(segment) > 1 and all(token == b"*" for token in segment)

    def name(self, tokens: "list[bytes]") -> bytes:
        """One name, with any bytes for `*`."""
        pieces = [b""]
        for token in tokens:
            if token == b"*":
                pieces.append(b"")
            else:
                pieces[-1] += token
        return self.spread(pieces, IGNORE_BYTES)

    def spread(self, pieces: "list[bytes]", gap: bytes) -> bytes:
        """The pieces in their order with gaps between. A middle one may as well lie at the first place that it fits."""
        if len(pieces) == 1:
            return pieces[0]
        middle = [self.once(gap + b"?" + piece) for piece in pieces[1:-1] if piece]
        return pieces[0] + b"".join(middle) + gap + pieces[-1]

    def once(self, expression: bytes) -> bytes:
        """Make the first match final: Python before 3.11 has no other spelling for that."""
        self.count += 1
        return b"(?=(?P<n%d>%s))(?P=n%d)" % (self.count, expression, self.count)


def ignore_matcher(rules: "list[IgnoreRule]") -> "Callable[[bytes], Any] | None":
    """One expression for all of these rules; None where nothing can fit them."""
    writer = IgnoreWriter()
    read = [ignore_segments(rule.pattern) for rule in rules]
    expressions = [writer.path(segments) for segments in read if segments]
    return re.compile(rb"(?:%s)\Z" % b"|".join(expressions)).match if expressions else None


class IgnoreGroup:
    """Rules that say the same, so that their order does not matter; most are plain and looked up, not tried."""

    __slots__ = ("is_secret", "name_fits", "names", "out", "path_fits", "paths", "suffixes")

    def __init__(self, rules: "list[IgnoreRule]", of_dirs: bool) -> None:
        self.out = rules[0].out
        self.is_secret: Callable[[bytes, bytes], bool] | None = None
        if any(rule.is_secret for rule in rules):
            self.is_secret = is_secret_folder if of_dirs else is_secret_name
        rules = [rule for rule in rules if not rule.is_secret]
        self.names = {rule.pattern for rule in rules if rule.is_plain and not rule.anchored}
        self.paths = {rule.pattern for rule in rules if rule.is_plain and rule.anchored}
        self.suffixes = tuple({rule.pattern[1:] for rule in rules if rule.is_suffix})
        others = [rule for rule in rules if not rule.is_plain and not rule.is_suffix]
        self.name_fits = ignore_matcher([rule for rule in others if not rule.anchored])
        self.path_fits = ignore_matcher([rule for rule in others if rule.anchored])

    def fits(self, path: bytes, name: bytes) -> bool:
        return (
            name in self.names
            or path in self.paths
            or path.endswith(self.suffixes)
            or (self.is_secret is not None and self.is_secret(name, path))
            or (self.name_fits is not None and self.name_fits(name) is not None)
            or (self.path_fits is not None and self.path_fits(path) is not None)
        )


def ignore_groups(rules: "list[IgnoreRule]", of_dirs: bool) -> "tuple[IgnoreGroup, ...]":
    """Neighbours that say the same, the last first: the first group that fits decides."""
    runs: list[list[IgnoreRule]] = []
    for rule in reversed(rules):
        if not runs or runs[-1][0].out != rule.out:
            runs.append([])
        runs[-1].append(rule)
    return tuple(IgnoreGroup(run, of_dirs) for run in runs)


class IgnoreList:
    """The lines of one file: what they say about files and about folders, and where paths below it start."""

    __slots__ = ("groups", "start")

    def __init__(self, folder: bytes, lines: "Iterable[bytes]") -> None:
        rules = ignore_rules(lines)
        of_files = [rule for rule in rules if not rule.dirs_only]
        self.groups = ignore_groups(of_files, False), ignore_groups(rules, True)
        self.start = len(folder) + 1 if folder else 0


class Ignore:
    """Excluded paths by .gitignore lines: the last that fits decides."""

    def __init__(self, lines: "Iterable[bytes]" = ()) -> None:
        self._own = IgnoreList(b"", lines).groups
        self._added: dict[bytes, list[IgnoreList]] = {}
        # One folder's paths are asked about in a row, so what counts in the last one is kept.
        self._last_folder = b""
        self._last_lists: list[IgnoreList] = []

    def add(self, folder: bytes, lines: "Iterable[bytes]") -> None:
        """Take the lines of a .gitignore that lies in `folder` (b"" is the root): they count below it only."""
        lines = list(lines)
        if lines and lines[0].startswith(IGNORE_BOM):
            lines[0] = lines[0][len(IGNORE_BOM) :]
        self._added.setdefault(folder, []).insert(0, IgnoreList(folder, lines))
        self._last_lists = self._lists_in(self._last_folder)

    def leaves_out(self, path: bytes, is_dir: bool) -> bool:
        """Whether this very path is left out; the caller does not go into folders that are."""
        name = path[path.rfind(b"/") + 1 :]
        for group in self._own[is_dir]:
            if group.fits(path, name):
                return group.out
        return bool(self._added) and self._added_leave_out(path, name, is_dir)

    def withholds(self, path: bytes, is_dir: bool) -> bool:
        """Whether a path that is left out has the name of a secret, of which the caller is told."""
        name = path[path.rfind(b"/") + 1 :]
        return any(group.is_secret is not None and group.is_secret(name, path) for group in self._own[is_dir])

    def leaves_out_below(self, path: bytes, is_dir: bool) -> bool:
        """Check whether a path, or a folder on the way to it, is left out."""
        slash = path.find(b"/")
        while slash >= 0:
            if self.leaves_out(path[:slash], True):
                return True
            slash = path.find(b"/", slash + 1)
        return self.leaves_out(path, is_dir)

    def _added_leave_out(self, path: bytes, name: bytes, is_dir: bool) -> bool:
        folder = path[: max(0, len(path) - len(name) - 1)]
        if folder != self._last_folder:
            self._last_folder, self._last_lists = folder, self._lists_in(folder)
        for added in self._last_lists:
            below = path[added.start :]
            for group in added.groups[is_dir]:
                if group.fits(below, name):
                    return group.out
        return False

    def _lists_in(self, folder: bytes) -> "list[IgnoreList]":
        """The added lists that count in this folder, the deepest first."""
        lists = list(self._added.get(folder, ()))
        while folder:
            folder = folder[: max(0, folder.rfind(b"/"))]
            lists += self._added.get(folder, ())
        return lists


def is_secret_path(path: bytes) -> bool:
    """Whether a path is that of a secret, or of something in a folder of secrets, whether or not it is a folder."""
    secrets = Ignore([NAMES_OF_SECRETS])
    return secrets.leaves_out_below(path, True) or secrets.leaves_out(path, False)
