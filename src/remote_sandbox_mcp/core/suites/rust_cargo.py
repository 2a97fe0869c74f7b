"""cargo test: what libtest prints, one binary after another."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .reading import Case, Reading, Verdict, failures_of, joined, tally

NAME = "cargo"
_BINARY = re.compile(r"^running (\d{1,9}) tests?$", re.MULTILINE)
_RESULT = re.compile(r"^test result: \w+\. (\d{1,9}) passed; (\d{1,9}) failed; (\d{1,9}) ignored;", re.MULTILINE)
_LINE = re.compile(r"^test (.+?)(?: - should panic)? \.\.\. (ok|FAILED|ignored)", re.MULTILINE)
_OUTPUT = re.compile(r"^---- (.+?) (?:stdout|stderr) ----\n", re.MULTILINE)
# No part may match across a backquote: otherwise each of many false starts would be tried to the end of the text.
_DIED = re.compile(r"process didn't exit successfully: `([^`\n]+)`[^\n(`]*(\([^)\n`]+\))")
_UNBUILT = re.compile(r"^error(?:\[\w+\])?: could not compile `([^`\n]+)`", re.MULTILINE)
_STOPPED = re.compile(r"^error: test failed, to rerun pass ", re.MULTILINE)
_ALL_TRIED = re.compile(r"^error: \d+ targets? failed:$", re.MULTILINE)
_WORDS = {"ok": Verdict.PASSED, "FAILED": Verdict.FAILED, "ignored": Verdict.SKIPPED}


def read_text(text: str) -> Reading | None:
    """All binaries together; None where neither a test nor a failed build of cargo's is in it."""
    parts = _BINARY.split(text)
    # How many tests each binary announced, and what it printed.
    binaries = zip(map(int, parts[1::2]), parts[2::2], strict=True)
    signs = (_RESULT, _LINE, _DIED)
    readings = [_read(tests, said) for tests, said in binaries if any(sign.search(said) for sign in signs)]
    if unbuilt := _UNBUILT.search(text):
        name = unbuilt.group(1)
        readings.append(Reading(runner=NAME, ended=False, problem=f"{name} could not be compiled"))
    if _STOPPED.search(text) and not _ALL_TRIED.search(text):
        readings.append(
            Reading(runner=NAME, problem="without --no-fail-fast cargo stops at the first target that fails")
        )
    return joined(readings) if readings else None


def _read(tests: int, text: str) -> Reading:
    cases = list(_cases(text))
    if result := _RESULT.search(text):
        passed, failed, ignored = map(int, result.groups())
        return Reading(runner=NAME, passed=passed, failed=failed, skipped=ignored, failures=failures_of(cases))
    died = _DIED.search(text)
    how = (
        f"{died.group(1).rpartition('/')[2]} ended without a result {died.group(2)}"
        if died
        else "a test binary gave no result"
    )
    return tally(NAME, cases, ended=False, problem=f"{how}; {len(cases)} of its {tests} tests are known")


def _cases(text: str) -> Iterator[Case]:
    parts = _OUTPUT.split(text)
    ends = (re.split(r"^failures:$", body, maxsplit=1, flags=re.MULTILINE)[0] for body in parts[2::2])
    outputs = {name: _without_backtrace(body) for name, body in zip(parts[1::2], ends, strict=True)}
    for name, word in _LINE.findall(text):
        said = outputs.get(name, "") if word == "FAILED" else ""
        yield Case(name, _WORDS[word], message=said)


def _without_backtrace(text: str) -> str:
    return re.split(r"^stack backtrace:$", text, maxsplit=1, flags=re.MULTILINE)[0].strip()
