"""Gate of this computer's files: decides by where a path really leads whether an agent may read or write there."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .commands.shell import quote
from .errors import BadArgument
from .sync.starters import folded, starter_depth

if TYPE_CHECKING:
    from .sync.incoming import Sieve

# The command by which a person allows a place.
ALLOW = "remote-sandbox-mcp allow"
# Device and inode: they identify a file or folder, however its name is spelled.
Id = tuple[int, int]

HIDDEN = "a hidden part of your home folder, where keys and start-up files are"
LED = "a place where keys or start-up files are, because a variable or a link of your home folder leads there"
OTHERS = "another user's home folder"
OWN = "part of remote-sandbox-mcp itself: its configuration, its state or a key that it logs in with"
STARTS = "what makes git, an editor or a client run something"
SYSTEM = "a folder of the system"
PROGRAMS = "a folder of programs that run under your name"
PROGRAM = "the program remote-sandbox-mcp, or the Python that runs it"


def names_of(path: str) -> tuple[str, ...]:
    return tuple(filter(None, path.split("/")))


@dataclass(frozen=True)
class ResolvedPath:
    """A path and the ids along it: of /, of each folder on the way, and of its end, as far as it exists.

    Without ids it is only a text.
    """

    path: str
    ids: tuple[Id, ...] = ()

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        return names_of(self.path)

    @functools.cached_property
    def _folded(self) -> tuple[str, ...]:
        return tuple(map(folded, self.names))

    @functools.cached_property
    def id(self) -> Id | None:
        """Id of what is at the end of the path, if it exists."""
        return self.ids[-1] if len(self.ids) == len(self.names) + 1 else None

    def below(self, path: str) -> ResolvedPath:
        """A path further down, whose ids are unknown."""
        return ResolvedPath(f"{self.path.rstrip('/')}/{path}", self.ids)

    def depth_of(self, place: ResolvedPath) -> int | None:
        """Return how many names of this path lead to `place`, if it lies inside; None if not, in any spelling."""
        if place.id is not None and place.id in self.ids:
            return self.ids.index(place.id)
        outer = place._folded
        return len(outer) if self._folded[: len(outer)] == outer else None

    def exact_depth_of(self, place: ResolvedPath) -> int | None:
        """Return the depth below an allowed place: another spelling counts only if the ids prove it is the same."""
        if place.id is not None and place.id in self.ids:
            return self.ids.index(place.id)
        return len(place.names) if self.names[: len(place.names)] == place.names else None


@dataclass(frozen=True)
class Allowed:
    """A place that agents may use: read it, and write to it where `writing`."""

    place: ResolvedPath
    writing: bool = True


@dataclass(frozen=True)
class Closed:
    """A closed place. `reading`: closed to reading, too, not only to writing; `ever`: the operator cannot open it."""

    place: ResolvedPath
    what: str
    reading: bool = False
    ever: bool = False


@dataclass(frozen=True)
class Ground:
    """Facts that the decision is based on: allowed places, the user's home folders, closed places, and what is named.

    Only what lies in an `allowed` place is open. A closed place in it stays closed, unless the operator has `named` it
    or something in it. `home_parents` are folders whose entries are home folders; those of other users are closed.
    """

    homes: tuple[ResolvedPath, ...] = ()
    closed: tuple[Closed, ...] = ()
    named: tuple[ResolvedPath, ...] = ()
    allowed: tuple[Allowed, ...] = ()
    home_parents: tuple[ResolvedPath, ...] = ()


@dataclass(frozen=True)
class Shut:
    """Reason why a path is closed: its first `depth` names lead to the closed place."""

    what: str
    depth: int
    ever: bool = False
    # Whether `what` names a place that the path is in; otherwise it says what the path itself is.
    is_inside: bool = True


class NotAllowed(BadArgument):
    """A path lies in no place that an agent may use. A person can allow `path`."""

    def __init__(self, said: str, path: str, *, writing: bool) -> None:
        self.path = path
        self.writing = writing
        done, option = ("written", "") if writing else ("read", " --read")
        self.refusal = (
            f"{said} lies outside of the project and of the folders that agents may use on this computer, so it is "
            f"not {done}"
        )
        self.by_hand = f"its user can allow it by: {ALLOW} {quote(path)}{option}"
        super().__init__(f"{self.refusal}; {self.by_hand}")


@dataclass(frozen=True)
class Admitted:
    """A local path that may be used. `rules` are .gitignore lines that exclude what is closed inside it."""

    way: ResolvedPath
    rules: tuple[str, ...] = ()
    sieve: Sieve | None = None


def admit(said: str, given: ResolvedPath, real: ResolvedPath, ground: Ground, *, writing: bool) -> Admitted:
    """Decide on a path that the caller wrote as `said`. Raises BadArgument where all of it is closed.

    `given` is the path as text, `real` the path with all links resolved. Both are checked: a link itself may be closed.
    """
    for way in (real,) if given.path == real.path else (real, given):
        if shut := why_shut(way, ground, writing=writing):
            raise BadArgument(refusal(said, way, shut, ground, writing=writing))
    if not is_allowed(real, ground, writing=writing):
        raise NotAllowed(said, real.path, writing=writing)
    return Admitted(real, rules_below(real, ground, writing=writing))


def is_allowed(way: ResolvedPath, ground: Ground, *, writing: bool) -> bool:
    places = (it.place for it in ground.allowed if it.writing or not writing)
    return any(way.exact_depth_of(place) is not None for place in places)


def is_project(folder: ResolvedPath, ground: Ground) -> bool:
    """Whether a folder can be one project: it is no home folder, nor one of the system, and contains none."""
    system = (closed.place for closed in ground.closed if closed.what == SYSTEM)
    inside = (*ground.homes, *ground.home_parents, *system)
    depth = _others_depth(folder, ground)
    return bool(folder.names) and len(folder.names) != depth and all(it.depth_of(folder) is None for it in inside)


def why_shut(way: ResolvedPath, ground: Ground, *, writing: bool) -> Shut | None:
    """Explain why a path may not be used; None if it may."""
    for shut in _closed_places(way, ground, writing):
        if shut.ever or not is_named(way, shut.depth, ground):
            return shut
    depth = _others_depth(way, ground)
    # An agent that was started in a project there, or a person who allowed one, has named it.
    return Shut(OTHERS, depth) if depth and not _is_allowed_below(way, depth, ground) else None


def _others_depth(way: ResolvedPath, ground: Ground) -> int:
    """Return how many names lead to the home folder of another user that contains the path; 0 if none does."""
    for parent in ground.home_parents:
        depth = way.depth_of(parent)
        if depth is None or len(way.names) <= depth:
            continue
        home = ResolvedPath("/" + "/".join(way.names[: depth + 1]), way.ids[: depth + 2])
        if all(own.depth_of(home) is None for own in ground.homes):
            return depth + 1
    return 0


def _is_allowed_below(way: ResolvedPath, depth: int, ground: Ground) -> bool:
    return any((found := way.exact_depth_of(it.place)) is not None and found >= depth for it in ground.allowed)


def _closed_places(way: ResolvedPath, ground: Ground, writing: bool) -> Iterator[Shut]:
    names = way.names
    for closed in ground.closed:
        if (writing or closed.reading) and (depth := way.depth_of(closed.place)) is not None:
            yield Shut(closed.what, depth, closed.ever)
    for home in ground.homes:
        if depth := _hidden_depth(way, home):
            yield Shut(HIDDEN, depth)
    others = _others_depth(way, ground)
    if others and "".join(names[others : others + 1]).startswith("."):
        yield Shut(OTHERS, others + 1)
    if writing and (depth := starter_depth(names)):
        yield Shut(STARTS, depth, is_inside=False)


def _hidden_depth(way: ResolvedPath, home: ResolvedPath) -> int:
    """Return how many names lead to the hidden entry of a home folder that contains the path; 0 if none does."""
    depth = way.depth_of(home)
    return depth + 1 if depth is not None and "".join(way.names[depth : depth + 1]).startswith(".") else 0


def is_named(way: ResolvedPath, depth: int, ground: Ground) -> bool:
    return any((named := way.exact_depth_of(place)) is not None and named >= depth for place in ground.named)


def refusal(said: str, way: ResolvedPath, shut: Shut, ground: Ground, *, writing: bool) -> str:
    done = "written" if writing else "read"
    if shut.ever:
        return f"{said} is {shut.what}, so no tool reads or writes it; its owner can copy it by hand"
    place = shown("/" + "/".join(way.names[: shut.depth]), ground)
    where = "in " if shut.is_inside else ""
    return (
        f"{said} is {where}{shut.what}, so it is not {done} for an agent. If that is meant, its owner can allow it: "
        f'allow_hidden = ["{place}"] under [server] in config.toml'
    )


def shown(path: str, ground: Ground) -> str:
    """The path for a message, with ~ for the home folder."""
    for home in ground.homes:
        if path.startswith(f"{home.path.rstrip('/')}/"):
            return "~/" + path[len(home.path.rstrip("/")) + 1 :]
    return path


def rules_below(root: ResolvedPath, ground: Ground, *, writing: bool) -> tuple[str, ...]:
    """.gitignore lines for what is closed inside a tree: hidden entries of home folders, and closed places."""
    homes = [f"{below}/.*" for home in ground.homes if (below := _rule_for(home, root)) is not None]
    closed = [closed.place for closed in ground.closed if writing or closed.reading]
    inside = [(place, rule) for place in closed if (rule := _rule_for(place, root))]
    others = [rule for place, rule in inside if not any(_hidden_depth(place, home) for home in ground.homes)]
    return tuple(dict.fromkeys([*homes, *others, *_rules_for_others(root, ground)]))


def _rules_for_others(root: ResolvedPath, ground: Ground) -> Iterator[str]:
    """.gitignore lines for the home folders of other users inside a tree."""
    for parent in ground.home_parents:
        below = _rule_for(parent, root)
        if below is not None:
            yield f"{below}/*"
            own = [home for home in ground.homes if home.depth_of(parent) is not None]
            yield from (f"!{rule}" for home in own if (rule := _rule_for(home, root)))


def _rule_for(place: ResolvedPath, root: ResolvedPath) -> str | None:
    """The .gitignore line for one place in a tree, empty for the tree itself; None if the place is not in it."""
    depth = place.exact_depth_of(root)
    if depth is None:
        return None
    # Escape characters of the name that have a meaning in .gitignore.
    below = "".join("/" + re.sub(r"[*?\[\\]", r"\\\g<0>", name) for name in place.names[depth:])
    kept = below.rstrip(" ")
    return kept + "\\ " * (len(below) - len(kept))
