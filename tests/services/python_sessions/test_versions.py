"""The far side under the oldest and the newest Pythons, started as a command line starts it."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from remote_sandbox_mcp.core.commands.command import Excerpt
from remote_sandbox_mcp.core.commands.interpreter import PythonOrder, PythonRecord, find_record, read_record
from remote_sandbox_mcp.services.sessions.python import command_line, program_files
from tests.support.pipe import as_user, pythons
from tests.support.sshd import Sshd, wait_until

CHOSEN = [path for path in pythons() if any(f"3.{minor}" in path for minor in (6, 8, 13))] or pythons()[:1]
Tell = Callable[[dict[str, Any]], PythonRecord]


@pytest.fixture(params=CHOSEN)
def tell(request: pytest.FixtureRequest, sshd: Sshd) -> Iterator[Tell]:
    """Gives an order to a session of an ordinary user."""

    def tell(order: dict[str, Any]) -> PythonRecord:
        word = secrets.token_hex(16)
        line = command_line(request.param, {"session": "versions", **order, "word": word})
        idle_s = 1 if "not_used" in request.node.name else ""
        argv = as_user(sshd, ["sh", "-c", f"cd; export REMOTE_SANDBOX_PYTHON_IDLE_S={idle_s}; {line}", request.param])
        done = subprocess.run(argv, capture_output=True, timeout=30, check=False)
        value, _ = find_record(Excerpt(done.stdout, total=len(done.stdout)), word)
        assert value is not None, done
        return read_record(value)

    yield tell
    tell({"verb": "stop"})


def test_a_session_is_begun_used_and_ended(tell: Tell) -> None:
    def run(code: str, call_id: str = "") -> PythonRecord:
        order = PythonOrder(code=code, session="versions", timeout_s=0.5)
        return tell(order.as_call(call_id or secrets.token_hex(8), 4.0))

    assert run("1").state in ("absent", "no_session")
    assert tell({"verb": "begin", "files": program_files()}).state == "begun"
    assert tell({"verb": "begin", "files": program_files()}).state == "there"
    first = run("import time\nn = 1\nn")
    assert (first.state, first.is_new, first.value) == ("done", True, "1")
    assert run("def f():\n    1 / 0\nf()").traceback.count("1 / 0") == 1
    assert run("time.sleep(60)").state == "timed_out"
    # A call that is repeated is not run again, even after others.
    assert [run("n += 1\nn", "same").value, run("n").value, run("n += 1\nn", "same").value] == ["2", "2", "2"]
    assert run("import sys; sys.exit(4)").exit_code == 4
    assert tell({"verb": "stop"}).state == "stopped"
    assert tell({"verb": "stop"}).state == "no_session"


@pytest.mark.parametrize("tell", CHOSEN[-1:], indirect=True)
def test_a_session_that_is_not_used_ends(tell: Tell) -> None:
    assert tell({"verb": "begin", "files": program_files()}).state == "begun"
    wait_until(lambda: tell({"verb": "result"}).state == "no_session", what="its end", seconds=20)
