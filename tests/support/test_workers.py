"""The tests' own way of sharing the work: what failed is run once more, in whatever group it ran."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOOKS = "from tests.conftest import group_of, pytest_collection_finish, pytest_runtest_logreport\n"
MODULE = """
import pytest

@pytest.fixture(scope="module")
def shared():
    return 1

def test_in_its_modules_group(shared): assert not shared

@pytest.mark.xdist_group("other")
@pytest.mark.parametrize("text", ["a@b"])
def test_in_a_group_of_its_own(text): assert not text

def test_in_no_group(): assert False

def test_that_is_fine(shared): pass
"""
FAILING = ["test_in_a_group_of_its_own[a@b]", "test_in_its_modules_group", "test_in_no_group"]


def run(folder: Path, *words: str) -> list[str]:
    """The tests that failed, by name; a failure of another kind shows all that was said."""
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "-n", "1", "--dist", "loadgroup", *words]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    return sorted(re.findall(r"^FAILED test_some.py::(\S+)", done.stdout, re.MULTILINE))


def test_what_failed_is_run_once_more_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(HOOKS)
    (tmp_path / "test_some.py").write_text(MODULE)
    assert run(tmp_path) == FAILING
    assert run(tmp_path, "--last-failed", "--last-failed-no-failures", "none", "--maxfail=9") == FAILING
