"""Scope of a workspace: which entries go to its sandbox and come back, by path, entry and rules; a pure function."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..sandboxes.files import Problem
from ..workspaces.workspace import SECRET_LIKE, SMALL_FILE, Rules, left_out_lines
from .ignore import Ignore
from .incoming import Sieve
from .starters import acting_part
from .transfer import WORKSPACE_EXCLUDES
from .tree import LEADS_OUT, Tree, child, leads_out, read_meta, size_of

# Answers to whether something may be carried over; of ASK it has to be known first whether it is text. What is HELD
# would come, but for its name.
YES, NO, ASK, HELD = "yes", "no", "ask", "held"
# The file that may set something for us in the folder that a client is started in.
PROJECT_FILE = b"config.json"


@dataclass(frozen=True)
class Scope:
    """The rules of a workspace, and what is remembered of its paths. Without rules everything goes and comes."""

    rules: Rules | None = None
    # Lines for what the gate closes to reading in the local folder.
    closed: tuple[str, ...] = ()
    # What may never be written here, because it would make a program start.
    sieve: Sieve | None = None
    # Paths that a pull pattern has brought: what becomes of them here is not carried back.
    came: frozenset[bytes] = frozenset()
    # Paths that are not touched in this pass.
    frozen: frozenset[bytes] = frozenset()
    # Paths that a person has decided about: what comes there comes whatever it is, and results go, too.
    decided: frozenset[bytes] = frozenset()
    # What was found out by reading: which new or changed files there are text, which doubtful ones are equal.
    texts: Mapping[bytes, bool] = field(default_factory=dict)
    equal: Mapping[bytes, bool] = field(default_factory=dict)


EVERYTHING = Scope()


class AppliedScope:
    """A scope applied to two scans, whose .gitignore files count."""

    def __init__(self, scope: Scope, here: Tree, there: Tree) -> None:
        self.scope = scope
        self._gitignores = (here.gitignores, there.gitignores)

    # Questions

    def is_frozen(self, path: bytes) -> bool:
        return bool(self.scope.frozen) and is_among(path, self.scope.frozen)

    def is_out(self, path: bytes, is_dir: bool) -> bool:
        """Whether one of the sides does not list it: then that it is missing there says nothing."""
        return any(ignore.leaves_out_below(path, is_dir) for ignore in self._listed)

    def is_one_way(self, path: bytes) -> bool:
        return path in self.scope.came and not self._is_decided(path)

    def is_by_itself(self, path: bytes) -> bool:
        """Whether it comes only because it is a small text file of the project."""
        return self.scope.rules is not None and not self._is_decided(path) and not self._fits_pull(path)

    def is_pulled(self, path: bytes) -> bool:
        """Whether it comes by a pull pattern."""
        return self.scope.rules is not None and self._fits_pull(path)

    def goes(self, path: bytes, text: bytes | None, found: bytes | None, problems: list[Problem]) -> str:
        """Whether a change of this side may be carried to the other one, which has `found`."""
        if self.scope.rules is None:
            return YES
        if self.is_one_way(path) or self._is_held_back(path, text, found):
            return NO
        return NO if self._leads_out(path, text, problems) else YES

    def comes(self, path: bytes, text: bytes | None, found: bytes | None, problems: list[Problem]) -> str:
        """Whether a change of the other side may be carried to this one."""
        if self._leads_out(path, text, problems):
            return NO
        answer = self._is_wanted(path, text, found)
        if answer != YES:
            return answer
        if self.is_held(path):
            return HELD
        return NO if self._is_closed(path, text or found or b"", problems) else YES

    def is_held(self, path: bytes) -> bool:
        """Whether it runs or instructs by its name, so that it comes only by a decision about that very path."""
        if self.scope.rules is None:
            return False
        # The path itself comes first.
        asked = next((each for each in (path, *folders_above(path)) if each in self.scope.decided), b"")
        below = path[len(asked) + 1 :] if asked else path
        if not acting_part(below):
            return below.lower() == PROJECT_FILE
        return self.scope.sieve is None or bool(self.scope.sieve.held(path))

    # Parts of the answers

    def _is_held_back(self, path: bytes, text: bytes | None, found: bytes | None) -> bool:
        """Whether it is left out of the project. Of a decision, too: that is about conflicts, and lifts no rule.

        Results come although .gitignore excludes them, so those that both sides have can be decided about.
        """
        is_dir = (text or b"")[:1] == b"d"
        if found is not None and self._is_decided(path) and (self._fits_pull(path) or path in self.scope.came):
            return self._own.leaves_out_below(path, is_dir)
        return self._is_ignored(path, is_dir)

    def _is_wanted(self, path: bytes, text: bytes | None, found: bytes | None) -> str:
        """Whether a change of the other side is wanted here, whatever its name makes a program or an agent do."""
        if self.scope.rules is None or self._is_decided(path):
            return YES
        if self._fits_pull(path) or path in self.scope.came:
            return YES if text is not None else NO
        return self._comes_by_itself(path, text, found)

    def _comes_by_itself(self, path: bytes, text: bytes | None, found: bytes | None) -> str:
        entry = text if text is not None else found or b""
        if self._is_ignored(path, entry[:1] == b"d"):
            return NO
        if entry[:1] != b"f":
            return YES
        if size_of(entry) > SMALL_FILE:
            return NO
        if text is None or (found is not None and is_only_mode(text, found)):
            return YES
        is_text = self.scope.texts.get(path)
        return ASK if is_text is None else YES if is_text else NO

    def _leads_out(self, path: bytes, text: bytes | None, problems: list[Problem]) -> bool:
        if text is None or text[:1] != b"l" or not leads_out(path.rpartition(b"/")[0], read_meta(text).target):
            return False
        problems.append(Problem(path.decode("utf-8", "surrogateescape"), LEADS_OUT))
        return True

    def _is_closed(self, path: bytes, entry: bytes, problems: list[Problem]) -> bool:
        sieve = self.scope.sieve
        folder, _, name = path.rpartition(b"/")
        return sieve is not None and (not sieve.keep(folder, {name: entry}, problems) or sieve.closes(folder))

    def _is_ignored(self, path: bytes, is_dir: bool) -> bool:
        """Whether it is left out of the project; a pull pattern may bring it all the same."""
        return any(ignore.leaves_out_below(path, is_dir) for ignore in self._plain)

    def _fits_pull(self, path: bytes) -> bool:
        return self._pull.leaves_out_below(path, False)

    def _is_decided(self, path: bytes) -> bool:
        return bool(self.scope.decided) and is_among(path, self.scope.decided)

    @functools.cached_property
    def _pull(self) -> Ignore:
        return Ignore(_encoded(self.scope.rules.pull if self.scope.rules else ()))

    @functools.cached_property
    def _listed(self) -> tuple[Ignore, ...]:
        if self.scope.rules is None:
            return ()
        return self._ignores((*WORKSPACE_EXCLUDES, *self.scope.rules.scan_lines(self.scope.closed)))

    @functools.cached_property
    def _plain(self) -> tuple[Ignore, ...]:
        return self._ignores(left_out_lines(self.scope.rules, self.scope.closed)) if self.scope.rules else ()

    @functools.cached_property
    def _own(self) -> Ignore:
        """The workspace's own lines, without those of .gitignore files."""
        return Ignore(_encoded(left_out_lines(self.scope.rules, self.scope.closed) if self.scope.rules else ()))

    def _ignores(self, lines: Iterable[str]) -> tuple[Ignore, ...]:
        """Combine the lines with the .gitignore files of each side."""
        encoded, made = _encoded(lines), []
        for gitignores in dict.fromkeys(self._gitignores):
            ignore = Ignore(encoded)
            for folder, text in gitignores:
                ignore.add(folder, text)
            made.append(ignore)
        return tuple(made)


