"""go test: the events of `-json`, and what it prints without."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from .reading import Case, Reading, Verdict, seconds_of, tally

NAME = "go"
# Real subtests are never nested deeper; a name made of slashes would otherwise have as many parents.
DEEPEST = 64
_WORDS = {"pass": Verdict.PASSED, "fail": Verdict.FAILED, "skip": Verdict.SKIPPED}
_RESULT = re.compile(r"^\s*--- (PASS|FAIL|SKIP): (\S+) \(([\d.]{1,12})s\)$")
_NAMED = re.compile(r"^=== (?:RUN|CONT|NAME|PAUSE)\s+(\S+)$")
_PACKAGE = re.compile(r"^(ok  |FAIL|\?   )\t(\S+)(?:[ \t](.*))?$")
_FRAME = re.compile(r"^(?:=== \w+ |\s*--- (?:PASS|FAIL|SKIP): |FAIL$|PASS$|(?:FAIL|ok  )\t|coverage: )")
_PANIC = re.compile(r"^panic: (.*)", re.MULTILINE)


class _Events:
    """Events of packages and tests, in order."""

    def __init__(self) -> None:
        self.verdicts: dict[tuple[str, str], tuple[str, float]] = {}
        self.started: dict[tuple[str, str], None] = {}
        self.output: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        self.builds: dict[str, str] = {}
        self.quiet = False

    def take(self, event: dict[str, Any]) -> None:
        action = event.get("Action")
        key = (str(event.get("Package") or event.get("ImportPath") or ""), str(event.get("Test") or ""))
        if action in ("output", "build-output"):
            self.output[key].append(str(event.get("Output", "")))
        elif action in ("start", "run"):
            self.started[key] = None
        elif action in _WORDS:
            self.verdicts[key] = (str(action), seconds_of(str(event.get("Elapsed", ""))))
            if event.get("FailedBuild"):
                self.builds[key[0]] = str(event["FailedBuild"])

    def adopt(self, package: str, block: _Events, *, failed: bool = False) -> None:
        """Take over events that came before the name of their package."""
        for (_, test), verdict in block.verdicts.items():
            self.verdicts[package, test] = verdict
        for _, test in block.started:
            self.started[package, test] = None
        for (_, test), lines in block.output.items():
            self.output[package, test] += lines
        if failed:
            self.verdicts[package, ""] = ("fail", 0.0)

    def said(self, *key: str) -> str:
        lines = "".join(self.output[key[0], key[1]]).splitlines()
        return "\n".join(line for line in lines if not _FRAME.match(line))

    def cases(self) -> Iterator[Case]:
        parents = self._parents()
        failed_in = {package for (package, test), (action, _) in self.verdicts.items() if test and action == "fail"}
        for (package, test), (action, seconds) in self.verdicts.items():
            if test and self._counts(parents.get((package, test)), action):
                said = self.said(package, test) if action == "fail" else ""
                yield Case(f"{package} {test}".strip(), _WORDS[action], seconds, said)
            elif not test and action == "fail" and package not in failed_in:
                said = self.said(self.builds.get(package, package), "") or self.said(package, "")
                yield Case(package, Verdict.ERROR, 0.0, said or "it failed without a failing test")

    def _parents(self) -> dict[tuple[str, str], bool]:
        """Tests that have subtests, and whether any of those failed."""
        parents: dict[tuple[str, str], bool] = {}
        for (package, test), (action, _) in self.verdicts.items():
            steps = test.split("/", DEEPEST)
            for depth in range(1, len(steps)):
                test = "/".join(steps[:depth])
                parents[package, test] = parents.get((package, test), False) or action == "fail"
        return parents

    @staticmethod
    def _counts(child_failed: bool | None, action: str) -> bool:
        """Whether a test counts itself: one with subtests does so only if it failed and none of them did."""
        return child_failed is None or (action == "fail" and not child_failed)

    def reading(self) -> Reading:
        unended = [key for key in self.started if key not in self.verdicts]
        panics = [match.group(1) for lines in self.output.values() if (match := _PANIC.search("".join(lines)))]
        problem = f"a test binary panicked ({panics[0][:200]}), so its other tests were not run" if panics else ""
        if self.quiet:
            problem = problem or "go test without -v does not tell how many tests passed"
        return tally(NAME, self.cases(), ended=not unended and not problem, problem=problem)


def read_json(text: str) -> Reading | None:
    """Events of `go test -json`; an incomplete last line is ignored."""
    events = _Events()
    for line in text.splitlines():
        if line.startswith('{"') and '"Action":' in line:
            try:
                events.take(json.loads(line))
            except (ValueError, RecursionError):
                continue
    return events.reading() if events.started or events.verdicts else None


def read_text(text: str) -> Reading | None:
    """The output for people, in which tests come before the name of their package."""
    events, block = _Events(), _Events()
    test, packages = "", 0
    for line in text.splitlines():
        if package := _PACKAGE.match(line):
            packages += 1
            events.adopt(package.group(2), block, failed=package.group(1) == "FAIL")
            test, block = "", _Events()
        elif result := _RESULT.match(line):
            word, test, seconds = result.groups()
            block.verdicts["", test] = (word.lower(), seconds_of(seconds))
        elif named := _NAMED.match(line):
            test = named.group(1)
            block.started["", test] = None
        else:
            block.output["", test].append(f"{line}\n")
    events.adopt("", block)
    # Without -v nothing is said of tests that passed.
    events.quiet = "=== RUN " not in text and bool(re.search(r"^(?:ok  \t|--- FAIL)", text, re.MULTILINE))
    return events.reading() if packages or events.started else None
