"""`login`: a person gives a code at a terminal, and every session uses the connection."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.hub_desk import Desk, desk_in
from tests.support.second_factor import Factor, assert_found_nowhere, machine_with_code
from tests.support.server import COMMAND, Entry, entry, environment, serve
from tests.support.sshd import Fleet

IN_A_TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"


@pytest.fixture(scope="module")
def factor(fleet: Fleet) -> Factor:
    return machine_with_code(fleet, name="hpc")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with desk_in(tmp_path) as desk:
        yield desk


def at_terminal(
    home: Path, machine: Entry, *answers: Callable[[], str], end: str = "\n", to: str = ""
) -> tuple[int, str]:
    """Run login in a terminal of its own and type an answer at each prompt; gives the exit code and what is seen.

    With `to`, it prints JSON, which goes to that file.
    """
    words = [COMMAND, "--config", str(home / "config.toml"), "login", machine["name"]]
    if to:
        words = ["sh", "-c", 'exec "$@" --json > "$0"', to, *words]
    process = subprocess.Popen(
        [sys.executable, "-c", IN_A_TERMINAL, *words], env=environment(home, (machine,)),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin
    assert process.stdout
    seen, waiting = "", list(answers)
    with process, killed_after(process, 40):
        while data := os.read(process.stdout.fileno(), 4096):
            seen += data.decode()
            if waiting and seen.endswith("code: "):
                process.stdin.write(f"{waiting.pop(0)()}{end}".encode())
                process.stdin.flush()
    return process.returncode, seen


@contextmanager
def killed_after(process: subprocess.Popen[bytes], seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


async def test_a_person_logs_in_and_a_headless_client_uses_the_connection(factor: Factor, desk: Desk) -> None:
    home = desk.home
    (home / "config.toml").write_text("[local]\nenabled = false\n")
    (home / "config.toml").chmod(0o600)
    machine = entry(factor.renew().machine)
    before, attempts = factor.logins, factor.attempts
    code, seen = at_terminal(home, machine, factor.wrong_code)
    assert code == 255, seen
    assert "refused after a code was given" in seen
    code, seen = at_terminal(home, machine, factor.code)
    assert code == 0, seen
    assert "hpc is logged in." in seen
    assert factor.attempts == attempts + 1
    async with serve(home, machine) as server:
        assert await server.output("whoami") == f"{factor.machine.user}\n"
        assert_found_nowhere(factor.codes, home, server.everything_said + seen)
    assert factor.logins == before + 1
    assert "hpc is logged in with a code that a person gave" in desk.status()["needs"]
    assert "was logged in already" in at_terminal(home, machine)[1]


def test_ctrl_c_gives_up_and_ctrl_d_ends_the_login_with_a_reason(factor: Factor, desk: Desk) -> None:
    machine = entry(factor.renew().machine)
    code, seen = at_terminal(desk.home, machine, lambda: "\x03", end="")
    assert code == 130, seen
    code, seen = at_terminal(desk.home, machine, lambda: "\x04", end="")
    assert code == 255, seen
    assert "remote-sandbox-mcp: " in seen


def test_a_question_whose_answer_is_shown_is_not_printed_between_the_json(fleet: Fleet, desk: Desk) -> None:
    factor = machine_with_code(fleet, name="shown", is_shown=True)
    out = desk.home / "out"
    code, seen = at_terminal(desk.home, entry(factor.machine), factor.code, to=str(out))
    assert code == 0, seen
    assert factor.codes[0] in seen
    assert json.loads(out.read_text()) == {"name": "shown", "was_open": False, "asked": True}


def test_login_needs_a_terminal_and_the_hub(desk: Desk) -> None:
    code, _, complained = desk("login", "hpc")
    assert code == 2
    assert "needs a terminal" in complained
    code, _, complained = desk("login", "hpc", REMOTE_SANDBOX_NO_HUB="1")
    assert code == 2
    assert "leaves the connection to the hub" in complained
