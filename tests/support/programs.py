"""Programs of this computer as a test wants them: what it puts into its folders counts as there before the start."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path

import pytest

from remote_sandbox_mcp.local.processes import programs


def without_bubblewrap(*words: str) -> list[str]:
    """A command line that runs these words where no bubblewrap is installed."""
    if not (found := shutil.which("bwrap")):
        return [*words]
    return [found, "--dev-bind", "/", "/", "--ro-bind", "/dev/null", os.path.realpath(found), "--", *words]


def plant(file: Path, script: str = "exit 0") -> Path:
    """A program in the place of another."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file


def look_in(monkeypatch: pytest.MonkeyPatch, *folders: Path | str) -> None:
    """Let this process look for programs there and nowhere else."""
    path = os.pathsep.join(map(str, folders))
    here = programs.Programs(path, system=())
    here.began = math.inf
    monkeypatch.setenv("PATH", path)
    monkeypatch.setattr(programs, "_here", here)
