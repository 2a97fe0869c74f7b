"""Programs of this computer as a test wants them: what it puts into its folders counts as there before the start."""

from __future__ import annotations

import atexit
import errno
import functools
import math
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from remote_sandbox_mcp.far.outpost import filter as calls
from remote_sandbox_mcp.far.outpost import guard
from remote_sandbox_mcp.local.processes import programs
from tests.support.means import require_bubblewrap, require_program


def without_bubblewrap(*words: str) -> list[str]:
    """A command line that runs these words where no bubblewrap is installed, and the kernel has no Landlock.

    Ends the test as skipped where bubblewrap cannot run, which hides both.
    """
    require_bubblewrap()
    found = require_program("bwrap")
    hidden = [found, "--dev-bind", "/", "/", "--ro-bind", "/dev/null", os.path.realpath(found), "--seccomp", "9", "--"]
    return ["/bin/sh", "-c", 'exec 9<"$0"; exec "$@"', _no_landlock(), *hidden, *words]


@functools.cache
def _no_landlock() -> str:
    """A file with a filter that answers as a kernel without Landlock does."""
    refuse = calls.step(calls.EQUAL, guard.CREATE_RULESET, 0, 1) + calls.step(calls.RETURN, calls.REFUSE | errno.ENOSYS)
    file = Path(tempfile.mkdtemp(prefix="rsmcp-filter-")) / "filter"
    file.write_bytes(calls.step(calls.LOAD, 0) + refuse + calls.step(calls.RETURN, calls.ALLOW))
    file.parent.chmod(0o755)
    atexit.register(shutil.rmtree, file.parent, ignore_errors=True)
    return str(file)


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
