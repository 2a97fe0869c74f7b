from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from remote_sandbox_mcp.backends.bubblewrap.local import why_not
from tests.support.pace import at_most
from tests.support.programs import without_bubblewrap

TOUR = [sys.executable, str(Path(__file__).parents[2] / "scripts/tour.py")]


def tour(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words or TOUR,
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=55,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def test_it_shows_everything_and_neither_uses_nor_touches_the_users_configuration(tmp_path: Path) -> None:
    if reason := asyncio.run(why_not()):
        pytest.skip(reason)
    config = Path(os.environ["XDG_CONFIG_HOME"]) / "remote-sandbox-mcp/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("[local]\nenabled = false\n[machines.mine]\nhost = '192.0.2.1'\n")
    before = sorted(Path.home().rglob("*"))
    begun = time.monotonic()
    done = tour(REMOTE_SANDBOX_LIST='[{"host": "192.0.2.2"}]')
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert time.monotonic() - begun < at_most(20)
    for said in (
        "1. Which sandboxes are there?",
        "timed_out: true, stdout: begun",
        "size: 13, replacements: 1",
        "Network is unreachable",
        "20 right answers",
        "did you mean local?",
        "running: true, tmux_session: run-",
        "running: false, exit_code: 143, stopped: true",
        "All as it should be, in ",
        "doctor",
    ):
        assert said in done.stdout
    assert "mine" not in done.stdout
    assert "192.0.2.2" not in done.stdout
    assert sorted(Path.home().rglob("*")) == before


def test_without_bubblewrap_it_says_why_and_shows_the_rest(tmp_path: Path) -> None:
    done = tour(*without_bubblewrap(*TOUR), PATH=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    for said in (
        "cannot run here",
        "needs bubblewrap, which is not installed",
        "1. What your agent can do",
        "exec_bash  ",
        "2. Without a place to run",
        "Nothing can run on this computer; the rest is as it should be, in ",
    ):
        assert said in done.stdout
    assert done.stderr == ""
