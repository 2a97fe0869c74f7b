"""Paths that .gitignore lines leave out; also sent to the far side as text, so it stays Python 3.6."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from .secret_names import is_secret_folder, is_secret_name, may_be_secret

# A line of our own that stands for all that has a name like those of secrets; to git it is a comment.
NAMES_OF_SECRETS = b"# remote-sandbox-mcp: names of secrets"
IGNORE_BOM = b"\xef\xbb\xbf"
# No path is longer, and a bracket without an end takes the square of its length to read.
IGNORE_LONGEST = 4096
# How many folders' rules are kept at hand.
IGNORE_AT_HAND = 256
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

    __slots__ = ("anchored", "dirs_only", "is_plain", "is_prefix", "is_secret", "is_suffix", "out", "pattern")

    def __init__(self, line: bytes) -> None:
        self.is_secret = line == NAMES_OF_SECRETS
        self.out = not line.startswith(b"!")
        pattern = line if self.out else line[1:]
        self.dirs_only = pattern.endswith(b"/")
        pattern = pattern[:-1] if self.dirs_only else pattern
        if pattern.startswith(b"**/") and b"/" not in pattern[3:]:
            # A name in any folder is what the name alone says.
            pattern = pattern[3:]
        self.anchored = b"/" in pattern
        self.pattern = pattern[1:] if pattern.startswith(b"/") else pattern
        special = IGNORE_SPECIAL.search(pattern)
        self.is_plain = special is None
        # Nothing is special but a star at one end of a name.
        star = special.start() if special and special.group() == b"*" and not self.anchored else -1
        self.is_suffix = star == 0 and not IGNORE_SPECIAL.search(pattern, 1)
        self.is_prefix = 0 < star == len(pattern) - 1


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


def ignore_matcher(patterns: "tuple[bytes, ...]") -> "Callable[..., Any] | None":
    """One expression for all of these patterns; None where nothing can fit them."""
    writer = IgnoreWriter()
    read = [ignore_segments(pattern) for pattern in patterns]
    expressions = [writer.path(segments) for segments in read if segments]
    return re.compile(rb"(?:%s)\Z" % b"|".join(expressions)).match if expressions else None


class IgnoreGroup:
    """Rules that say the same, so that their order does not matter; most are looked up, not tried."""

    __slots__ = ("is_secret", "name_fits", "names", "out", "path_fits", "paths", "prefixes", "suffixes")

    def __init__(self, rules: "list[IgnoreRule]", of_dirs: bool, reader: "IgnoreReader") -> None:
        self.out = rules[0].out
        self.is_secret: Callable[[bytes, bytes], bool] | None = None
        self.names: set[bytes] = set()
        # Names that count in a single folder, by the folder with its slash.
        self.paths: dict[bytes, set[bytes]] = {}
        suffixes, prefixes = [], []
        names, paths = [], []  # type: list[bytes], list[bytes]
        for rule in rules:
            pattern = rule.pattern
            if rule.is_secret:
                self.is_secret = is_secret_folder if of_dirs else is_secret_name
            elif rule.is_plain:
                at = pattern.rfind(b"/") + 1
                (self.paths.setdefault(pattern[:at], set()) if rule.anchored else self.names).add(pattern[at:])
            elif rule.is_suffix:
                suffixes.append(pattern[1:])
            elif rule.is_prefix:
                prefixes.append(pattern[:-1])
            else:
                (paths if rule.anchored else names).append(pattern)
        self.suffixes, self.prefixes = tuple(suffixes), tuple(prefixes)
        self.name_fits, self.path_fits = reader.matcher(tuple(names)), reader.matcher(tuple(paths))

    def fits(self, path: bytes, name: bytes) -> bool:
        """Whether a rule fits that is not looked up."""
        return (
            name.endswith(self.suffixes)
            or name.startswith(self.prefixes)
            or (self.is_secret is not None and self.is_secret(name, path))
            or (self.name_fits is not None and self.name_fits(name) is not None)
            or (self.path_fits is not None and self.path_fits(path) is not None)
        )


class IgnoreHere:
    """Rules about files, or about folders, in one folder, which is given with its slash."""

    __slots__ = ("folder", "groups", "is_secret", "name_fits", "names", "path_fits", "prefixes", "suffixes")

    def __init__(self, folder: bytes, said: "list[tuple[int, IgnoreGroup]]") -> None:
        self.folder = folder
        self.groups = [(group.names.union(group.paths.get(folder[start:], ())), group, start) for start, group in said]
        # All of it at once, because most names fit nothing.
        self.names: set[bytes] = set().union(*(names for names, _, _ in self.groups))
        self.suffixes = tuple(suffix for _, group in said for suffix in group.suffixes)
        self.prefixes = tuple(prefix for _, group in said for prefix in group.prefixes)
        self.name_fits = {group.name_fits for _, group in said if group.name_fits}
        self.path_fits = {(group.path_fits, start) for start, group in said if group.path_fits}
        self.is_secret = any(group.is_secret for _, group in said)

    def leaves_out(self, name: bytes) -> bool:
        path = self.folder + name
        for names, group, start in self.groups:
            if name in names or group.fits(path[start:], name):
                return group.out
        return False

    def files_left_out(self, names: "list[bytes]") -> "set[bytes]":
        listed, prefixes, suffixes = self.names, self.prefixes, self.suffixes
        found = [name for name in names if name in listed or name.endswith(suffixes) or name.startswith(prefixes)]
        for fits in self.name_fits:
            found += filter(fits, names)
        for fits, start in self.path_fits:
            found += [name for name in names if fits(self.folder + name, start)]
        if self.is_secret:
            found += filter(may_be_secret, names)
        return set(filter(self.leaves_out, found))


class IgnoreReader:
    """Reads lines of many files; what several of them have in common is read once."""

    def __init__(self) -> None:
        self.rules: dict[bytes, IgnoreRule] = {}
        self.matchers: dict[tuple[bytes, ...], Callable[..., Any] | None] = {}

    def read(self, lines: "Iterable[bytes]", of_dirs: bool) -> "list[IgnoreGroup]":
        """Read what lines say about files, or about folders: neighbours that say the same, the last first."""
        runs: list[list[IgnoreRule]] = []
        for rule in reversed(self.rules_of(lines)):
            if rule.dirs_only and not of_dirs:
                continue
            if not runs or runs[-1][0].out != rule.out:
                runs.append([])
            runs[-1].append(rule)
        return [IgnoreGroup(run, of_dirs, self) for run in runs]

    def rules_of(self, lines: "Iterable[bytes]") -> "list[IgnoreRule]":
        """The lines without their ends, comments and what says nothing."""
        ended = (line[:-1] if line.endswith(b"\n") else line for line in lines)
        plain = (line[:-1] if line.endswith(b"\r") else line for line in ended)
        rules = [self.rule(line) for line in plain if line[:1] != b"#" or line == NAMES_OF_SECRETS]
        return [rule for rule in rules if 0 < len(rule.pattern) <= IGNORE_LONGEST]

    def rule(self, line: bytes) -> IgnoreRule:
        rule = self.rules[line] = self.rules.get(line) or IgnoreRule(ignore_trimmed(line))
        return rule

    def matcher(self, patterns: "tuple[bytes, ...]") -> "Callable[..., Any] | None":
        if patterns not in self.matchers:
            self.matchers[patterns] = ignore_matcher(patterns)
        return self.matchers[patterns]


class Ignore:
    """Excluded paths by .gitignore lines: the last that fits decides."""

    def __init__(self, lines: "Iterable[bytes]" = ()) -> None:
        self._reader, lines = IgnoreReader(), list(lines)
        self._own = [self._reader.read(lines, of_dirs) for of_dirs in (False, True)]
        # Texts by the folder, with its slash, that they lie in, and what they say: many have the same text.
        self._added: dict[bytes, list[bytes]] = {}
        self._read: dict[tuple[bytes, bool], list[IgnoreGroup]] = {}
        # What is said in folders that were asked about lately.
        self._here: dict[tuple[bytes, bool], IgnoreHere] = {}

    def add(self, folder: bytes, text: bytes) -> None:
        """Take the text of a .gitignore that lies in `folder` (b"" is the root): it counts below it only."""
        self._added.setdefault(folder + b"/" if folder else b"", []).insert(0, text)
        self._here.clear()

    def leaves_out(self, path: bytes, is_dir: bool) -> bool:
        """Whether this very path is left out; the caller does not go into folders that are."""
        at = path.rfind(b"/") + 1
        return self._listed(path[:at], is_dir).leaves_out(path[at:])

    def files_left_out(self, folder: bytes, names: "list[bytes]") -> "set[bytes]":
        """Names of a folder's files that are left out, found faster than one by one."""
        return self._listed(folder + b"/" if folder else b"", False).files_left_out(names)

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

    def _listed(self, folder: bytes, is_dir: bool) -> IgnoreHere:
        here = self._here.get((folder, is_dir))
        if here is None:
            if len(self._here) >= IGNORE_AT_HAND:
                self._here.clear()
            said, above = [(0, group) for group in self._own[is_dir]], folder
            while self._added:
                for text in self._added.get(above, ()):
                    said += [(len(above), group) for group in self._said(text, is_dir)]
                if not above:
                    break
                above = above[: above.rfind(b"/", 0, -1) + 1]
            here = self._here[folder, is_dir] = IgnoreHere(folder, said)
        return here

    def _said(self, text: bytes, is_dir: bool) -> "list[IgnoreGroup]":
        if (text, is_dir) not in self._read:
            plain = text[len(IGNORE_BOM) :] if text.startswith(IGNORE_BOM) else text
            self._read[text, is_dir] = self._reader.read(plain.split(b"\n"), is_dir)
        return self._read[text, is_dir]


def is_secret_path(path: bytes) -> bool:
    """Whether a path is that of a secret, or of something in a folder of secrets, whether or not it is a folder."""
    secrets = Ignore([NAMES_OF_SECRETS])
    return secrets.leaves_out_below(path, True) or secrets.leaves_out(path, False)
