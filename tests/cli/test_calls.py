from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from remote_sandbox_mcp.config import paths
from remote_sandbox_mcp.local.store.database import STATE_FILE, Database
from remote_sandbox_mcp.local.store.history import CallRow, HistoryRows
from tests.cli.conftest import DEADLINE_S, Cli


@pytest.fixture
def rows() -> Iterator[HistoryRows]:
    rows = HistoryRows(Database(paths.state_folder() / STATE_FILE))
    yield rows
    rows.database.close()


def call(command: str, **fields: object) -> CallRow:
    usual: dict[str, object] = {"tool": "exec_bash", "outcome": "done", "client": "codex", "sandbox": "gpu1"}
    arguments = {"command": command}
    return CallRow(begun=time.time(), seconds=1.23, arguments=arguments, **{**usual, **fields})  # type: ignore[arg-type]


def test_calls_are_a_table_for_people_and_lines_of_json_for_programs(cli: Cli, rows: HistoryRows) -> None:
    nothing = cli("calls")
    assert (nothing.code, nothing.stdout) == (0, "")
    assert nothing.stderr.startswith("remote-sandbox-mcp: no calls are kept that fit")
    wrong = call("evil\x1b[31m", outcome="bad_argument", told="no such\x1b[31m thing", sandbox="gpu2")
    rows.write([call("make\nall"), wrong, call("exit 3", exit_code=3)], days=1)
    header, first, second, third = cli("calls").stdout.splitlines()
    assert header.split() == ["when", "client", "sandbox", "tool", "outcome", "took", "what"]
    assert first.split()[1:] == ["codex", "gpu1", "exec_bash", "done", "1.2", "s", "make␊all"]
    assert second.split()[4] == "bad_argument"
    assert "no such" in second
    assert "\x1b" not in second
    assert "exit 3" in third
    failed = [json.loads(line) for line in cli("calls", "--json", "--failed", "--sandbox", "gpu1").stdout.splitlines()]
    assert [(it["arguments"], it["exit_code"], it["client"]) for it in failed] == [({"command": "exit 3"}, 3, "codex")]
    assert len(cli("calls", "-n", "1").stdout.splitlines()) == 2


def test_new_calls_are_followed(cli: Cli, rows: HistoryRows) -> None:
    rows.write([call("one")], days=1)
    following = cli.start("calls", "-f", "--json", "-n", "1")
    assert json.loads(following.stdout.readline())["arguments"] == {"command": "one"}
    rows.write([call("two")], days=1)
    assert json.loads(following.stdout.readline())["arguments"] == {"command": "two"}
    following.kill()
    following.communicate(DEADLINE_S)
