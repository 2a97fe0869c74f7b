"""Which of JavaScript's runners a package.json asks for, and how each writes a report beside what it prints."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..shell import quote
from .suite import Found, Suite

_TESTS = re.compile(
    r"(?:^|/)(?:[^/]+[._-]test\.[cm]?js|test-[^/]+\.[cm]?js|test\.[cm]?js|(?:test|tests)/[^/]+\.[cm]?js)$"
)
# A script of one command can be given further options; one with these cannot.
_COMPOUND = re.compile(r"[;&|<>\n`]|\$\(")
_NODE, _TEST_OPTION = re.compile(r"\bnode\b"), re.compile(r" --test\b")
# The reporter came in September 2023; what earlier releases print can be read as well.
_FIRST_WITH_JUNIT = {18: (18, 20), 20: (20, 10)}


def configured(found: Found, report: str) -> Iterator[Suite]:
    """What package.json, or a settings file beside it, names."""
    package = _package(found)
    script = _script(package)
    for runner, options in (("vitest", _vitest(report)), ("jest", _jest(report))):
        if _names(runner, package, script, found):
            yield _installed(runner, options, package, script, found)
    if _runs_node_tests(script):
        yield _node(found, report, script, plain="pretest" not in _table(package, "scripts"))
    elif script and not re.search(r"\b(?:vitest|jest)\b", script):
        missing = "" if "npm" in found.tools else "its tests are run by npm, which is not there: install Node.js"
        yield Suite("npm", ("env", "CI=1", "npm", "test"), missing=missing)


def _runs_node_tests(script: str) -> bool:
    """Whether a line of it has node and, behind that, its option."""
    lines = ((line, _NODE.search(line)) for line in script.split("\n"))
    return any(node and _TEST_OPTION.search(line, node.end()) for line, node in lines)


def files(found: Found, report: str) -> Iterator[Suite]:
    """Files that `node --test` finds by their names."""
    if any(_TESTS.search(name) for name in found.names):
        yield _node(found, report, "node --test", plain=True)


def _package(found: Found) -> Mapping[str, Any]:
    try:
        package = json.loads(found.texts.get("package.json", "{}"))
    except (ValueError, RecursionError):
        return {}
    return package if isinstance(package, dict) else {}


def _table(package: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = package.get(name)
    return table if isinstance(table, dict) else {}


def _script(package: Mapping[str, Any]) -> str:
    """What `npm test` runs; the script that npm puts into every new package runs nothing."""
    script = str(_table(package, "scripts").get("test") or "")
    return "" if "no test specified" in script else script


def _names(runner: str, package: Mapping[str, Any], script: str, found: Found) -> bool:
    if re.search(rf"\b{runner}\b", script):
        return True
    depends = any(runner in _table(package, name) for name in ("dependencies", "devDependencies"))
    settings = runner in package or any(name.startswith(f"{runner}.config.") for name in found.names)
    return (depends or settings) and not script


def _installed(runner: str, options: tuple[str, ...], package: Mapping[str, Any], script: str, found: Found) -> Suite:
    """Through npm, whose script may have options of its own, or by the program itself."""
    last = re.split(r"\s+", script.strip())
    direct = any(word.rpartition("/")[2] == runner for word in last)
    if script and direct and "npm" in found.tools and not _COMPOUND.search(script) and "watch" not in script:
        return Suite(runner, ("env", "CI=1", "npm", "test", "--silent", "--", *options))
    program = found.tools.get(runner)
    if program:
        run = ("run",) if runner == "vitest" else ()
        return Suite(runner, ("env", "CI=1", program, *run, *options))
    return Suite(runner, missing=f"it is set up for {runner}, which is not installed there: run npm install first")


def _vitest(report: str) -> tuple[str, ...]:
    return "--reporter=default", "--reporter=junit", f"--outputFile.junit={report}"


def _jest(report: str) -> tuple[str, ...]:
    return "--json", f"--outputFile={report}", "--testLocationInResults"


def _node(found: Found, report: str, script: str, *, plain: bool) -> Suite:
    if not (version := found.tools.get("node")):
        return Suite("node", missing="its tests are run by node, which is not there: install Node.js")
    if not plain or _COMPOUND.search(script) or "--test-reporter" in script:
        return Suite("node", ("env", "CI=1", "npm", "test"))
    words = ["--test"]
    if _writes_junit(version):
        words += ["--test-reporter=spec", "--test-reporter-destination=stdout"]
        words += ["--test-reporter=junit", f"--test-reporter-destination={quote(report)}"]
    # Options that come after the names of files would be theirs; the script stays as its author wrote it.
    source = re.sub(r"--test(?![\w-])", lambda _: " ".join(words), script, count=1)
    return Suite("node", ("env", "CI=1", "sh", "-c", source))


def _writes_junit(version: str) -> bool:
    match = re.match(r"v(\d+)\.(\d+)", version)
    if not match:
        return False
    major, minor = int(match.group(1)), int(match.group(2))
    return (major, minor) >= _FIRST_WITH_JUNIT.get(major, (21, 0))
