"""Rows of transfers: what is written is read, by anybody; an end stays."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from remote_sandbox_mcp.core.sandboxes.files import Problem
from remote_sandbox_mcp.core.sync.transfer import Headway, Order, Outcome, Place
from remote_sandbox_mcp.local.store.database import Database
from remote_sandbox_mcp.local.store.transfers import (
    CANCELLED,
    COMPLETED,
    FAILED,
    QUEUED,
    RUNNING,
    Ledger,
    Transfer,
    TransferEnd,
)

ORDER = Order(
    source=Place("", "/home/me/ünï\udcff"),
    target=Place("gpu1", "/data"),
    excludes=("*.log", "!keep.log"),
    checksum=True,
)
OUTCOME = Outcome(
    synced_type="directory", sent_files=3, bytes=10, wire_bytes=5, seconds=0.5,
    problems=(Problem("a\udcff", "permission denied"),), problem_count=1, excluded=(".git",),
)  # fmt: skip
HEADWAY = Headway("sending", 1, 2, 3, 4, 5.5, None, "x\n\udcff")


def row(name: str = "tr-1", status: str = RUNNING, **more: object) -> Transfer:
    made = Transfer(id=name, order=ORDER, status=status, log_file="/x/tr-1.log", created=100.0, updated=100.0)
    return replace(made, **more)  # type: ignore[arg-type]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    database = Database(tmp_path / "state.db")
    yield Ledger(database)
    database.close()


def test_a_row_is_read_as_it_was_written(ledger: Ledger) -> None:
    written = row(pid=7, started=100.5, configuration="mine")
    ledger.add(written)
    assert ledger.get("tr-1") == written
    assert ledger.get("tr-2") is None


def test_progress_is_accepted_only_from_the_process_that_runs_it(ledger: Ledger) -> None:
    ledger.add(row(pid=7))
    ledger.note("tr-1", 7, HEADWAY)
    ledger.note("tr-1", 8, replace(HEADWAY, files=99))
    found = ledger.get("tr-1")
    assert found
    assert found.headway == HEADWAY
    assert found.updated == pytest.approx(time.time(), abs=5)


def test_the_process_that_takes_a_queued_transfer_runs_it(ledger: Ledger) -> None:
    ledger.add(row(status=QUEUED))
    taken = ledger.take("tr-1", 9)
    assert taken
    assert (taken.status, taken.pid) == (RUNNING, 9)
    assert taken.started == pytest.approx(time.time(), abs=5)
    again = ledger.take("tr-1", 10)
    assert again
    assert (again.pid, again.started) == (10, taken.started)


@pytest.mark.parametrize(
    "end",
    [
        TransferEnd(COMPLETED, OUTCOME),
        TransferEnd(FAILED, None, "unable to read '\udcff'", "file"),
        TransferEnd(CANCELLED),
    ],
    ids=lambda end: end.status,
)
def test_an_end_stays(ledger: Ledger, end: TransferEnd) -> None:
    ledger.add(row(pid=7))
    assert ledger.end("tr-1", end, HEADWAY)
    assert not ledger.end("tr-1", TransferEnd(FAILED, None, "too late"))
    ledger.note("tr-1", 7, replace(HEADWAY, files=99))
    ledger.ask_to_cancel("tr-1")
    assert ledger.take("tr-1", 8) is None
    found = ledger.get("tr-1")
    assert found
    assert found.is_over
    assert (found.status, found.outcome, found.code) == (end.status, end.outcome, end.code)
    assert found.error == end.error.replace("\udcff", "\\udcff")
    assert found.headway == HEADWAY
    assert not found.cancel_requested
    assert found.ended == found.updated == pytest.approx(time.time(), abs=5)


def test_a_request_to_cancel_is_visible(ledger: Ledger) -> None:
    ledger.add(row())
    assert not ledger.is_unwanted("tr-1")
    ledger.ask_to_cancel("tr-1")
    assert ledger.is_unwanted("tr-1")
    assert not ledger.is_unwanted("tr-2")


def test_unfinished_transfers_are_found_by_their_configuration(ledger: Ledger) -> None:
    for number, (configuration, status) in enumerate([("mine", RUNNING), ("", QUEUED), ("theirs", QUEUED)]):
        ledger.add(row(f"tr-{number}", status, configuration=configuration))
    ledger.add(row("tr-first", QUEUED, configuration="mine", created=1.0))
    ledger.add(row("tr-over", configuration="mine"))
    ledger.end("tr-over", TransferEnd(COMPLETED, OUTCOME))
    # Of a version that noted none.
    ledger.add(row("tr-old"))
    with ledger.database.writing() as connection:
        connection.execute("UPDATE transfers SET wanted = ? WHERE id = 'tr-old'", (json.dumps(asdict(ORDER)),))
    assert [found.id for found in ledger.unfinished("mine")] == ["tr-first", "tr-0"]
    assert (ledger.get("tr-old") or row()).configuration == ""


def test_the_latest_transfers_come_first(ledger: Ledger) -> None:
    for number in range(5):
        ledger.add(row(f"tr-{number}", created=100.0 + number // 2))
    assert [found.id for found in ledger.latest(3)] == ["tr-4", "tr-3", "tr-2"]


def test_old_transfers_are_found_and_removed(ledger: Ledger) -> None:
    ledger.add(row("tr-1", updated=10.0))
    ledger.add(row("tr-2", updated=1000.0))
    assert [found.id for found in ledger.untouched_since(500.0)] == ["tr-1"]
    ledger.remove("tr-1")
    assert ledger.get("tr-1") is None


def test_rows_of_a_newer_version_are_read_as_far_as_they_are_known(ledger: Ledger) -> None:
    ledger.add(row())
    wanted = json.dumps({**asdict(ORDER), "compression": "zstd"})
    headway = json.dumps({"phase": "sending", "mood": "good"})
    with ledger.database.writing() as connection:
        connection.execute("UPDATE transfers SET wanted = ?, headway = ?", (wanted, headway))
    found = ledger.get("tr-1")
    assert found
    assert found.order == ORDER
    assert found.headway == Headway("sending")


def test_two_connections_see_each_other(ledger: Ledger) -> None:
    other = Ledger(Database(ledger.database.file))
    ledger.add(row(pid=7))
    other.ask_to_cancel("tr-1")
    assert ledger.is_unwanted("tr-1")
    other.database.close()
