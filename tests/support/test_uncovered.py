"""`make coverage` counts what started and forked processes run, and names the lines of a change that nothing ran."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.doc_pages import ROOT

OLD = "def old(flag):\n    if flag:\n        return 1\n    return 2\n"
NEW = (
    OLD
    + "\n\ndef forked():\n    return 3\n\n\ndef started():\n    return 4\n\n\ndef unseen():\n    x = 5\n    return x\n"
)
USE = """
import os, subprocess, sys
sys.path.insert(0, "src")
from remote_sandbox_mcp import part
part.old(True)
child = os.fork()
if not child:
    part.forked()
    os._exit(0)
os.waitpid(child, 0)
code = "import sys; sys.path.insert(0, 'src'); from remote_sandbox_mcp import part; part.started()"
subprocess.run([sys.executable, "-c", code], check=True)
"""


def run(folder: Path, *words: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("COVERAGE_", "GIT_"))}
    author = {f"GIT_{who}_{what}": "a@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = subprocess.run(words, cwd=folder, env=env | author, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_lines_of_a_change_that_nothing_ran_are_named(tmp_path: Path) -> None:
    package = tmp_path / "src/remote_sandbox_mcp"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "part.py").write_text(OLD)
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (tmp_path / "use.py").write_text(USE)
    run(tmp_path, "git", "init", "-q")
    run(tmp_path, "git", "add", "-A")
    run(tmp_path, "git", "commit", "-qm", "Begin")
    (package / "part.py").write_text(NEW)
    coverage = (sys.executable, "-m", "coverage")
    run(tmp_path, *coverage, "run", "use.py")
    run(tmp_path, *coverage, "combine", "--quiet")
    said = run(tmp_path, sys.executable, str(ROOT / "scripts/uncovered.py"), "HEAD")
    assert said.endswith("run by no test:\n  src/remote_sandbox_mcp/part.py: 16-17\n"), said
    assert "part             11 lines   72.7 %" in said, said
