"""Commands as rows: found by every process, bounded, and an end that was seen stays."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from remote_sandbox_mcp.core.errors import ConfigError
from remote_sandbox_mcp.local.store.database import Database, migrations
from remote_sandbox_mcp.local.store.jobs import (
    ENDED,
    GONE,
    KEPT_S,
    MOST_RUNS,
    RUNNING,
    RowChange,
    RunRecord,
    RunRecords,
    added,
    forgotten,
    noted,
    removed,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


def record(number: int, place: str = "me@a:22", **more: object) -> RunRecord:
    fields = {"run_id": f"run-{number:08}", "sandbox": "a", "place": place, "command": "make", "created": float(number)}
    return RunRecord(**{**fields, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_database_of_an_older_version_takes_commands(file: Path, number: int) -> None:
    made = Path(__file__).with_name(f"state_{number}.db")
    if made.exists():
        shutil.copy(made, file)
    else:
        with closing(sqlite3.connect(file)) as connection:
            connection.executescript("".join(migrations("migrations")[:number]))
            connection.execute(f"PRAGMA user_version = {number}")
    database = Database(file)
    runs = RunRecords(database)
    runs.write([added(record(1, command="print \udcff", tail="x" * 9000))])
    (kept,) = runs.latest("me@a:22", 5)
    assert (kept.command, len(kept.tail), kept.state) == ("print \\udcff", 4000, RUNNING)
    database.close()


def test_an_end_that_was_seen_stays(file: Path) -> None:
    runs = RunRecords(Database(file))
    runs.write([added(record(1))])
    runs.write([noted("run-00000001", ENDED, outcome="exit 3", exit_code=3, tail="done")])
    runs.write([noted("run-00000001", GONE, outcome="it is not known there")])
    found = runs.get("run-00000001")
    assert found
    assert (found.state, found.exit_code, found.outcome, found.tail) == (ENDED, 3, "exit 3", "done")
    runs.database.close()


def test_background_commands_outlasted_their_call_or_have_no_known_end(file: Path) -> None:
    runs = RunRecords(Database(file))
    for number in range(4):
        runs.write([added(record(number))])
    runs.write([noted("run-00000001", ENDED, outcome="exit 0", exit_code=0)])
    runs.write([noted("run-00000002", ENDED, outcome="exit 0", exit_code=0, is_listed=True)])
    found = [each.run_id[-1] for each in runs.background("me@a:22", 0.0, 10)]
    assert found == ["3", "2", "0"]
    assert [each.run_id[-1] for each in runs.background("me@a:22", 2.5, 10)] == ["3"]
    assert runs.background("me@b:22", 0.0, 10) == ()
    runs.database.close()


def test_old_and_surplus_commands_are_dropped_unless_they_may_run(file: Path) -> None:
    runs = RunRecords(Database(file))
    runs.write([added(record(1))])
    for number in range(2, MOST_RUNS + 20):
        runs.write([added(record(number, state=ENDED))])
    runs.write([added(record(1, place="b", run_id="run-other"))])
    kept = {each.run_id for each in runs.latest("me@a:22", 1000)}
    assert len(kept) == MOST_RUNS + 2
    assert "run-00000001" in kept
    runs.write([added(record(0, created=KEPT_S + 10_000))])
    assert len(runs.latest("me@a:22", 1000)) == 1
    assert runs.latest("b", 10) == ()
    runs.database.close()


def test_changes_are_written_together_and_in_order(file: Path) -> None:
    runs = RunRecords(Database(file))
    changes = [added(record(1)), noted("run-00000001", ENDED, outcome="exit 0", exit_code=0), added(record(2))]
    runs.write([*changes, removed("run-00000002"), added(record(3), state=ENDED, tail="x" * 9000)])
    assert [(each.run_id[-1], each.state, len(each.tail)) for each in runs.latest("me@a:22", 5)] == [
        ("3", ENDED, 4000),
        ("1", ENDED, 0),
    ]
    broken = RowChange("note", {"run_id": "run-00000001"})
    with pytest.raises(ConfigError):
        runs.write([added(record(4)), broken])
    assert runs.get("run-00000004") is None
    runs.write([forgotten("me@a:22")])
    assert runs.latest("me@a:22", 5) == ()
    runs.database.close()
