"""Which runner a folder asks for, decided from the names and a few texts in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from . import detect_javascript
from .suite import Found, Suite

_PYTEST_FILES = (
    "pytest.ini",
    ".pytest.ini",
    "pytest.toml",
    ".pytest.toml",
    "conftest.py",
    "tests/conftest.py",
    "test/conftest.py",
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
# What these start is up to them: it may well be the runner that we could not start ourselves.
_STARTERS = ("make", "npm")


class NoSuite(ValueError):
    """Nothing in the folder can be run; the text says why and what to do."""


def choose(found: Found, report: str) -> Suite:
    """The suite that fits best and can be run, with the names of others that fit. Raises NoSuite.

    Tests with a better claim that cannot be run are its `problem`: its own results must not pass for theirs.
    """
    suites: dict[str, Suite] = {}
    for suite in (suite for way in _WAYS for suite in way(found, report)):
        suites.setdefault(suite.runner, suite)
    chosen = next((suite for suite in suites.values() if not suite.missing), None)
    if chosen:
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


def _configured_pytest(found: Found, report: str) -> Iterator[Suite]:
    if found.has(*_PYTEST_FILES) or any(table.search(found.texts.get(name, "")) for name, table in _PYTEST_TABLES):
        yield _pytest(found, report, "it is set up for pytest")


def _python_files(found: Found, report: str) -> Iterator[Suite]:
    files = {name for name in found.names if _TEST_FILE.search(name)}
    if not files:
        return
    if "pytest" in found.tools:
        yield _pytest(found, report)
        return
    if "python" not in found.tools:
        yield Suite("unittest", missing="it has tests in Python, but there is no Python there: install it")
        return
    start = _unittest_start(found)
    hidden = (name for name in found.for_unittest if not _is_seen(name, start, found))
    if needing := sorted(found.for_pytest.union(hidden)):
        yield _pytest(found, report, f"only pytest runs {_some(needing)}")
    if files.difference(needing):
        yield _unittest(found, start, needing)


def _pytest(found: Found, report: str, why: str = "") -> Suite:
    # The older family of names is the one that says in which file and line a test is.
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


def _version(found: Found) -> tuple[int, int]:
    """Of the Python there; older than all others where it does not say."""
    match = re.fullmatch(r"(\d+)\.(\d+)", found.tools.get("python_version", ""))
    return (int(match.group(1)), int(match.group(2))) if match else (0, 0)


def _unittest(found: Found, start: str, needing: list[str]) -> Suite:
    below = ("-s", start.rstrip("/")) if start else ()
    expected = (name for name in sorted(found.for_unittest.difference(needing)))
    modules = (name.removeprefix(start).removesuffix(".py").replace("/", ".") for name in expected)
    argv = (found.tools["python"], "-m", "unittest", "discover", "-v", *below)
    return Suite("unittest", argv, expects=tuple(modules))


def _unittest_start(found: Found) -> str:
    """Without an __init__.py a folder is not looked into, but it can be started from."""
    loose = any(name.startswith("tests/") for name in found.names) and not found.has("tests/__init__.py")
    return "tests/" if loose and not any(re.match(r"test[^/]*\.py$", name) for name in found.names) else ""


def _is_seen(name: str, start: str, found: Found) -> bool:
    """Whether `unittest discover` finds a file: by its name, in packages below where it starts."""
    folders, _, base = name.removeprefix(start).rpartition("/")
    steps = folders.split("/") if folders else []
    packages = (f"{start}{'/'.join(steps[: end + 1])}/__init__.py" for end in range(len(steps)))
    return name.startswith(start) and base.startswith("test") and all(package in found.names for package in packages)


def _some(names: list[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _cargo(found: Found, report: str) -> Iterator[Suite]:
    if found.has("Cargo.toml"):
        cargo = found.tools.get("cargo")
        missing = "" if cargo else "it is a Rust package, but there is no cargo there: install Rust"
        yield Suite("cargo", (cargo or "cargo", "test", "--no-fail-fast"), missing=missing)


def _go(found: Found, report: str) -> Iterator[Suite]:
    if found.has("go.mod", "go.work") or any(name.endswith("_test.go") for name in found.names):
        go = found.tools.get("go")
        missing = "" if go else "it is a Go module, but there is no go there: install Go"
        yield Suite("go", (go or "go", "test", "-json", "./..."), missing=missing)


def _java(found: Found, report: str) -> Iterator[Suite]:
    if found.has("pom.xml"):
        maven = "./mvnw" if found.has("mvnw") else found.tools.get("mvn", "")
        yield Suite(
            "maven", (maven, "-B", "test"), missing="" if maven else "it needs Maven, which is not there: install it"
        )
    if found.has("build.gradle", "build.gradle.kts"):
        gradle = "./gradlew" if found.has("gradlew") else found.tools.get("gradle", "")
        missing = "" if gradle else "it needs Gradle, which is not there: install it"
        # A task that is up to date writes no results anew.
        yield Suite("gradle", (gradle, "--console=plain", "cleanTest", "test"), missing=missing)


def _make(found: Found, report: str) -> Iterator[Suite]:
    for name in _MAKEFILES:
        if target := _TARGET.search(found.texts.get(name, "")):
            missing = "" if "make" in found.tools else "it needs make, which is not there: install it"
            yield Suite("make", ("make", target.group(1)), missing=missing)
            return


# The surer a sign, the earlier it is looked for; a name alone is a weak one, and make may do anything.
_WAYS: tuple[Callable[[Found, str], Iterator[Suite]], ...] = (
    _configured_pytest,
    detect_javascript.configured,
    _cargo,
    _go,
    _java,
    _python_files,
    detect_javascript.files,
    _make,
)