def is_among(path: bytes, paths: frozenset[bytes]) -> bool:
    """Whether it is one of the paths or lies below one."""
    return path in paths or any(above in paths for above in folders_above(path))


def folders_above(path: bytes) -> Iterable[bytes]:
    """The folders that a path is in, without the project's own."""
    while b"/" in path:
        path = path.rpartition(b"/")[0]
        yield path


def is_only_mode(text: bytes, found: bytes) -> bool:
    """Whether two files differ in their modes alone."""
    return text[:1] == found[:1] and text.partition(b" ")[2] == found.partition(b" ")[2]


def _encoded(lines: Iterable[str]) -> list[bytes]:
    return [line.encode("utf-8", "surrogateescape") for line in lines]


@dataclass
class FolderSurvey:
    """Survey of a local folder before it is linked: the files that go, and those that do not."""

    files: int = 0
    bytes: int = 0
    secrets: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)


def survey(tree: Tree, rules: Rules, closed: tuple[str, ...]) -> FolderSurvey:
    """Measure a scan in which secret-like names are not left out yet."""
    applied, found = AppliedScope(Scope(rules, closed), tree, tree), FolderSurvey()
    secret = Ignore(_encoded((*SECRET_LIKE, *(f"!{line}" for line in rules.includes))))
    for folder in sorted(tree.folders):
        if folder and secret.leaves_out_below(folder, True):
            continue
        for name, text in tree.entries(folder).items():
            _measure(found, applied, secret, child(folder, name), text)
    return found


def _measure(found: FolderSurvey, applied: AppliedScope, secret: Ignore, path: bytes, text: bytes) -> None:
    problems: list[Problem] = []
    if secret.leaves_out(path, text[:1] == b"d"):
        found.secrets.append(path.decode("utf-8", "surrogateescape"))
    elif applied.goes(path, text, None, problems) == YES:
        found.files += text[:1] != b"d"
        found.bytes += size_of(text)
    found.links += [problem.path for problem in problems]
