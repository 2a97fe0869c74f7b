"""The pytest that is lent: it runs alone, and is the same each time."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from remote_sandbox_mcp.services.suites import loan


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="what it needs besides on older Pythons may not be installed here"
)
def test_it_runs_on_a_python_that_has_nothing_installed(tmp_path: Path) -> None:
    archive, project = tmp_path / "pytest.pyz", tmp_path / "project"
    archive.write_bytes(loan.packed())
    project.mkdir()
    (project / "test_x.py").write_text(
        "def test_a():\n    assert [1, 2] == [1, 3]\n\ndef test_b(tmp_path):\n    pass\n"
    )
    words = [sys.executable, "-IS", "-W", "error", str(archive), "-vv", "--color=yes", "-p", "no:cacheprovider"]
    seen = subprocess.run(words, cwd=project, capture_output=True, text=True, timeout=50, check=False)
    assert "1 failed" in seen.stdout, seen.stdout + seen.stderr
    assert "1 passed" in seen.stdout
    assert seen.returncode == 1


def test_it_is_the_same_each_time() -> None:
    first = loan.packed()
    loan.packed.cache_clear()
    assert loan.packed() == first


def test_it_says_what_it_is() -> None:
    found = loan.find_loan()
    assert found
    assert found.version == distribution("pytest").version
    assert found.oldest >= (3, 9)


def test_there_is_none_where_a_part_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_pluggy(name: str) -> object:
        if name == "pluggy":
            raise PackageNotFoundError(name)
        return distribution(name)

    monkeypatch.setattr(loan, "distribution", without_pluggy)
    loan.find_loan.cache_clear()
    try:
        assert loan.find_loan() is None
    finally:
        loan.find_loan.cache_clear()
