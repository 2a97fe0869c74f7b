"""Reads OpenSSH client configuration: Host and Match blocks, Include, tokens; the first value wins."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .problems import Tell, quoted

USER_FILE, SYSTEM_FILE = "~/.ssh/config", "/etc/ssh/ssh_config"

_LINE = re.compile(r"\s*([A-Za-z0-9]+)(?:(?:\s*=\s*|\s+)(.*?))?\s*")
_WORD = re.compile(r"""(?:"[^"]*"|'[^']*'|[^\s"'])+""")
_QUOTED = re.compile(r"\"([^\"]*)\"|'([^']*)'")
_SEVERAL = {"identityfile", "certificatefile"}
_BEGINNINGS = {"host", "match"}
_WHOLE_LINE = {"proxycommand"}
# ProxyJump and ProxyCommand exclude each other: the first one wins.
_ALIKE = {"proxyjump": "proxy", "proxycommand": "proxy"}
_SINGLE = {
    *("hostname", "port", "user", "identitiesonly", "identityagent", "proxyjump", "proxycommand", "userknownhostsfile"),
    *("stricthostkeychecking", "hostkeyalias", "connecttimeout"),
}


@dataclass(frozen=True)
class Line:
    """One line: a setting, or a Host or Match that begins a block; `keyword` is lower case."""

    keyword: str
    words: tuple[str, ...]
    where: str


@dataclass
class Block:
    """Settings that apply together; a block inside an included file has the conditions of the Include as well."""

    conditions: tuple[Line, ...]
    settings: list[Line] = field(default_factory=list)


@dataclass
class Lookup:
    """Settings found for one host. `known` is False where only blocks for all hosts applied."""

    alias: str
    local_user: str
    single: dict[str, Line] = field(default_factory=dict)
    several: dict[str, list[str]] = field(default_factory=dict)
    known: bool = False

    @property
    def host(self) -> str:
        return expand(self.first("hostname") or self.alias, {"h": self.alias, "%": "%"})

    @property
    def user(self) -> str:
        return self.first("user") or self.local_user

    def first(self, keyword: str) -> str:
        """The first word of a setting; empty for none."""
        setting = self.single.get(_ALIKE.get(keyword, keyword))
        return setting.words[0] if setting and setting.keyword == keyword else ""

    def take(self, setting: Line) -> None:
        # For most keywords the first value counts; identity files add up, as in OpenSSH.
        if setting.keyword in _SEVERAL:
            values = self.several.setdefault(setting.keyword, [])
            values.extend(word for word in setting.words[:1] if word not in values)
        else:
            self.single.setdefault(_ALIKE.get(setting.keyword, setting.keyword), setting)


class SshConfig:
    """The blocks of one or more files, in the order in which OpenSSH would read them."""

    def __init__(self, blocks: Iterable[Block], tell: Tell, files: Iterable[str] = ()) -> None:
        """`files` are those that were read, and folders in which more may appear."""
        self.files = tuple(dict.fromkeys(files))
        self._blocks = tuple(blocks)
        self._tell = tell
        self._told: set[str] = set()

    @classmethod
    def read(cls, tell: Tell, files: Iterable[str] = (USER_FILE, SYSTEM_FILE)) -> SshConfig:
        """Read files; a missing one counts as empty."""
        parser = _Parser(tell)
        for file in files:
            path = os.path.expanduser(file)
            parser.file(path, (), os.path.dirname(path))
        return cls(parser.blocks, tell, parser.files)

    def look_up(self, alias: str, local_user: str, user: str = "") -> Lookup:
        """The settings for a host; `user` is already decided by the caller."""
        lookup = Lookup(alias, local_user)
        # Taken first, so that a Match user block sees the caller's choice.
        if user:
            lookup.take(Line("user", (user,), ""))
        for block in self._blocks:
            if all(self._applies(condition, lookup) for condition in block.conditions):
                lookup.known |= any(_is_particular(condition) for condition in block.conditions)
                for setting in block.settings:
                    lookup.take(setting)
        return lookup

    def _applies(self, condition: Line, lookup: Lookup) -> bool:
        if condition.keyword == "host":
            return matches(condition.words, lookup.alias)
        return bool(condition.words) and all(
            self._fulfils(*criterion, condition, lookup) for criterion in _criteria(condition.words)
        )

    def _fulfils(self, name: str, pattern: str, wanted: bool, condition: Line, lookup: Lookup) -> bool:
        # canonical and final never apply here: they need a second pass over the files, which OpenSSH makes.
        if name in {"all", "canonical", "final"}:
            return (name == "all") == wanted
        value = {
            "host": lookup.host,
            "originalhost": lookup.alias,
            "user": lookup.user,
            "localuser": lookup.local_user,
        }.get(name)
        if value is None:
            self._tell_once(f"{condition.where}: Match {quoted(name)} is not supported, so its block is passed over.")
            return False
        return matches(pattern.split(","), value) == wanted

    def _tell_once(self, problem: str) -> None:
        if problem not in self._told:
            self._told.add(problem)
            self._tell(problem)


