"""JUnit XML of any producer, read in one pass with bounded memory and without entities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from xml.parsers import expat

from .reading import ID_CHARS, Case, Reading, Verdict, seconds_of, tally

DEEPEST = 64
MOST_CASES = 200_000
BODY_CHARS = 20_000
_VERDICTS = {"failure": Verdict.FAILED, "error": Verdict.ERROR, "skipped": Verdict.SKIPPED}


class BadReport(ValueError):
    """A report that is refused: it attacks its reader (entities, size) or, where `is_foreign`, it is not JUnit XML."""

    def __init__(self, message: str, *, is_foreign: bool = False) -> None:
        super().__init__(message)
        self.is_foreign = is_foreign


@dataclass(frozen=True)
class XmlCase:
    """A testcase element. `suites` are the names around it, from the outside."""

    name: str
    classname: str = ""
    suites: tuple[str, ...] = ()
    file: str = ""
    line: int = 0
    seconds: float = 0.0
    verdict: Verdict = Verdict.PASSED
    message: str = ""
    body: str = ""

    @property
    def text(self) -> str:
        """The message, and the trace where that says more."""
        first = self.message.strip()
        return self.body.strip() if first in self.body else f"{first}\n{self.body.strip()}".strip()


@dataclass(frozen=True)
class XmlReport:
    """The cases of one file; `whole` is false where the file is incomplete."""

    cases: tuple[XmlCase, ...]
    title: str = ""
    whole: bool = True


def parse_junit(data: bytes) -> XmlReport:
    """Read as much as is there. Raises BadReport for what is refused or is no JUnit XML at all."""
    walk = _Walk()
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = walk.start
    parser.EndElementHandler = walk.end
    parser.CharacterDataHandler = walk.text
    # Entities can make a small file huge, or include another file; no producer of test reports declares any.
    parser.EntityDeclHandler = _refuse_entities
    whole = True
    try:
        parser.Parse(data, True)
    except expat.ExpatError:
        whole = False
    if not walk.is_junit:
        raise BadReport("it is no JUnit XML", is_foreign=True)
    return XmlReport(tuple(walk.cases), walk.title, whole)


def _refuse_entities(*_: object) -> None:
    raise BadReport("it declares XML entities, which no test report needs")


class _Walk:
    """Takes the parser's events."""

    def __init__(self) -> None:
        self.cases: list[XmlCase] = []
        self.title = ""
        self.is_junit = False
        self._depth = 0
        self._suites: list[str] = []
        self._case: XmlCase | None = None
        self._body: list[str] | None = None
        self._length = 0

    def start(self, tag: str, given: Mapping[str, str]) -> None:
        self._depth += 1
        if self._depth > DEEPEST:
            raise BadReport(f"it is nested deeper than {DEEPEST} elements")
        name = tag.rpartition(":")[2]
        if name in ("testsuite", "testsuites"):
            self.is_junit = True
            self.title = self.title or given.get("name", "")
            self._suites.append(given.get("name", "")[:ID_CHARS] if name == "testsuite" else "")
        elif name == "testcase":
            self._begin(given)
        elif name in _VERDICTS and self._case is not None:
            self._judge(_VERDICTS[name], given)

    def _begin(self, given: Mapping[str, str]) -> None:
        if len(self.cases) >= MOST_CASES:
            raise BadReport(f"it has more than {MOST_CASES} tests")
        line = given.get("line", "")
        self._case = XmlCase(
            given.get("name", ""),
            given.get("classname", ""),
            tuple(suite for suite in self._suites if suite),
            given.get("file", ""),
            int(line) if line.isdecimal() and len(line) < 9 else 0,
            seconds_of(given.get("time", "")),
        )

    def _judge(self, verdict: Verdict, given: Mapping[str, str]) -> None:
        assert self._case is not None
        # node writes both for a test marked as todo, and does not count it as failed.
        if self._case.verdict is not Verdict.SKIPPED:
            self._case = replace(self._case, verdict=verdict, message=given.get("message") or given.get("type", ""))
        self._body, self._length = [], 0

    def text(self, text: str) -> None:
        if self._body is not None and self._length < BODY_CHARS:
            self._body.append(text[:BODY_CHARS])
            self._length += len(text)

    def end(self, tag: str) -> None:
        self._depth -= 1
        name = tag.rpartition(":")[2]
        if name in ("testsuite", "testsuites") and self._suites:
            self._suites.pop()
        elif name == "testcase" and self._case is not None:
            self.cases.append(self._case)
            self._case = None
        elif name in _VERDICTS and self._case is not None and self._body is not None:
            self._case = replace(self._case, body=self._case.body or "".join(self._body))
            self._body = None


def read_junit(report: XmlReport, runner: str = "") -> Reading:
    """The counts of a report, with ids as JUnit's own tools write them: class.method."""
    cases = (_plain(case) for case in report.cases)
    return tally(runner or producer(report), cases, ended=report.whole)


def _plain(case: XmlCase) -> Case:
    joiner = "" if not case.classname or case.name.startswith(case.classname) else f"{case.classname}."
    return Case(joiner + case.name, case.verdict, case.seconds, case.text, case.file, case.line)


def producer(report: XmlReport) -> str:
    """Name of the program that wrote it, as far as its titles show."""
    title = report.title.lower()
    return next((name for name in ("pytest", "vitest", "jest", "mocha", "nextest") if name in title), "junit")
