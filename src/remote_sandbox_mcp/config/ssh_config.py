"""Reads ssh_config: which hosts it names and, where no `ssh` can be asked, what its Host blocks say of one."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from .problems import Reporter
from .readers import is_pattern

USER_FILE, SYSTEM_FILE = "~/.ssh/config", "/etc/ssh/ssh_config"

_LINE = re.compile(r"\s*([A-Za-z0-9]+)(?:(?:\s*=\s*|\s+)(.*?))?\s*")
_WORD = re.compile(r"""(?:"[^"]*"|'[^']*'|[^\s"'])+""")
_QUOTED = re.compile(r"\"([^\"]*)\"|'([^']*)'")
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_FOR_SHELL = re.compile(r"\$\{?([A-Za-z_]\w*)", re.ASCII)
_SEVERAL = {"identityfile", "certificatefile"}
_BEGINNINGS = {"host", "match"}
# Their values run a program, which gets variables of ours; a whole line each.
_PROGRAMS = {"proxycommand", "knownhostscommand", "localcommand"}
# ProxyJump and ProxyCommand exclude each other: the first one wins.
_ALIKE = {"proxyjump": "proxy", "proxycommand": "proxy"}


@dataclass(frozen=True)
class ConfigLine:
    """One line: a setting, or a Host or Match that begins a block; `keyword` is lower case."""

    keyword: str
    words: tuple[str, ...]
    where: str


@dataclass
class Block:
    """Settings that apply together; a block inside an included file has the conditions of the Include as well."""

    conditions: tuple[ConfigLine, ...]
    settings: list[ConfigLine] = field(default_factory=list)


@dataclass(frozen=True)
class HostSettings:
    """The settings of one host, as `ssh -G` prints them: by lower-case keyword, tokens of paths not yet replaced."""

    alias: str
    values: Mapping[str, tuple[str, ...]]

    def first(self, keyword: str) -> str:
        """The value of a setting; empty for none."""
        return next(iter(self.all(keyword)), "")

    def all(self, keyword: str) -> tuple[str, ...]:
        return self.values.get(keyword, ())


class SshConfig:
    """The blocks of one or more files, in the order in which OpenSSH would read them."""

    def __init__(self, blocks: Iterable[Block], files: Iterable[str] = ()) -> None:
        """`files` are those that were read, and folders in which more may appear."""
        self.files = tuple(dict.fromkeys(files))
        self._blocks = tuple(blocks)

    @classmethod
    def read(cls, report: Reporter, files: Iterable[str] = (USER_FILE, SYSTEM_FILE)) -> SshConfig:
        """Read files; a missing one counts as empty."""
        parser = _Parser(report)
        for file in files:
            path = os.path.expanduser(file)
            parser.file(path, (), os.path.dirname(path))
        return cls(parser.blocks, parser.files)

    def names(self) -> Iterator[str]:
        """The hosts that are named in full, each once."""
        named = (word for condition in self._conditions() if condition.keyword == "host" for word in condition.words)
        return iter(dict.fromkeys(word for word in named if word and not is_pattern(word)))

    def knows(self, name: str) -> bool:
        """Whether a block is meant for this host, and not for all hosts."""
        return any(
            matches(patterns, name) and _are_particular(patterns) for patterns in map(_hosts, self._conditions())
        )

    def values(self, keyword: str) -> Iterator[str]:
        """All values of a setting, for whichever host."""
        return (line.words[0] for block in self._blocks for line in block.settings if line.keyword == keyword)

    def decides_by_program(self, name: str) -> bool:
        """Whether a Match exec may decide about this host: another answer next time means another way to it."""
        lines = (line for line in self._conditions() if line.keyword == "match" and _decides_by_program(line))
        return any(not (patterns := _hosts(line)) or matches(patterns, name) for line in lines)

    @property
    def variables(self) -> set[str]:
        """The environment variables that settings mention as ${NAME}, and lines for a shell also as $NAME."""
        settings = (line for block in self._blocks for line in block.settings)
        lines = (*settings, *(line for line in self._conditions() if line.keyword == "match"))
        return {
            name
            for line in lines
            for word in line.words
            for name in (_FOR_SHELL if line.keyword in {*_PROGRAMS, "match"} else _VARIABLE).findall(word)
        }

    def say(
        self, alias: str, local_user: str, report: Reporter, user: str = "", port: int | None = None
    ) -> HostSettings:
        """Collect a host's settings from Host blocks; `user` and `port` are decided already. Match is ignored."""
        given = {"user": user, "port": str(port or "")}
        found = {keyword: [value] for keyword, value in given.items() if value}
        for block in self._blocks:
            if all(_applies(condition, alias, report) for condition in block.conditions):
                for setting in block.settings:
                    _take(setting, found)
        hostname = expand("".join(found.get("hostname", [alias])), {"h": alias, "%": "%"})
        said = {"user": [local_user], "port": ["22"], **found, "hostname": [hostname]}
        proxy, _, value = "".join(said.pop("proxy", ())).partition(" ")
        said |= {proxy: [value]} if proxy else {}
        return HostSettings(alias, {keyword: tuple(values) for keyword, values in said.items()})

    def _conditions(self) -> Iterator[ConfigLine]:
        return (condition for block in self._blocks for condition in block.conditions)


