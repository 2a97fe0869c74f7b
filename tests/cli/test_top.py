"""`top` in a real terminal, on a real machine: what it shows, what its keys do, and how it leaves the terminal."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.support.sshd import Sshd
from tests.support.tmux_screen import TmuxScreen

STEPS = r"""printf '\033]0;evil\007\033[2Jstep 1\n'; until [ -e go-on ]; do sleep 0.05; done; echo step 2; sleep 1000"""


@pytest.fixture
def screen(cli: Cli, good: Sshd, tmp_path: Path) -> Iterator[TmuxScreen]:
    """`top`, and two jobs: one that runs, one that has ended and can be resumed."""
    (good.home / "go-on").unlink(missing_ok=True)
    cli("jobs", "start", "--name", "first", "--resume", "echo again; sleep 1000", "--", "exit 3")
    cli("jobs", "wait", "first")
    cli("jobs", "start", "--name", "steps", "--", STEPS)
    made = TmuxScreen(tmp_path, [*cli.command, "top", "--sort", "name"], cli.env)
    yield made
    made.close()


def test_a_person_looks_reads_a_log_resumes_and_stops(cli: Cli, good: Sshd, screen: TmuxScreen) -> None:
    screen.shows(" shared", "CPU ", "mem ", "> steps ", "failed (3)", "by name")
    screen.press("Enter")
    screen.shows("steps on shared: running", "step 1")
    (good.home / "go-on").touch()
    screen.shows("step 1", "step 2")
    screen.press("Escape")
    screen.shows("STATE", "> steps ")
    screen.type("/first")
    screen.press("Enter")
    screen.shows("> first ", gone="steps")
    screen.press("r")
    screen.shows("resume first on shared? (y/n)")
    screen.press("y")
    screen.shows("first on shared goes on", "running", "echo again")
    screen.press("s", "y")
    screen.shows("first on shared is stopped", "stopped")
    screen.resize(40, 120)
    screen.shows("> first ", "COMMAND")
    screen.press("?")
    screen.shows("sort by idle score")
    screen.press("?", "q")
    screen.shows("ended with 0")
    assert screen.modes == "0 1"
    (event,) = [line for line in cli("events", "--json").stdout.splitlines() if "resume_started" in line]
    assert '"asked_by": "top"' in event


@pytest.mark.parametrize(("how", "code"), [("C-c", 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=str)
def test_the_terminal_is_given_back_however_it_ends(screen: TmuxScreen, how: str | signal.Signals, code: int) -> None:
    screen.shows("> steps ")
    assert screen.modes == "1 0"
    if isinstance(how, str):
        screen.press(how)
    else:
        found = subprocess.run(["pgrep", "-P", str(screen.pid)], capture_output=True, text=True, check=True)
        os.kill(int(found.stdout.split()[0]), how)
    screen.shows(f"ended with {code}")
    assert screen.modes == "0 1"


def test_where_nobody_looks_it_is_a_table(cli: Cli, good: Sshd) -> None:
    cli("jobs", "start", "--name", "quiet", "--", "sleep 100")
    plain = cli("top")
    assert plain.code == 0
    assert "\x1b" not in plain.stdout
    (machine,) = [line for line in plain.stdout.splitlines() if line.startswith(" shared")]
    assert "idle " in machine
    (row,) = [line.split() for line in plain.stdout.splitlines() if line.startswith("  quiet ")]
    assert row[:3] == ["quiet", "shared", "running"]
    told = cli("top", "--json").json
    assert "shared" in {row["name"] for row in told["machines"]}
    assert [row["state"] for row in told["jobs"] if row["tmux_session"] == "quiet"] == ["running"]
