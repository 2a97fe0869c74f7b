"""unittest: what `python -m unittest -v` prints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import accumulate

from .reading import Case, Reading, Verdict, failures_of, tally

NAME = "unittest"
_RAN = re.compile(r"^Ran (\d{1,9}) tests? in [\d.]+s$", re.MULTILINE)
_END = re.compile(r"^(OK|FAILED|NO TESTS RAN)(?: \((.*)\))?$", re.MULTILINE)
_BLOCK = re.compile(r"^={70}\n(FAIL|ERROR|UNEXPECTED SUCCESS): (.+)\n(?:.+\n)?-{70}\n", re.MULTILINE)
_BLOCK_END = re.compile(r"^(?:={70}|-{70})$", re.MULTILINE)
_START = re.compile(r"^ *([\w.]+ \([\w.<>]+\))")
# Bounded length, and only at the start of a word: a hostile output could otherwise make the search very slow.
_TITLES = re.compile(r"(?<![\w.])[\w.]{1,300} \([\w.<>]{1,300}\)")
_TITLE = re.compile(r"(\S+) \(([^\s()]+)\)(.*)")
_FIXTURES = ("setUpClass", "tearDownClass", "setUpModule", "tearDownModule")
_WORDS = {
    "ok": Verdict.PASSED, "FAIL": Verdict.FAILED, "ERROR": Verdict.ERROR, "skipped": Verdict.SKIPPED,
    "expected failure": Verdict.SKIPPED, "unexpected success": Verdict.FAILED, "UNEXPECTED SUCCESS": Verdict.FAILED,
}  # fmt: skip


def read_text(text: str) -> Reading | None:
    """The summary, or the lines of an incomplete run; None where unittest did not print this."""
    blocks = list(_blocks(text))
    ran = sum(int(number) for number in _RAN.findall(text))
    ends = _END.findall(text) if _RAN.search(text) else []
    if not ends:
        lines = list(_lines(text))
        return tally(NAME, lines, ended=False) if lines else None
    counts = _counts(ends)
    failed = counts.get("failures", 0) + counts.get("unexpected successes", 0)
    skipped = counts.get("skipped", 0) + counts.get("expected failures", 0)
    # One test may fail in several subtests, and a failing setUpClass is not a test.
    bad = {case.id.partition(" ")[0] for case in blocks if not case.id.endswith(tuple(f"({f})" for f in _FIXTURES))}
    unseen = max(0, failed + counts.get("errors", 0) - len(blocks))
    return Reading(
        runner=NAME, passed=max(0, ran - len(bad) - unseen - skipped), failed=failed, skipped=skipped,
        errors=counts.get("errors", 0), failures=failures_of(blocks), problem=_unimported(text),
    )  # fmt: skip


def unseen(text: str, modules: Iterable[str]) -> list[str]:
    """Modules of which the output names no test."""
    seen: set[str] = set()
    for title in set(_TITLES.findall(text)):
        # A module that could not be loaded, or that skips itself, is named in place of its tests.
        name = title if "(unittest.loader." in title else dotted(title)
        seen.update(accumulate(name.partition(" ")[0].split("."), "{}.{}".format))
    return [module for module in modules if module not in seen]


def _lines(text: str) -> Iterator[Case]:
    """Names and verdicts of -v. A test may print between the two, and its docstring is on a second line."""
    pending = ""
    for line in text.splitlines():
        if start := _START.match(line):
            pending = start.group(1)
        said = line.rpartition(" ... ")[2]
        word = next((word for word in _WORDS if said == word or said.startswith(f"{word} ")), "")
        if pending and word:
            yield Case(dotted(pending), _WORDS[word])
            pending = ""


def _counts(ends: list[tuple[str, str]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for _, words in ends:
        for name, _, number in (word.partition("=") for word in words[:500].split(",")):
            if number.isdecimal() and len(number) < 10:
                counts[name.strip()] = counts.get(name.strip(), 0) + int(number)
    return counts


def _unimported(text: str) -> str:
    modules = re.findall(r"^ImportError: Failed to import test module: (\S+)", text, re.MULTILINE)
    return f"not imported, so not run: {', '.join(modules[:5])}" if modules else ""


def _blocks(text: str) -> Iterator[Case]:
    for match in _BLOCK.finditer(text):
        word, title = match.groups()
        end = _BLOCK_END.search(text, match.end())
        body = text[match.end() : end.start() if end else len(text)].strip()
        yield Case(dotted(title), _WORDS[word], message=body if word in ("FAIL", "ERROR") else word.lower())


def dotted(title: str) -> str:
    """The name that `python -m unittest` takes again."""
    if not (match := _TITLE.match(title)):
        return title
    name, where, part = match.groups()
    if name in _FIXTURES:
        return f"{where} ({name})"
    if "_FailedTest" in where:
        return name
    return (where if where.endswith(f".{name}") else f"{where}.{name}") + part
