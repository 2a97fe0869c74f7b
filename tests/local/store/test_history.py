from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote_sandbox_mcp.local.store import history
from remote_sandbox_mcp.local.store.database import Database
from remote_sandbox_mcp.local.store.history import CallRow, HistoryRows, WantedCalls


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[HistoryRows]:
    rows = HistoryRows(Database(tmp_path / "state.db"))
    yield rows
    rows.database.close()


def call(number: int = 0, *, age_s: float = 0.0, **fields: object) -> CallRow:
    usual: dict[str, object] = {"tool": "exec_bash", "outcome": "done", "told": str(number), "sandbox": "gpu1"}
    return CallRow(begun=time.time() - age_s, seconds=0.1, **{**usual, **fields})  # type: ignore[arg-type]


def told(rows: HistoryRows, **wanted: object) -> list[str]:
    return [row.told for row in rows.newest(WantedCalls(**wanted))]  # type: ignore[arg-type]


def test_calls_are_read_as_they_were_written_and_by_what_they_are(rows: HistoryRows) -> None:
    one = call(1, client="claude-code", folder="/w\udcff", arguments={"command": "ls"}, exit_code=2)
    rows.write([one, call(2, sandbox="gpu1, gpu2"), call(3, outcome="bad_argument", tool="run_tests")], days=1)
    (first, *_) = rows.newest(WantedCalls())
    assert (first.arguments, first.folder, first.exit_code, first.id) == ({"command": "ls"}, "/w\\udcff", 2, 1)
    assert told(rows, limit=2) == ["2", "3"]
    assert told(rows, after=1) == ["2", "3"]
    assert told(rows, client="Claude") == ["1"]
    assert told(rows, sandbox="gpu2") == ["2"]
    assert told(rows, sandbox="gpu1") == ["1", "2", "3"]
    assert told(rows, tool="run_tests") == ["3"]
    assert told(rows, failed=True) == ["1", "3"]


def test_old_calls_are_dropped_and_never_shown(rows: HistoryRows, monkeypatch: pytest.MonkeyPatch) -> None:
    rows.write([call(1, age_s=40 * 86400), call(2, age_s=20 * 86400), call(3)], days=30, configuration="a")
    assert told(rows) == ["2", "3"]
    monkeypatch.setattr(history, "PRUNE_EVERY", 1)
    rows.write([call(4)], days=30, configuration="b")
    assert told(rows) == ["2", "3", "4"]
    rows.write([call(5)], days=10, configuration="a")
    assert told(rows) == ["3", "4", "5"]
    rows.forget("a")
    assert told(rows) == ["4"]


def test_rows_and_bytes_are_bounded(rows: HistoryRows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "PRUNE_EVERY", 1)
    monkeypatch.setattr(history, "MOST_ROWS", 3)
    rows.write([call(number) for number in range(9)], days=1)
    assert told(rows) == ["6", "7", "8"]
    monkeypatch.setattr(history, "MOST_BYTES", 5000)
    rows.write([call(told="x" * 4000), call(told="y" * 2000)], days=1)
    assert [line[0] for line in told(rows)] == ["y"]
