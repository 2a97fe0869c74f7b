"""pytest: its JUnit XML with ids that pytest takes again, and its terminal output where that is all there is."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice

from .junit import DEEPEST, XmlCase, XmlReport
from .reading import Case, Reading, Verdict, failures_of, tally
from .suite import MOST_FAILURES

NAME = "pytest"
_COUNT = r"\d{1,9} [a-z]{1,30}(?: passed| failed| skipped)?"
_SUMMARY = re.compile(
    rf"^(?:=+ )?({_COUNT}(?:, {_COUNT}){{0,20}}|no tests ran) in [\d.]+s(?: \([\d:]+\))?(?: =+)?$", re.MULTILINE
)
_SHORT = re.compile(r"^(FAILED|ERROR) (\S.*)", re.MULTILINE)
_SECTION = re.compile(r"^_{3,} (.+?) _{3,}$", re.MULTILINE)
_SECTION_END = re.compile(r"^(?:={3,}|-{10,} generated) ", re.MULTILINE)
_VERBOSE = re.compile(r" (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)(?: |$)")
_LETTERS = re.compile(r"^(?:\S+\.py )?([.FEsxX]+)(?: +\[ *\d+%\])?$", re.MULTILINE)
_STOPPED = re.compile(r"^!+ (.+?) !+$", re.MULTILINE)
_WORDS = {
    "passed": Verdict.PASSED, "xpassed": Verdict.PASSED, "failed": Verdict.FAILED, "error": Verdict.ERROR,
    "errors": Verdict.ERROR, "skipped": Verdict.SKIPPED, "xfailed": Verdict.SKIPPED,
    "PASSED": Verdict.PASSED, "XPASS": Verdict.PASSED, "FAILED": Verdict.FAILED, "ERROR": Verdict.ERROR,
    "SKIPPED": Verdict.SKIPPED, "XFAIL": Verdict.SKIPPED,
    ".": Verdict.PASSED, "X": Verdict.PASSED, "F": Verdict.FAILED, "E": Verdict.ERROR,
    "s": Verdict.SKIPPED, "x": Verdict.SKIPPED,
}  # fmt: skip


def read_report(report: XmlReport, text: str) -> Reading:
    """Counts and messages from the XML; ids from the terminal output, where they are relative to the current folder."""
    node_ids = {mangled(node_id): node_id for node_id, *_ in _short(text)}
    cases = (_case(case, node_ids) for case in report.cases)
    broken = sum(case.message == "collection failure" for case in report.cases)
    return tally(NAME, cases, ended=report.whole, problem=_unrun(text, broken))


def _unrun(text: str, broken: int) -> str:
    """Explain why some tests were not run: modules that cannot be imported, or a stop at the first failure."""
    if broken:
        return f"tests that could not be collected were not run: {broken} module{'s' * (broken > 1)}"
    stopped = _STOPPED.search(text)
    return f"pytest stopped before its end: {stopped.group(1)[:200]}" if stopped else ""


def mangled(node_id: str) -> tuple[str, str]:
    """A node id as pytest's JUnit XML has it: classname and name."""
    path, bracket, parameters = node_id.partition("[")
    names = path.split("::")
    names[0] = re.sub(r"\.py$", "", names[0].replace("/", "."))
    return ".".join(names[:-1]), names[-1] + bracket + parameters


def _case(case: XmlCase, node_ids: Mapping[tuple[str, str], str]) -> Case:
    bad = case.verdict in (Verdict.FAILED, Verdict.ERROR)
    node_id = (_as_printed(case, node_ids) if bad else "") or _as_located(case)
    # The line that pytest writes is where the test begins, counted from 0.
    return Case(node_id, case.verdict, case.seconds, case.text, case.file, case.line + 1 if case.file else 0)


def _as_printed(case: XmlCase, node_ids: Mapping[tuple[str, str], str]) -> str:
    """Id as printed: names in the XML begin at the root folder, printed ones at the current folder below it."""
    parts = case.classname.split(".", DEEPEST)
    tries = ((".".join(parts[start:]), case.name) for start in range(len(parts)))
    return next((node_ids[key] for key in tries if key in node_ids), "")


def _as_located(case: XmlCase) -> str:
    module = re.sub(r"\.py$", "", case.file).replace("/", ".")
    if not module or not f"{case.classname}.".startswith(f"{module}."):
        whole_module = case.file and f"{case.classname}.{case.name}".lstrip(".") == module
        return case.file if whole_module else f"{case.classname}::{case.name}".lstrip(":")
    classes = case.classname[len(module) + 1 :].split(".")
    return "::".join((case.file, *filter(None, classes), case.name))


def read_text(text: str) -> Reading | None:
    """Parse the terminal output, to its end or as far as it got; None where pytest did not print it."""
    summaries = _SUMMARY.findall(text)
    if not summaries and "test session starts" not in text:
        return None
    cases = list(islice(_printed(text), MOST_FAILURES))
    broken = len(re.findall(r"^_+ ERROR collecting ", text, re.MULTILINE))
    problem = _unrun(text, broken)
    if not summaries:
        return replace(_so_far(text, cases), problem=problem)
    counts = Counter[Verdict]()
    for summary in summaries:
        for number, word in re.findall(r"(\d{1,9}) (\w+)(?=,|$)", summary):
            if word in _WORDS:
                counts[_WORDS[word]] += int(number)
    return Reading(
        runner=NAME, passed=counts[Verdict.PASSED], failed=counts[Verdict.FAILED], skipped=counts[Verdict.SKIPPED],
        errors=counts[Verdict.ERROR], failures=failures_of(cases), problem=problem,
    )  # fmt: skip


def _so_far(text: str, cases: list[Case]) -> Reading:
    """Reading of an incomplete run: verdicts from its lines, or from the progress letters."""
    matches = ((line, _VERBOSE.search(line)) for line in text.splitlines() if "::" in line.partition(" ")[0])
    verbose = [Case(line[: word.start()], _WORDS[word.group(1)]) for line, word in matches if word]
    if verbose:
        return tally(NAME, verbose, ended=False)
    # The message of a crashing interpreter follows right after the progress letters.
    apart = text.replace("Fatal Python error:", "\nFatal Python error:")
    letters = "".join(_LETTERS.findall(apart))
    reading = tally(NAME, (Case("", _WORDS[letter]) for letter in letters), ended=False)
    return replace(reading, failures=failures_of(cases))


def _short(text: str) -> Iterator[tuple[str, str, str]]:
    """The short test summaries, of one run or several: id, word, message."""
    for part in text.split("short test summary info")[1:]:
        end = _SUMMARY.search(part)
        for word, rest in _SHORT.findall(part[: end.start() if end else len(part)]):
            node_id, _, message = rest.partition(" - ")
            yield node_id, word, message


def _printed(text: str) -> Iterator[Case]:
    sections = _sections(text)
    for node_id, word, message in _short(text):
        file, _, path = node_id.partition("::")
        name, bracket, parameters = path.partition("[")
        bodies = sections.get(name.replace("::", ".") + bracket + parameters) or sections.get(file) or [message]
        # Tests of the same name in several files: each has its own file in its trace.
        body = next((body for body in bodies if file in body), bodies[0])
        yield Case(node_id, _WORDS[word], message=body, file=file)


def _sections(text: str) -> dict[str, list[str]]:
    """The long explanations, by the names in their titles."""
    parts = _SECTION.split(text)
    sections: dict[str, list[str]] = {}
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        name = re.sub(r"^ERROR (?:at (?:setup|teardown) of|collecting) ", "", title)
        sections.setdefault(name, []).append(_SECTION_END.split(body)[0].strip())
    return sections
