"""Detection of a folder's test runner from file names and a few texts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..commands.shell import quote
from .suite import Suite, SuiteFolder

_TESTS = re.compile(
    r"(?:^|/)(?:[^/]+[._-]test\.[cm]?js|test-[^/]+\.[cm]?js|test\.[cm]?js|(?:test|tests)/[^/]+\.[cm]?js)$"
)
# A script with these characters is more than one command, so no options can be appended.
_COMPOUND = re.compile(r"[;&|<>\n`]|\$\(")
_NODE, _TEST_OPTION = re.compile(r"\bnode\b"), re.compile(r" --test\b")
# node has a JUnit reporter since these releases (September 2023); the output of older ones can be read as well.
_FIRST_WITH_JUNIT = {18: (18, 20), 20: (20, 10)}
_PYTEST_FILES = (
    *("pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml"),
    *("conftest.py", "tests/conftest.py", "test/conftest.py"),
)
_PYTEST_TABLES = (
    ("pyproject.toml", re.compile(r"^[ \t]*\[tool\.pytest\b", re.MULTILINE)),
    ("setup.cfg", re.compile(r"^\[tool:pytest\]", re.MULTILINE)),
    ("tox.ini", re.compile(r"^\[pytest\]", re.MULTILINE)),
)
_TEST_FILE = re.compile(r"(?:^|/)(?:test[^/]*|[^/]*_test)\.py$")
# In the sandbox's home, so that a single test can be run again by the same pytest.
_LENT = ".local/share/remote-sandbox/pytest.pyz"
_MOST_NAMED = 3
_TARGET = re.compile(r"^(test|check)\s*:(?!=)", re.MULTILINE)
_MAKEFILES = ("GNUmakefile", "makefile", "Makefile")
# These may start any runner, even one that we could not start ourselves.
_STARTERS = ("make", "npm")


def _configured_javascript(found: SuiteFolder, report: str) -> Iterator[Suite]:
    """The runner named by package.json or by a settings file beside it."""
    package = _package(found)
    script = _script(package)
    runners = {
        "vitest": ("--reporter=default", "--reporter=junit", f"--outputFile.junit={report}"),
        "jest": ("--json", f"--outputFile={report}", "--testLocationInResults"),
    }
    for runner, options in runners.items():
        if _names(runner, package, script, found):
            yield _installed(runner, options, package, script, found)
    if _runs_node_tests(script):
        yield _node(found, report, script, plain="pretest" not in _table(package, "scripts"))
    elif script and not re.search(r"\b(?:vitest|jest)\b", script):
        missing = "" if "npm" in found.tools else "its tests are run by npm, which is not there: install Node.js"
        yield Suite("npm", ("env", "CI=1", "npm", "test"), missing=missing)


def _runs_node_tests(script: str) -> bool:
    """Whether one line of the script has node followed by --test."""
    lines = ((line, _NODE.search(line)) for line in script.split("\n"))
    return any(node and _TEST_OPTION.search(line, node.end()) for line, node in lines)


def _javascript_files(found: SuiteFolder, report: str) -> Iterator[Suite]:
    """Files that `node --test` finds by their names."""
    if any(_TESTS.search(name) for name in found.names):
        yield _node(found, report, "node --test", plain=True)


def _package(found: SuiteFolder) -> Mapping[str, Any]:
    try:
        package = json.loads(found.texts.get("package.json", "{}"))
    except (ValueError, RecursionError):
        return {}
    return package if isinstance(package, dict) else {}


def _table(package: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = package.get(name)
    return table if isinstance(table, dict) else {}


def _script(package: Mapping[str, Any]) -> str:
    """Return the script of `npm test`; empty for the placeholder that npm puts into every new package."""
    script = str(_table(package, "scripts").get("test") or "")
    return "" if "no test specified" in script else script


def _names(runner: str, package: Mapping[str, Any], script: str, found: SuiteFolder) -> bool:
    if re.search(rf"\b{runner}\b", script):
        return True
    depends = any(runner in _table(package, name) for name in ("dependencies", "devDependencies"))
    settings = runner in package or any(name.startswith(f"{runner}.config.") for name in found.names)
    return (depends or settings) and not script


def _installed(
    runner: str, options: tuple[str, ...], package: Mapping[str, Any], script: str, found: SuiteFolder
) -> Suite:
    """Started through npm, whose script may have its own options, or by the program itself."""
    last = re.split(r"\s+", script.strip())
    direct = any(word.rpartition("/")[2] == runner for word in last)
    if script and direct and "npm" in found.tools and not _COMPOUND.search(script) and "watch" not in script:
        return Suite(runner, ("env", "CI=1", "npm", "test", "--silent", "--", *options))
    if program := found.tools.get(runner):
        run = ("run",) if runner == "vitest" else ()
        return Suite(runner, ("env", "CI=1", program, *run, *options))
    return Suite(runner, missing=f"it is set up for {runner}, which is not installed there: run npm install first")


def _node(found: SuiteFolder, report: str, script: str, *, plain: bool) -> Suite:
    if not (version := found.tools.get("node")):
        return Suite("node", missing="its tests are run by node, which is not there: install Node.js")
    if not plain or _COMPOUND.search(script) or "--test-reporter" in script:
        return Suite("node", ("env", "CI=1", "npm", "test"))
    words = ["--test"]
    if _writes_junit(version):
        words += ["--test-reporter=spec", "--test-reporter-destination=stdout"]
        words += ["--test-reporter=junit", f"--test-reporter-destination={quote(report)}"]
    # Options after the file names would be passed to the tests; so they are put right after --test.
    source = re.sub(r"--test(?![\w-])", lambda _: " ".join(words), script, count=1)
    return Suite("node", ("env", "CI=1", "sh", "-c", source))


def _writes_junit(version: str) -> bool:
    if not (match := re.match(r"v(\d+)\.(\d+)", version)):
        return False
    major, minor = int(match.group(1)), int(match.group(2))
    return (major, minor) >= _FIRST_WITH_JUNIT.get(major, (21, 0))


class NoSuite(ValueError):
    """Folder in which no suite can be run; the text says why and what to do."""


def choose(found: SuiteFolder, report: str) -> Suite:
    """The suite that fits best and can be run, with the names of others that fit. Raises NoSuite.

    If tests that fit better cannot be run, `problem` says so: this suite's results must not pass for theirs.
    """
    suites: dict[str, Suite] = {}
    for suite in (suite for way in _WAYS for suite in way(found, report)):
        suites.setdefault(suite.runner, suite)
    if chosen := next((suite for suite in suites.values() if not suite.missing), None):
        before = list(suites.values())[: list(suites).index(chosen.runner)]
        unrun = [] if chosen.runner in _STARTERS else [f"{it.runner} was not run: {it.missing}" for it in before]
        others = tuple(name for name in suites if name != chosen.runner)
        return replace(chosen, others=others, problem="; ".join(unrun))
    if suites:
        missing = "; ".join(suite.missing for suite in suites.values())
        raise NoSuite(f"{missing}, or give the command that runs the tests")
    if not found.names:
        raise NoSuite("there is nothing in it that tells of tests; give another path, or the command that runs them")
    seen = ", ".join(sorted(found.names)[:5])
    raise NoSuite(f"no test runner is known for what is there ({seen}); give the command that runs the tests")


def _configured_pytest(found: SuiteFolder, report: str) -> Iterator[Suite]:
    if found.has(*_PYTEST_FILES) or any(table.search(found.texts.get(name, "")) for name, table in _PYTEST_TABLES):
        yield _pytest(found, report, "it is set up for pytest")


def _python_files(found: SuiteFolder, report: str) -> Iterator[Suite]:
    if not (files := {name for name in found.names if _TEST_FILE.search(name)}):
        return
    if "pytest" in found.tools:
        yield _pytest(found, report)
        return
    if "python" not in found.tools:
        yield Suite("unittest", missing="it has tests in Python, but there is no Python there: install it")
        return
    # Return where discovery starts: it skips folders without __init__.py, but can be started inside one.
    loose = any(name.startswith("tests/") for name in found.names) and not found.has("tests/__init__.py")
    start = "tests/" if loose and not any(re.match(r"test[^/]*\.py$", name) for name in found.names) else ""
    hidden = (name for name in found.for_unittest if not _is_seen(name, start, found))
    if needing := sorted(found.for_pytest.union(hidden)):
        yield _pytest(found, report, f"only pytest runs {_some(needing)}")
    if files.difference(needing):
        yield _unittest(found, start, needing)


def _pytest(found: SuiteFolder, report: str, why: str = "") -> Suite:
    # This older variant of the XML includes the file and line of each test.
    options = (f"--junitxml={report}", "-o", "junit_family=xunit1", "-rfE")
    if python := found.tools.get("pytest"):
        return Suite("pytest", (python, "-m", "pytest", *options))
    python, home = found.tools.get("python", ""), found.tools.get("home", "")
    if not python:
        return Suite("pytest", missing=f"{why}, but there is no Python there: install it")
    remedy = found.remedy
    if found.loan and home.startswith("/"):
        if (version := _version(found)) >= found.loan.oldest:
            file = f"{home.rstrip('/')}/{_LENT}"
            lent = f"pytest {found.loan.version} was lent by the server, because {python} there has none; it is {file}"
            return Suite("pytest", (python, file, *options), lent=lent)
        needed, there = (".".join(map(str, numbers)) for numbers in (found.loan.oldest, version))
        remedy += f" (pytest {found.loan.version}, which could be lent, needs Python {needed}; there it is {there})"
    return Suite("pytest", missing=f"{why}, but {python} there cannot import it: {remedy}")


def _version(found: SuiteFolder) -> tuple[int, int]:
    """Version of the Python there; the oldest possible where it does not say."""
    match = re.fullmatch(r"(\d+)\.(\d+)", found.tools.get("python_version", ""))
    return (int(match.group(1)), int(match.group(2))) if match else (0, 0)


def _unittest(found: SuiteFolder, start: str, needing: list[str]) -> Suite:
    below = ("-s", start.rstrip("/")) if start else ()
    expected = (name for name in sorted(found.for_unittest.difference(needing)))
    modules = (name.removeprefix(start).removesuffix(".py").replace("/", ".") for name in expected)
    argv = (found.tools["python"], "-m", "unittest", "discover", "-v", *below)
    return Suite("unittest", argv, expects=tuple(modules))


def _is_seen(name: str, start: str, found: SuiteFolder) -> bool:
    """Whether `unittest discover` finds a file: by its name, in packages below where it starts."""
    folders, _, base = name.removeprefix(start).rpartition("/")
    steps = folders.split("/") if folders else []
    packages = (f"{start}{'/'.join(steps[: end + 1])}/__init__.py" for end in range(len(steps)))
    return name.startswith(start) and base.startswith("test") and all(package in found.names for package in packages)


def _some(names: list[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _cargo(found: SuiteFolder, report: str) -> Iterator[Suite]:
    if found.has("Cargo.toml"):
        cargo = found.tools.get("cargo")
        missing = "" if cargo else "it is a Rust package, but there is no cargo there: install Rust"
        yield Suite("cargo", (cargo or "cargo", "test", "--no-fail-fast"), missing=missing)


def _go(found: SuiteFolder, report: str) -> Iterator[Suite]:
    if found.has("go.mod", "go.work") or any(name.endswith("_test.go") for name in found.names):
        go = found.tools.get("go")
        missing = "" if go else "it is a Go module, but there is no go there: install Go"
        yield Suite("go", (go or "go", "test", "-json", "./..."), missing=missing)


def _java(found: SuiteFolder, report: str) -> Iterator[Suite]:
    if found.has("pom.xml"):
        maven = "./mvnw" if found.has("mvnw") else found.tools.get("mvn", "")
        yield Suite(
            "maven", (maven, "-B", "test"), missing="" if maven else "it needs Maven, which is not there: install it"
        )
    if found.has("build.gradle", "build.gradle.kts"):
        gradle = "./gradlew" if found.has("gradlew") else found.tools.get("gradle", "")
        missing = "" if gradle else "it needs Gradle, which is not there: install it"
        # Without cleanTest, gradle skips a task that is up to date and writes no new results.
        yield Suite("gradle", (gradle, "--console=plain", "cleanTest", "test"), missing=missing)


def _make(found: SuiteFolder, report: str) -> Iterator[Suite]:
    for name in _MAKEFILES:
        if target := _TARGET.search(found.texts.get(name, "")):
            missing = "" if "make" in found.tools else "it needs make, which is not there: install it"
            yield Suite("make", ("make", target.group(1)), missing=missing)
            return


# The surest signs come first; a file name alone is weak, and make may do anything.
_WAYS: tuple[Callable[[SuiteFolder, str], Iterator[Suite]], ...] = (
    _configured_pytest,
    _configured_javascript,
    _cargo,
    _go,
    _java,
    _python_files,
    _javascript_files,
    _make,
)
