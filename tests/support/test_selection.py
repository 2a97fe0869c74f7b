from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.selection import COSTLY_FILES, MOST_SECOND_TRIES, SECOND_TRIES, TESTS

ROOT = Path(__file__).parents[2]
HOOKS = """
from tests.support import selection

def pytest_addoption(parser): selection.add_options(parser)

def pytest_configure(config): config.pluginmanager.register(selection.Record(config))
"""
MODULE = """
import pathlib, pytest

@pytest.mark.parametrize("number", range({count}))
def test_fails_once(number):
    seen = pathlib.Path(f"seen-{{number}}")
    is_second = seen.exists()
    seen.touch()
    assert is_second
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir=.", *words]
    return subprocess.run(
        command, cwd=folder, env={**env, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("count", "code"), [(MOST_SECOND_TRIES, 0), (MOST_SECOND_TRIES + 1, 1)])
def test_second_tries_are_named_and_too_many_fail_the_run(tmp_path: Path, count: int, code: int) -> None:
    (tmp_path / "conftest.py").write_text(HOOKS)
    (tmp_path / "test_some.py").write_text(MODULE.format(count=count))
    assert run(tmp_path).returncode == 1
    again = run(tmp_path, "--last-failed", "--last-failed-no-failures", "none", "--second-try")
    names = [f"test_some.py::test_fails_once[{number}]" for number in range(count)]
    assert again.returncode == code, again.stdout
    assert f"passed only on the second try: {count}" in again.stdout
    assert (tmp_path / SECOND_TRIES).read_text().split() == names


def test_a_second_try_that_is_skipped_has_not_passed(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(HOOKS)
    skips = "    is_second and pytest.skip('not here')\n    assert is_second"
    (tmp_path / "test_some.py").write_text(MODULE.format(count=1).replace("    assert is_second", skips))
    assert run(tmp_path).returncode == 1
    again = run(tmp_path, "--last-failed", "--last-failed-no-failures", "none", "--second-try")
    assert "1 skipped" in again.stdout
    assert "passed only on the second try" not in again.stdout
    assert (tmp_path / SECOND_TRIES).read_text() == ""


def test_a_run_does_without_a_cache(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(HOOKS)
    (tmp_path / "test_some.py").write_text("def test_passes(): pass\n")
    done = run(tmp_path, "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr


def test_files_that_are_too_costly_for_quick_are_there() -> None:
    assert [name for name in COSTLY_FILES if not (TESTS / name).is_file()] == []