class _Parser:
    def __init__(self, tell: Tell) -> None:
        self.blocks: list[Block] = []
        self.files: list[str] = []
        self._tell = tell

    def file(self, path: str, conditions: tuple[Line, ...], folder: str, chain: tuple[str, ...] = ()) -> None:
        """Read one file, included by those of `chain`; relative Include paths start in `folder`."""
        block = self._begin(conditions)
        for number, line in enumerate(self._lines(path), 1):
            if not (setting := _read(line, f"{path} line {number}")):
                continue
            if setting.keyword in _BEGINNINGS:
                block = self._begin((*conditions, setting))
            elif setting.keyword == "include":
                self._include(setting, block.conditions, folder, (*chain, path))
                # After an Include, settings belong to the surrounding block again.
                block = self._begin(block.conditions)
            elif setting.keyword in _SINGLE | _SEVERAL:
                block.settings.append(setting)

    def _begin(self, conditions: tuple[Line, ...]) -> Block:
        self.blocks.append(Block(conditions))
        return self.blocks[-1]

    def _include(self, setting: Line, conditions: tuple[Line, ...], folder: str, chain: tuple[str, ...]) -> None:
        import glob

        for pattern in setting.words:
            whole = os.path.join(folder, os.path.expanduser(pattern))
            # The folder is watched for changes, too: a new file may match the pattern later.
            self.files.append(os.path.dirname(whole))
            for path in sorted(glob.glob(whole)):
                # Includes may form a cycle.
                if path in chain:
                    self._tell(f"{setting.where}: Include is passed over: the file would include itself.")
                else:
                    self.file(path, conditions, folder, chain)

    def _lines(self, path: str) -> list[str]:
        self.files.append(path)
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                return file.read().split("\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            self._tell(f"{path} is passed over: it cannot be read ({error.strerror}); check its permissions.")
            return []


def _read(line: str, where: str) -> Line | None:
    found = _LINE.fullmatch(line)
    if not found:
        return None
    keyword, rest = found[1].lower(), found[2] or ""
    words = (rest,) if keyword in _WHOLE_LINE else split(rest)
    # A block without a host still begins, so that its settings are not added to the block before it.
    return Line(keyword, words, where) if keyword in _BEGINNINGS or (words and words[0]) else None


def split(line: str) -> tuple[str, ...]:
    """The words of a line, unquoted, up to a comment."""
    words = []
    for word in _WORD.findall(line):
        if word.startswith("#"):
            break
        words.append(_QUOTED.sub(lambda found: found[1] or found[2] or "", word))
    return tuple(words)


def matches(patterns: Iterable[str], value: str) -> bool:
    """Whether one pattern matches and none with "!" does; `*` and `?` are wildcards."""
    fitting = [pattern for pattern in patterns if _fits(pattern.lstrip("!"), value)]
    return bool(fitting) and not any(pattern.startswith("!") for pattern in fitting)


def _fits(pattern: str, value: str) -> bool:
    wild = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(wild, value, re.DOTALL) is not None


def _criteria(words: tuple[str, ...]) -> Iterable[tuple[str, str, bool]]:
    """Criteria of a Match line: name, pattern, and whether it must be true."""
    rest = list(words)
    while rest:
        name, equals, pattern = rest.pop(0).partition("=")
        bare = name.lstrip("!").lower()
        if bare not in {"all", "canonical", "final"} and not equals:
            pattern = rest.pop(0) if rest else ""
        yield bare, pattern, not name.startswith("!")


def _is_particular(condition: Line) -> bool:
    """Whether a condition names particular hosts instead of all."""
    if condition.keyword == "match":
        return any(name in {"host", "originalhost"} for name, _, _ in _criteria(condition.words))
    return any(word.strip("*?") for word in condition.words if not word.startswith("!"))


def expand(text: str, tokens: Mapping[str, str], environ: Mapping[str, str] | None = None) -> str:
    """Replace %h and the like, and ${NAME}; what has no value stays unchanged."""
    text = re.sub(r"%(.)", lambda found: tokens.get(found[1], found[0]), text)
    return re.sub(r"\$\{(\w+)\}", lambda found: (environ or {}).get(found[1], found[0]), text)
