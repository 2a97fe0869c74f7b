"""A person's word on what agents may use of this computer: what is allowed, allowing a place, and taking that back."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from ...config import allowances, paths
from ...config.allowances import Allowance
from ...config.problems import plain
from ...config.schema import Settings
from ...core.check import text_argument
from ...core.commands.shell import quote
from ...core.errors import BadArgument
from ...core.gate import ALLOW, Ground, ResolvedPath, is_project, refusal, why_shut
from ...core.texts.text import counted, span
from .paths import Gate

TAKE_BACK = "remote-sandbox-mcp disallow"
# Keys of [server] in config.toml that open places, and whether they open them to writing.
KEYS = {"allowed_roots": True, "allowed_roots_read": False, "allow_hidden": True}
SHORTEST_S, LONGEST_S = 60.0, 366 * 86400.0
# Three paths of the usual greatest length.
LONGEST_SENTENCE = 3 * 4096


@dataclass(frozen=True)
class Given:
    """An allowance that counts from now on, and what its giver should know about the place."""

    allowance: Allowance
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class TakenBack:
    """Allowances that count no more, and why agents may use the place nevertheless, if they may."""

    allowances: tuple[Allowance, ...]
    still: str


def real(path: str) -> ResolvedPath:
    """The place that a person means by a path. Raises BadArgument."""
    from ...backends.here import locate

    return locate(os.path.expanduser(text_argument("the path", path)))


def configured(settings: Settings) -> list[Allowance]:
    """Places that the operator's configuration opens; `by` is the key that does."""
    found = ((key, path) for key in KEYS for path in getattr(settings, key))
    return [Allowance(real(path).path, KEYS[key], by=key) for key, path in found]


def allow(gate: Gate, path: str, *, writing: bool, for_s: float | None, by: str) -> Given:
    """Allow a place, always where `for_s` is None. Raises BadArgument where it stays closed, ConfigError."""
    place = real(path)
    # As it would be decided with the allowance.
    ground = gate.ground(place.path)
    if shut := why_shut(place, ground, writing=writing):
        is_readable = writing and why_shut(place, ground, writing=False) is None
        reading = f". Reading it can be allowed by: {ALLOW} {quote(place.path)} --read" if is_readable else ""
        said = refusal(place.path, place, shut, ground, writing=writing)
        raise _refused(f"nothing was allowed: {said}{reading}")
    until = None if for_s is None else time.time() + for_s
    allowance = Allowance(place.path, writing, until, by=by)
    allowances.allow(allowance, paths.state_folder())
    return Given(allowance, tuple(_warnings(place, ground)))


def take_back(path: str, settings: Settings) -> TakenBack:
    """Take back what was allowed of a place and of places in it. Raises BadArgument where that is nothing."""
    place, state = real(path), paths.state_folder()
    # As written, too: the place may have become a link since.
    for spelling in dict.fromkeys((place.path, os.path.abspath(os.path.expanduser(path)))):
        if gone := allowances.disallow(spelling, state):
            return TakenBack(tuple(gone), _why_allowed(place, settings))
    why = _why_allowed(place, settings) or f"{place.path} was not allowed"
    raise _refused(f"nothing was taken back: {why}")


def sentence(allowance: Allowance) -> str:
    """Say what is allowed until when, and how to take it back."""
    left = "" if allowance.until is None else f" (for {span(round(allowance.until - time.time()))})"
    return (
        f"Agents may {uses(allowance)} {allowance.path} {until(allowance)}{left}; "
        f"take it back by: {TAKE_BACK} {quote(allowance.path)}"
    )


def fields(it: Allowance) -> dict[str, Any]:
    """An allowance as data for programs."""
    return {"path": it.path, "writing": it.writing, "until": it.until, "by": it.by, "session": it.session}


def uses(allowance: Allowance) -> str:
    return "read and write" if allowance.writing else "read"


def until(allowance: Allowance) -> str:
    """
    >>> until(Allowance("/data"))
    'always'
    """
    if allowance.until is None:
        return "always"
    end, now = time.localtime(allowance.until), time.localtime()
    return time.strftime("until %H:%M" if end[:3] == now[:3] else "until %Y-%m-%d %H:%M", end)


@dataclass(frozen=True)
class Use:
    """Places that agents may use here: the project, or why the folder is none; the operator's and a person's."""

    project: str
    why_none: str
    configured: tuple[Allowance, ...]
    allowed: tuple[Allowance, ...]

    @property
    def line(self) -> str:
        """All of them in one line."""
        more = [
            counted(len(self.configured), "place") + " of the configuration" if self.configured else "",
            counted(len(self.allowed), "place") + " that you allowed" if self.allowed else "",
        ]
        first = self.project or f"no project in this folder, because {self.why_none}"
        text = "; ".join(filter(None, (first, *more)))
        return f"{text} (remote-sandbox-mcp allow lists them)" if any(more) else text


def use_here(gate: Gate, settings: Settings) -> Use:
    """Find what a client may use that starts us in the current folder."""
    try:
        folder = os.getcwd()
        why = why_no_project(folder, gate) or _why_shared(folder, gate)
    except OSError:
        folder, why = "", "it was removed"
    return Use("" if why else folder, why, tuple(configured(settings)), tuple(allowances.allowances()))


def why_no_project(folder: str, gate: Gate) -> str:
    """Explain why a folder cannot be a project, as the end of a sentence; empty where it can."""
    place, ground = real(folder), gate.ground()
    if not is_project(place, ground):
        return "it is, or contains, a home folder or one of the system"
    shut = why_shut(place, ground, writing=True)
    return f"it is {'in ' if shut.is_inside else ''}{shut.what}" if shut else ""


def _why_shared(folder: str, gate: Gate) -> str:
    """Explain why the current folder, which could be a project, is none to the gate."""
    place = real(folder)
    is_one = any(place.path == it.place.path for it in gate.ground().allowed)
    return "" if is_one else "everybody on this computer can write to it"


def _refused(why: str) -> BadArgument:
    """Made safe: a path may hold line ends and control characters."""
    return BadArgument(plain(why, LONGEST_SENTENCE))


def _warnings(place: ResolvedPath, ground: Ground) -> list[str]:
    found = []
    if not is_project(place, ground):
        found.append(
            f"{place.path} is, or contains, a home folder or one of the system, so this allows much more than a "
            "project; only keys, programs and start-up files in it stay closed"
        )
    if place.id is None:
        found.append(f"there is nothing at {place.path} yet")
    return found


def _why_allowed(place: ResolvedPath, settings: Settings) -> str:
    """Name the key of the configuration, or the allowance, that lets agents use a place; empty where none does."""

    def holds(outer: Allowance) -> bool:
        return place.exact_depth_of(real(outer.path)) is not None

    for it in filter(holds, configured(settings)):
        return f"{place.path} is allowed by {it.by} under [server] in config.toml, which names {it.path}"
    for it in filter(holds, allowances.allowances()):
        return f"{place.path} is allowed as part of {it.path}; to take that back: {TAKE_BACK} {quote(it.path)}"
    return ""
