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
_TARGET = re.compile(r"^(test|check)\s*:(?!=)", re.MULTILINE)
_MAKEFILES = ("GNUmakefile", "makefile", "Makefile")


class NoSuite(ValueError):
    """Nothing in the folder can be run; the text says why and what to do."""


def choose(found: Found, report: str) -> Suite:
    """The suite that fits best and can be run, with the names of others that fit. Raises NoSuite."""
    suites = [suite for way in _WAYS for suite in way(found, report)]
    able = [suite for suite in suites if not suite.missing]
    if able:
        names = dict.fromkeys(suite.runner for suite in suites)
        return replace(able[0], others=tuple(name for name in names if name != able[0].runner))
    if suites:
        raise NoSuite(f"{suites[0].missing}, or give the command that runs the tests")
    if not found.names:
        raise NoSuite("there is nothing in it that tells of tests; give another path, or the command that runs them")
    seen = ", ".join(sorted(found.names)[:5])
    raise NoSuite(f"no test runner is known for what is there ({seen}); give the command that runs the tests")


def _configured_pytest(found: Found, report: str) -> Iterator[Suite]:
    if found.has(*_PYTEST_FILES) or any(table.search(found.texts.get(name, "")) for name, table in _PYTEST_TABLES):
        yield _pytest(found, report)


def _python_files(found: Found, report: str) -> Iterator[Suite]:
    if not any(re.search(r"(?:^|/)(?:test[^/]*|[^/]*_test)\.py$", name) for name in found.names):
        return
    if "pytest" in found.tools:
        yield _pytest(found, report)
    yield from _unittest(found)


def _pytest(found: Found, report: str) -> Suite:
    if python := found.tools.get("pytest"):
        # The older family of names is the one that says in which file and line a test is.
        options = (f"--junitxml={report}", "-o", "junit_family=xunit1", "-rfE")
        return Suite("pytest", (python, "-m", "pytest", *options))
    python = found.tools.get("python", "")
    why = f"{python} there cannot import it: install it (pip install pytest)" if python else "there is no Python there"
    return Suite("pytest", missing=f"it is set up for pytest, but {why}")


def _unittest(found: Found) -> Iterator[Suite]:
    python = found.tools.get("python")
    if not python:
        yield Suite("unittest", missing="it has tests in Python, but there is no Python there: install it")
        return
    loose = any(name.startswith("tests/") for name in found.names) and not found.has("tests/__init__.py")
    # Without an __init__.py a folder is not looked into, but it can be started from.
    start = ("-s", "tests") if loose and not any(re.match(r"test[^/]*\.py$", name) for name in found.names) else ()
    yield Suite("unittest", (python, "-m", "unittest", "discover", "-v", *start))


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
