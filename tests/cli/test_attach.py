"""`jobs attach` in a real terminal: keys, sizes, detaching, and what cannot be attached to."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, Maker, entry
from tests.support.sshd import Sshd
from tests.support.tmux_screen import TmuxScreen

Sit = Callable[..., TmuxScreen]
# Shows its size, and what is typed, until it is told to end.
TALKS = 'while read -r line; do echo "<$line> $(stty size)"; [ "$line" != end ] || exit 4; done'


@pytest.fixture
def sit(cli: Cli, tmp_path: Path) -> Iterator[Sit]:
    """The command in a terminal."""
    screens: list[TmuxScreen] = []

    def begin(*words: str, rows: int = 24, columns: int = 80) -> TmuxScreen:
        screens.append(TmuxScreen(tmp_path, [*cli.command, *words], cli.env, rows, columns))
        return screens[-1]

    yield begin
    for screen in screens:
        screen.close()


def test_a_person_sits_in_front_of_a_job_and_leaves_it_running(cli: Cli, good: Sshd, sit: Sit) -> None:
    cli("jobs", "start", "--name", "talks", "--", TALKS)
    screen = sit("jobs", "attach", "talks", rows=20, columns=70)
    screen.shows("[talks]")
    screen.type("hello")
    screen.press("Enter")
    # One line of the window is tmux's own.
    screen.shows("<hello> 19 70")
    screen.resize(30, 90)
    screen.presses("Enter", until="<> 29 90")
    screen.press("C-b", "d")
    screen.shows("[detached (from session talks)]", "ended with 0")
    assert screen.modes == "0 1"
    assert cli("jobs", "show", "talks", "--json").json["running"]


def test_the_end_of_the_job_ends_the_sitting(cli: Cli, good: Sshd, sit: Sit) -> None:
    cli("jobs", "start", "--name", "ends", "--", TALKS)
    screen = sit("jobs", "attach", "ends")
    screen.shows("[ends]")
    screen.type("end")
    screen.press("Enter")
    screen.shows("[exited]", "ended with 0")
    assert cli("jobs", "wait", "ends").code == 4


@pytest.mark.parametrize(("how", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), ("cut", 255)], ids=str)
def test_the_terminal_is_given_back_however_the_sitting_ends(
    cli: Cli, made: Maker, sit: Sit, how: str | signal.Signals, code: int
) -> None:
    machine = made("seats")
    cli.machines = [entry(machine)]
    cli("jobs", "start", "--name", "talks", "--", TALKS)
    screen = sit("jobs", "attach", "talks")
    screen.shows("[talks]")
    assert (screen.modes, screen.key_modes) == ("1 1", "1 1")
    if how == "cut":
        machine.kill_sessions()
    else:
        found = subprocess.run(["pgrep", "-P", str(screen.pid)], capture_output=True, text=True, check=True)
        os.kill(int(found.stdout.split()[0]), int(how))
    screen.shows(f"ended with {code}")
    assert (screen.modes, screen.key_modes) == ("0 1", "0 0")
    cli("jobs", "stop", "talks")


def test_only_who_detaches_is_told_to_have_detached(cli: Cli, good: Sshd, sit: Sit) -> None:
    cli("jobs", "start", "--name", "told", "--", TALKS)
    first = sit("jobs", "attach", "told", "--json")
    first.shows("[told]")
    first.press("C-b", "d")
    first.shows('"detached": true', "ended with 0")
    second = sit("jobs", "attach", "told", "--json")
    second.shows("[told]")
    second.type("end")
    second.press("Enter")
    second.shows('"detached": false', "ended with 0")


def test_what_cannot_be_attached_to_says_what_to_use_instead(cli: Cli, good: Sshd, made: Maker, sit: Sit) -> None:
    cli("jobs", "start", "--name", "over", "--", "true")
    cli("jobs", "wait", "over")
    screen = sit("jobs", "attach", "over")
    screen.shows("over does not run", "jobs logs -f over", "ended with 2")
    piped = cli("jobs", "attach", "over")
    assert (piped.code, piped.stderr) == (
        2,
        "remote-sandbox-mcp: attach needs a terminal; to read what over prints: remote-sandbox-mcp jobs logs -f over\n",
    )
    cli.machines = [entry(made("no-tmux", tmux=False))]
    cli("jobs", "start", "--name", "alone", "--", "sleep 100")
    other = sit("jobs", "attach", "alone")
    other.shows("alone runs without tmux", "ended with 2")
    cli("jobs", "stop", "alone")
