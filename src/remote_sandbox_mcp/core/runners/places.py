"""Where in the sources a failure is: the line that its message or trace names."""

from __future__ import annotations

import re

# Files of ours: neither the runner's own, nor the language's, nor a package's.
_FOREIGN = re.compile(
    r"(?:^|/)(?:node_modules|site-packages|dist-packages|rustc|\.cargo|lib/python[\d.]+)/"
    r"|^<|^node:|/unittest/|^/rustc/|/src/(?:testing|runtime)/"
)
_JVM = r"(?:java|jdk|kotlin|scala|org\.(?:junit|opentest4j|testng|hamcrest|assertj|gradle|apache\.maven))\."
# Of bounded length: what is searched was written by whoever wrote the tests, and may be made to take long.
_NAME = r"[^\s:()\"']{1,300}"
_LINE = r"(\d{1,7})"
# Each with which of several places is meant: a Python trace ends with the deepest, others begin with it.
_PATTERNS = (
    (re.compile(rf"^({_NAME}\.py):{_LINE}: ", re.MULTILINE), -1),
    (re.compile(rf'^[ \t]*File "([^"\n]+)", line {_LINE}', re.MULTILINE), -1),
    (re.compile(rf"panicked at (?:'[^\n]*', )?({_NAME}\.rs):{_LINE}"), 0),
    (re.compile(rf"❯ (?:\S+ )?({_NAME}\.\w+):{_LINE}:\d"), 0),
    (re.compile(rf"(?:\(|at )(?:file://)?({_NAME}\.[cm]?[jt]sx?):{_LINE}:\d"), 0),
    (re.compile(rf"^[ \t]*at (?!{_JVM})[\w.$/]+\((\w+\.(?:java|kt|groovy|scala)):{_LINE}\)", re.MULTILINE), 0),
    (re.compile(rf"({_NAME}\.(?:go|rs)):{_LINE}"), 0),
    # Where the test itself is, in node's TAP.
    (re.compile(rf"^[ \t]*location: '(.+):{_LINE}:\d+'$", re.MULTILINE), 0),
)


def place_in(text: str, file: str = "") -> tuple[str, int]:
    """The file and line that a failure's text points at, in `file` where that is known; ("", 0) for none."""
    for pattern, which in _PATTERNS:
        found = [(name, int(line)) for name, line in pattern.findall(text) if not _FOREIGN.search(name)]
        if at := _in_file(found, file) or found:
            return at[which]
    return "", 0


def _in_file(found: list[tuple[str, int]], file: str) -> list[tuple[str, int]]:
    return [(file, line) for name, line in found if file and (name.endswith(file) or file.endswith(name))]
