"""A release in a repository of its own: version, changelog, commit and tag; or nothing at all, where a check fails."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from remote_sandbox_mcp import __version__
from tests.support.doc_pages import ROOT

FILES = (
    *("src/remote_sandbox_mcp/__init__.py", "plugin/.claude-plugin/plugin.json", "plugin/.codex-plugin/plugin.json"),
    *("packaging/mcpb.json", "server.json", "scripts/release.py"),
)
CHANGELOG = "# Changelog\n\n## Unreleased\n\n- Something new.\n"
NEXT = "99.1.0"


def git(repository: Path, *words: str) -> str:
    who = ("-c", "user.name=a test", "-c", "user.email=test@example.org")
    return subprocess.run(["git", *who, *words], cwd=repository, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    (tmp_path / "Makefile").write_text("check docs packages:\n\t@test ! -e broken-$@\n")
    for variable in ("GIT_AUTHOR", "GIT_COMMITTER"):
        monkeypatch.setenv(f"{variable}_NAME", "a test")
        monkeypatch.setenv(f"{variable}_EMAIL", "test@example.org")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message", "All of it")
    return tmp_path


def release(repository: Path, version: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "scripts/release.py", version]
    return subprocess.run(words, cwd=repository, capture_output=True, text=True, check=False)


def test_a_release_is_one_commit_with_its_version_everywhere_and_a_tag(repository: Path) -> None:
    done = release(repository, NEXT)
    assert done.returncode == 0, done.stderr
    assert git(repository, "describe", "--exact-match").strip() == f"v{NEXT}"
    assert git(repository, "status", "--porcelain") == ""
    for name in FILES[:-1]:
        assert NEXT in (repository / name).read_text()
        assert __version__ not in (repository / name).read_text()
    changes = (repository / "CHANGELOG.md").read_text()
    assert f"## Unreleased\n\n## {NEXT} - 20" in changes
    assert changes.endswith("\n\n- Something new.\n")


@pytest.mark.parametrize("check", ["check", "docs", "packages"])
def test_where_a_check_fails_nothing_has_changed(repository: Path, check: str) -> None:
    (repository / ".git/info/exclude").write_text("broken-*\n")
    (repository / f"broken-{check}").touch()
    before = git(repository, "rev-parse", "HEAD")
    assert release(repository, NEXT).returncode != 0
    assert git(repository, "rev-parse", "HEAD") == before
    assert git(repository, "status", "--porcelain") + git(repository, "tag") == ""


@pytest.mark.parametrize(
    ("version", "why"),
    [("", "say which version"), ("0.9.0", "is not newer than"), (__version__, "is not newer"), ("next", "say which")],
)
def test_what_is_no_next_version_is_refused(repository: Path, version: str, why: str) -> None:
    done = release(repository, version)
    assert (done.returncode, why in done.stderr) == (2, True)


def test_a_tree_with_changes_or_without_news_is_refused(repository: Path) -> None:
    (repository / "CHANGELOG.md").write_text(CHANGELOG.replace("- Something new.\n", ""))
    assert "not committed" in release(repository, NEXT).stderr
    git(repository, "commit", "--quiet", "--all", "--message", "No news")
    assert "nothing under Unreleased" in release(repository, NEXT).stderr
