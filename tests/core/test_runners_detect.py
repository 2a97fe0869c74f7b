"""Which runner a folder asks for."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from remote_sandbox_mcp.core.suites.detect import NoSuite, choose
from remote_sandbox_mcp.core.suites.suite import Loan, Suite, SuiteFolder

PYTHON = {"python": "python3", "pytest": "python3"}
NODE = {"node": "v20.20.2", "npm": "npm"}
JUNIT = "--junitxml=/tmp/r -o junit_family=xunit1 -rfE"
SPEC = "--test-reporter=spec --test-reporter-destination=stdout --test-reporter=junit"


def found(*names: str, tools: dict[str, str], **texts: str) -> SuiteFolder:
    return SuiteFolder("/home/me", frozenset(names) | {name for name in texts}, texts, tools)


def package(script: str = "", tools: dict[str, str] | None = None, *names: str, **more: Any) -> SuiteFolder:
    text = json.dumps({"scripts": {"test": script} if script else {}} | more)
    return found(*names, tools=NODE | (tools or {}), **{"package.json": text})


CHOICES = [
    pytest.param(found("pytest.ini", tools=PYTHON), "pytest", f"python3 -m pytest {JUNIT}", id="pytest.ini"),
    pytest.param(
        found(tools=PYTHON, **{"pyproject.toml": "[project]\n[tool.pytest.ini_options]\n"}),
        "pytest",
        f"python3 -m pytest {JUNIT}",
        id="pyproject",
    ),
    pytest.param(found(tools=PYTHON, **{"setup.cfg": "[tool:pytest]\n"}), "pytest", "", id="setup.cfg"),
    pytest.param(found(tools=PYTHON, **{"tox.ini": "[tox]\n[pytest]\n"}), "pytest", "", id="tox.ini"),
    pytest.param(found("conftest.py", tools=PYTHON), "pytest", "", id="conftest"),
    pytest.param(found("tests/test_a.py", tools=PYTHON), "pytest", "", id="names"),
    pytest.param(
        found("tests/test_a.py", tools=PYTHON | {"pytest": "./.venv/bin/python"}),
        "pytest",
        f"./.venv/bin/python -m pytest {JUNIT}",
        id="own environment",
    ),
    pytest.param(
        found("test_a.py", tools={"python": "python3"}),
        "unittest",
        "python3 -m unittest discover -v",
        id="unittest",
    ),
    pytest.param(
        found("tests/test_a.py", tools={"python": "python3"}),
        "unittest",
        "python3 -m unittest discover -v -s tests",
        id="unittest in a loose folder",
    ),
    pytest.param(
        found("tests/test_a.py", "tests/__init__.py", tools={"python": "python3"}),
        "unittest",
        "python3 -m unittest discover -v",
        id="unittest in a package",
    ),
    pytest.param(
        package("vitest --coverage"),
        "vitest",
        "env CI=1 npm test --silent -- --reporter=default --reporter=junit --outputFile.junit=/tmp/r",
        id="vitest's script",
    ),
    pytest.param(
        package("", {"vitest": "./node_modules/.bin/vitest"}, devDependencies={"vitest": "4"}),
        "vitest",
        "env CI=1 ./node_modules/.bin/vitest run --reporter=default --reporter=junit --outputFile.junit=/tmp/r",
        id="vitest without a script",
    ),
    pytest.param(
        package("NODE_ENV=test jest --config a.js"),
        "jest",
        "env CI=1 npm test --silent -- --json --outputFile=/tmp/r --testLocationInResults",
        id="jest's script",
    ),
    pytest.param(
        package("jest --watch", {"jest": "./node_modules/.bin/jest"}),
        "jest",
        "env CI=1 ./node_modules/.bin/jest --json --outputFile=/tmp/r --testLocationInResults",
        id="a script that would never end",
    ),
    pytest.param(
        package("node --test"),
        "node",
        f"env CI=1 sh -c 'node --test {SPEC} --test-reporter-destination='\"'\"'/tmp/r'\"'\"''",
        id="node",
    ),
    pytest.param(
        package("node --import tsx --test src/*.ts", {"node": "v18.12.0"}),
        "node",
        "env CI=1 sh -c 'node --import tsx --test src/*.ts'",
        id="an old node",
    ),
    pytest.param(
        package("node --test", scripts={"pretest": "x", "test": "node --test"}),
        "node",
        "env CI=1 npm test",
        id="with pretest",
    ),
    pytest.param(package("mocha"), "npm", "env CI=1 npm test", id="another script"),
    pytest.param(found("test/a.test.mjs", tools=NODE), "node", "", id="node's names"),
    pytest.param(found("Cargo.toml", tools={"cargo": "cargo"}), "cargo", "cargo test --no-fail-fast", id="cargo"),
    pytest.param(
        found("go.mod", tools={"go": "/usr/local/go/bin/go"}), "go", "/usr/local/go/bin/go test -json ./...", id="go"
    ),
    pytest.param(found("a_test.go", tools={"go": "go"}), "go", "go test -json ./...", id="a package of a Go module"),
    pytest.param(found("pom.xml", tools={"mvn": "mvn"}), "maven", "mvn -B test", id="maven"),
    pytest.param(
        found("build.gradle.kts", "gradlew", tools={}),
        "gradle",
        "./gradlew --console=plain cleanTest test",
        id="gradle",
    ),
    pytest.param(found(tools={"make": "make"}, Makefile="all:\n\ncheck : all\n"), "make", "make check", id="make"),
]


@pytest.mark.parametrize(("folder", "runner", "command"), CHOICES)
def test_the_runner_is_found(folder: SuiteFolder, runner: str, command: str) -> None:
    suite = choose(folder, "/tmp/r")
    assert suite.runner == runner
    assert not command or suite.shown == command


REFUSED = [
    pytest.param(found(tools=PYTHON), "nothing in it that tells of tests", id="empty"),
    pytest.param(
        found("setup.cfg", tools=PYTHON), "no test runner is known for what is there (setup.cfg)", id="nothing known"
    ),
    pytest.param(
        found("pytest.ini", tools={"python": "python3"}),
        "python3 there cannot import it: install it in a",
        id="no pytest",
    ),
    pytest.param(found("pytest.ini", tools={}), "there is no Python there", id="no Python"),
    pytest.param(found("Cargo.toml", tools={}), "there is no cargo there", id="no cargo"),
    pytest.param(found("go.mod", tools={}), "there is no go there", id="no go"),
    pytest.param(
        package("", devDependencies={"jest": "1"}),
        "set up for jest, which is not installed there: run npm install",
        id="no jest",
    ),
    pytest.param(
        package('echo "Error: no test specified" && exit 1'), "no test runner is known", id="npm's own script"
    ),
    pytest.param(found(tools=NODE, **{"package.json": "{"}), "no test runner is known", id="broken JSON"),
    pytest.param(found(tools=NODE, **{"package.json": '{"scripts": 3}'}), "no test runner is known", id="odd JSON"),
    pytest.param(
        found(tools={"make": "make"}, Makefile="test := 3\n"), "no test runner is known", id="make has no test"
    ),
]


@pytest.mark.parametrize(("folder", "why"), REFUSED)
def test_a_folder_without_tests_that_can_be_run_says_why(folder: SuiteFolder, why: str) -> None:
    with pytest.raises(NoSuite) as refusal:
        choose(folder, "/tmp/r")
    assert why in str(refusal.value)
    assert "give " in str(refusal.value)


def test_a_runner_that_can_be_run_is_preferred_and_the_others_are_named() -> None:
    suite = choose(found("pytest.ini", "Cargo.toml", "go.mod", tools={"cargo": "cargo", "go": "go"}), "/tmp/r")
    assert suite.runner == "cargo"
    assert suite.others == ("pytest", "go")
    assert suite.problem.startswith("pytest was not run: it is set up for pytest, but there is no Python there")


def test_make_and_npm_may_start_a_runner_that_we_could_not_start() -> None:
    folder = found("pytest.ini", tools={"make": "make", "python": "python3"}, Makefile="test:\n\tuv run pytest\n")
    suite = choose(folder, "/tmp/r")
    assert (suite.runner, suite.others, suite.problem) == ("make", ("pytest",), "")


def sorted_files(
    *names: str, pytest: tuple[str, ...] = (), unittest: tuple[str, ...] = (), **tools: str
) -> SuiteFolder:
    """A folder whose Python has no pytest."""
    folder = found(*names, *pytest, *unittest, tools={"python": "python3", "home": "/home/me", **tools})
    return replace(folder, for_pytest=frozenset(pytest), for_unittest=frozenset(unittest))


LEFT_OUT = [
    pytest.param(sorted_files(pytest=("test_b.py",), unittest=("test_a.py",)), "test_b.py", id="functions"),
    pytest.param(sorted_files(unittest=("test_a.py", "b_test.py")), "b_test.py", id="a name that unittest skips"),
    pytest.param(sorted_files(unittest=("test_a.py", "tests/test_b.py")), "tests/test_b.py", id="a loose folder"),
    pytest.param(
        sorted_files("tests/__init__.py", unittest=("tests/test_a.py", "tests/unit/test_b.py")),
        "tests/unit/test_b.py",
        id="a loose folder in a package",
    ),
    pytest.param(sorted_files(unittest=("tests/test_a.py", "pkg/test_b.py")), "pkg/test_b.py", id="beside the tests"),
]


@pytest.mark.parametrize(("folder", "name"), LEFT_OUT)
def test_files_that_unittest_would_pass_over_are_a_problem(folder: SuiteFolder, name: str) -> None:
    suite = choose(folder, "/tmp/r")
    assert (suite.runner, suite.others) == ("unittest", ("pytest",))
    assert suite.problem.startswith(f"pytest was not run: only pytest runs {name}, but python3 there cannot import it")
    assert ".venv/bin/pip install pytest" in suite.problem


def test_unittest_must_have_run_something_of_each_file_that_it_finds() -> None:
    loose = sorted_files("tests/unit/__init__.py", unittest=("tests/test_a.py", "tests/unit/test_b.py"))
    assert choose(loose, "/tmp/r").expects == ("test_a", "unit.test_b")
    assert choose(sorted_files(unittest=("test_a.py",)), "/tmp/r").expects == ("test_a",)
    assert choose(sorted_files("test_nothing.py"), "/tmp/r").expects == ()


def test_files_that_only_pytest_runs_are_refused_with_all_other_runners_that_were_found() -> None:
    folder = sorted_files("Cargo.toml", pytest=tuple(f"test_{name}.py" for name in "abcde"))
    with pytest.raises(NoSuite) as refusal:
        choose(folder, "/tmp/r")
    assert "only pytest runs test_a.py, test_b.py, test_c.py and 2 more, but python3" in str(refusal.value)
    assert "there is no cargo there" in str(refusal.value)


def test_a_pytest_that_can_be_lent_is_used_where_unittest_would_not_do() -> None:
    folder = sorted_files(pytest=("test_b.py",), unittest=("test_a.py",), python_version="3.11")
    suite = choose(replace(folder, loan=Loan("9.0", (3, 10))), "/tmp/r")
    assert suite.shown == f"python3 /home/me/.local/share/remote-sandbox/pytest.pyz {JUNIT}"
    assert suite.lent.startswith("pytest 9.0 was lent by the server")
    assert suite.problem == ""
    alone = sorted_files(unittest=("test_a.py",), python_version="3.11")
    assert choose(replace(alone, loan=Loan("9.0", (3, 10))), "/tmp/r").runner == "unittest"


@pytest.mark.parametrize("tools", [{"python_version": "3.9"}, {}, {"python_version": "3.11", "home": ""}])
def test_a_pytest_that_would_not_run_there_is_not_lent(tools: dict[str, str]) -> None:
    with pytest.raises(NoSuite, match=r"only pytest runs test_b\.py, but python3 there cannot import it"):
        choose(replace(sorted_files(pytest=("test_b.py",), **tools), loan=Loan("9.0", (3, 10))), "/tmp/r")


def test_settings_come_before_names() -> None:
    tools = PYTHON | {"cargo": "cargo"}
    assert choose(found("Cargo.toml", "tests/test_a.py", tools=tools), "/tmp/r").runner == "cargo"
    assert choose(found("Cargo.toml", "conftest.py", tools=tools), "/tmp/r").runner == "pytest"


def test_a_plan_survives_its_file() -> None:
    suite = Suite("pytest", ("a b", "c'd"), others=("go",), problem="p", lent="l", expects=("test_a",))
    assert Suite.loaded(suite.dumped()) == suite


def test_a_plan_of_an_earlier_release_can_be_read() -> None:
    old = {"runner": "pytest", "argv": ["pytest"], "command": "", "missing": "", "others": []}
    assert Suite.loaded(json.dumps(old)) == Suite("pytest", ("pytest",))


@pytest.mark.parametrize("text", ["", "{}", "[]", "3", '{"runner": 1}'])
def test_an_invalid_plan_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Suite.loaded(text)
