"""TAP, the Test Anything Protocol, with node's and Perl's subtests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..texts.text import counted
from .reading import Case, Reading, Verdict, seconds_of, tally

NAME = "tap"
_POINT = re.compile(r"^( *)(not )?ok\b(.*)$")
_NUMBER = re.compile(r" {0,9}\d{0,9}(?: {1,9}-)? {0,9}")
_PLAN = re.compile(r"^( *)1\.\.(\d{1,9})\b")
_TIME = re.compile(r"^[ \t]+duration_ms: ([\d.]{1,20})$", re.MULTILINE)


@dataclass
class _Point:
    """A test line, and what follows it up to the next."""

    depth: int
    ok: bool
    name: str
    directive: str
    lines: list[str] = field(default_factory=list)


def read_text(text: str) -> Reading | None:
    """Parse TAP; None where there is no plan, nor any sign of TAP."""
    lines = text.splitlines()
    plan = next((int(match.group(2)) for line in lines if (match := _PLAN.match(line)) and not match.group(1)), None)
    if plan is None and not text.startswith("TAP version"):
        return None
    points = list(_points(lines))
    top = sum(point.depth == 0 for point in points)
    bail = next((line for line in lines if line.startswith("Bail out!")), "")
    short = f"it planned {counted(plan, 'test')} and told of {top}" if plan is not None and top != plan else ""
    return tally(NAME, _cases(points), ended=plan is not None and not short, problem=bail or short)


def _points(lines: list[str]) -> Iterator[_Point]:
    point: _Point | None = None
    for line in lines:
        if (match := _POINT.match(line)) and not line.lstrip().startswith("#"):
            if point:
                yield point
            indent, fails, rest = match.groups()
            point = _Point(len(indent) // 4, not fails, *_described(rest))
        elif point and not _PLAN.match(line) and not line.lstrip().startswith("# Subtest"):
            point.lines.append(line)
    if point:
        yield point


def _described(rest: str) -> tuple[str, str]:
    """The name after the number, and whether it is to be skipped or yet to be done."""
    name, mark, directive = rest.rpartition(" #")
    word = directive.strip()[:4].upper()
    is_marked = bool(mark) and word in ("SKIP", "TODO")
    text = name if is_marked else rest
    start = _NUMBER.match(text)
    return text[start.end() if start else 0 :].strip(), word if is_marked else ""


def _cases(points: list[_Point]) -> Iterator[Case]:
    """Leaves only: a parent comes after its children, and fails with them."""
    pending: dict[int, list[_Point]] = {}
    for point in points:
        children = pending.pop(point.depth + 1, [])
        pending.setdefault(point.depth, []).append(point)
        if not children or (not point.ok and not point.directive and all(child.ok for child in children)):
            yield _case(point)


def _case(point: _Point) -> Case:
    # The block between --- and ..., or the comments that follow.
    inside = [line for line in point.lines if line.strip() not in ("---", "...")]
    margin = min((len(line) - len(line.lstrip()) for line in inside if line.strip()), default=0)
    said = "\n".join(line[margin:] for line in inside)
    found = _TIME.search(said)
    seconds = seconds_of(found.group(1)) / 1000 if found else 0.0
    if point.directive:
        return Case(point.name, Verdict.SKIPPED, seconds)
    if point.ok:
        return Case(point.name, Verdict.PASSED, seconds)
    return Case(point.name, Verdict.FAILED, seconds, said)