def _take(setting: ConfigLine, found: dict[str, list[str]]) -> None:
    """For most keywords the first value counts; identity files add up, as in OpenSSH."""
    if setting.keyword in _SEVERAL:
        values = found.setdefault(setting.keyword, [])
        values += [word for word in setting.words[:1] if word not in values]
    elif setting.keyword in _ALIKE:
        found.setdefault(_ALIKE[setting.keyword], [f"{setting.keyword} {setting.words[0]}"])
    else:
        found.setdefault(setting.keyword, [" ".join(setting.words)])


def _applies(condition: ConfigLine, alias: str, report: Reporter) -> bool:
    if condition.keyword == "host":
        return matches(condition.words, alias)
    if [word.lower() for word in condition.words] == ["all"]:
        return True
    report(f"{condition.where}: Match is passed over, because only OpenSSH decides on it; install its client, ssh.")
    return False


def _hosts(condition: ConfigLine) -> tuple[str, ...]:
    """The patterns of hosts that a block is for."""
    if condition.keyword == "host":
        return condition.words
    words = " ".join(condition.words).replace("=", " ").split()
    pairs = itertools.pairwise(words)
    return tuple(one for name, value in pairs if name.lower() in {"host", "originalhost"} for one in value.split(","))


def _are_particular(patterns: Iterable[str]) -> bool:
    """Whether patterns mean particular hosts instead of all."""
    return any(pattern.strip("*?") for pattern in patterns if not pattern.startswith("!"))


def _decides_by_program(condition: ConfigLine) -> bool:
    return any(word.lstrip("!").lower().partition("=")[0] == "exec" for word in condition.words)


class _Parser:
    def __init__(self, report: Reporter) -> None:
        self.blocks: list[Block] = []
        self.files: list[str] = []
        self._report = report

    def file(self, path: str, conditions: tuple[ConfigLine, ...], folder: str, chain: tuple[str, ...] = ()) -> None:
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
            else:
                block.settings.append(setting)

    def _begin(self, conditions: tuple[ConfigLine, ...]) -> Block:
        self.blocks.append(Block(conditions))
        return self.blocks[-1]

    def _include(
        self, setting: ConfigLine, conditions: tuple[ConfigLine, ...], folder: str, chain: tuple[str, ...]
    ) -> None:
        import glob

        for pattern in setting.words:
            whole = os.path.join(folder, os.path.expanduser(pattern))
            # The folder is watched for changes, too: a new file may match the pattern later.
            self.files.append(os.path.dirname(whole))
            for path in sorted(glob.glob(whole)):
                # Includes may form a cycle.
                if path in chain:
                    self._report(f"{setting.where}: Include is passed over: the file would include itself.")
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
            self._report(f"{path} is passed over: it cannot be read ({error.strerror}); check its permissions.")
            return []


def _read(line: str, where: str) -> ConfigLine | None:
    if not (found := _LINE.fullmatch(line)):
        return None
    keyword, rest = found[1].lower(), found[2] or ""
    words = (rest,) if keyword in _PROGRAMS else split(rest)
    # A block without a host still begins, so that its settings are not added to the block before it.
    return ConfigLine(keyword, words, where) if keyword in _BEGINNINGS or (words and words[0]) else None


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
    """`*` stands for any characters, `?` for one. No name that a caller chooses takes long, whatever the pattern."""
    at = of = 0
    star = mark = -1
    while at < len(value):
        if pattern[of : of + 1] == "*":
            star, mark, of = of, at, of + 1
        elif pattern[of : of + 1] in ("?", value[at]):
            at, of = at + 1, of + 1
        elif star >= 0:
            # The last star takes one character more.
            mark += 1
            at, of = mark, star + 1
        else:
            return False
    return not pattern[of:].strip("*")


def expand(text: str, tokens: Mapping[str, str], environ: Mapping[str, str] | None = None) -> str:
    """Replace %h and the like, and ${NAME}; what has no value stays unchanged."""
    text = re.sub(r"%(.)", lambda found: tokens.get(found[1], found[0]), text)
    return _VARIABLE.sub(lambda found: (environ or {}).get(found[1], found[0]), text)
