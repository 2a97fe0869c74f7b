"""Rows of disposable sandboxes: named once, counted in one transaction, ended once, by any number of processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from remote_sandbox_mcp.core.sandboxes.disposable import Disposable, Limits
from remote_sandbox_mcp.local.store.database import Database
from remote_sandbox_mcp.local.store.disposables import (
    CREATING,
    ENDING,
    FULL,
    NAME_TAKEN,
    RUNNING,
    DisposableRows,
    Kept,
    Owner,
)

ME, OTHER = Owner(11, "100"), Owner(12, "200")
IT = Disposable(
    id="sb-00000001",
    provider="opensandbox",
    name="web",
    image="p\udcff",
    status=CREATING,
    created=100.0,
    limits=Limits(cpu=2, told=("cpu: quota",)),
    network=True,
    notes=("n",),
)
KEPT = Kept(disposable=IT, timeout_s=600.0, owner=ME, idle_since=100.0)

RESERVE = """
import sys
from pathlib import Path
from remote_sandbox_mcp.core.sandboxes.disposable import Disposable, new_disposable_id
from remote_sandbox_mcp.local.store.database import Database
from remote_sandbox_mcp.local.store.disposables import DisposableRows, Kept
rows = DisposableRows(Database(Path(sys.argv[1])))
rows.living()
sys.stdin.read()
got = 0
for _ in range(8):
    plan = Disposable(id=new_disposable_id(), provider="embedded", status="creating")
    got += not rows.reserve(Kept(disposable=plan), 10)
print(got)
"""


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[DisposableRows]:
    database = Database(tmp_path / "state.db")
    yield DisposableRows(database)
    database.close()


def numbered(number: int, *, name: str = "", status: str = CREATING) -> Kept:
    it = replace(IT, id=f"sb-0000000{number}", name=name, status=status, created=100.0 + number)
    return replace(KEPT, disposable=it)


def test_a_row_is_read_as_it_was_written_by_its_id_and_its_name(rows: DisposableRows) -> None:
    assert rows.reserve(KEPT, 5) == ""
    assert rows.get(IT.id) == rows.find(IT.id) == rows.find("web") == KEPT
    assert rows.find("other") is rows.find("\udcff") is None
    assert rows.living() == (KEPT,)


def test_two_live_sandboxes_cannot_have_the_same_name(rows: DisposableRows) -> None:
    rows.reserve(KEPT, 5)
    again = numbered(2, name="web")
    assert rows.reserve(again, 5) == NAME_TAKEN
    assert rows.reserve(numbered(2, name=IT.id), 5) == NAME_TAKEN
    rows.end(IT.id, "gone", "was deleted", 200.0)
    assert rows.reserve(again, 5) == ""
    assert rows.find("web") == again
    over = rows.find(IT.id)
    assert over
    assert (over.disposable.status, over.why, over.ended) == ("gone", "was deleted", 200.0)


def test_the_limit_holds_and_ready_sandboxes_do_not_count(rows: DisposableRows) -> None:
    for number in range(3):
        rows.add_ready(replace(numbered(number), pool="node"))
    assert [rows.reserve(numbered(number), 2) for number in (3, 4, 5)] == ["", "", FULL]
    rows.remove("sb-00000003")
    assert rows.reserve(numbered(5), 2) == ""


def test_a_sandbox_whose_creation_failed_without_an_answer_holds_neither_room_nor_name(rows: DisposableRows) -> None:
    rows.reserve(without_key(1), 1)
    assert rows.reserve(without_key(2), 5) == NAME_TAKEN
    rows.note_status("sb-00000001", ENDING)
    assert rows.reserve(without_key(2), 1) == ""
    assert [kept.disposable.status for kept in rows.living()] == [ENDING, CREATING]
    assert rows.find("box") == without_key(2)
    # So is the name of one that a killed process has left behind.
    assert rows.claim(without_key(2), Owner(2, "b"), ENDING)
    assert rows.reserve(without_key(3), 5) == ""
    # One that the platform has is still being deleted under its name.
    rows.note_ending("sb-00000003", "the platform's id")
    assert rows.reserve(without_key(4), 5) == NAME_TAKEN


def without_key(number: int) -> Kept:
    kept = numbered(number, name="box")
    return replace(kept, disposable=replace(kept.disposable, key=""))


def test_a_made_sandbox_is_recorded_unless_it_was_deleted_meanwhile(rows: DisposableRows) -> None:
    rows.reserve(KEPT, 5)
    made = replace(IT, key="k", status=RUNNING, created=101.0, expires=701.0, image="x", notes=())
    assert rows.made(made)
    assert rows.get(IT.id) == replace(KEPT, disposable=made)
    rows.reserve(numbered(2), 5)
    rows.end("sb-00000002", "gone", "was deleted", 1.0)
    assert not rows.made(replace(made, id="sb-00000002"))


def test_a_ready_sandbox_is_taken_once_and_only_by_its_owner(rows: DisposableRows) -> None:
    ready = replace(numbered(1, status=RUNNING), pool="node")
    rows.add_ready(ready)
    wanted = replace(numbered(2, name="box"), pool="node", timeout_s=60.0, idle_since=500.0)
    assert rows.take(replace(wanted, owner=OTHER), 5) is None
    assert rows.take(replace(wanted, pool="python"), 5) is None
    assert rows.take(wanted, 0) is None
    taken = rows.take(wanted, 5)
    named = replace(ready.disposable, name="box")
    assert taken == replace(ready, disposable=named, pool="", timeout_s=60.0, idle_since=500.0)
    assert rows.take(replace(wanted, disposable=replace(wanted.disposable, name="")), 5) is None


def test_the_later_expiry_wins_and_no_expiry_stays(rows: DisposableRows) -> None:
    rows.reserve(KEPT, 5)
    assert rows.extend(IT.id, 900.0) == KEPT
    assert rows.get(IT.id) == KEPT
    rows.note_expires(IT.id, 700.0)
    for wish in (900.0, 800.0):
        rows.extend(IT.id, wish)
    kept = rows.get(IT.id)
    assert kept
    assert kept.disposable.expires == 900.0
    rows.renewed(IT.id, 750.0, 50.0)
    kept = rows.get(IT.id)
    assert kept
    assert (kept.disposable.expires, kept.timeout_s) == (750.0, 50.0)
    assert rows.extend("sb-0000000x", 1.0) is None


def test_a_failed_renewal_is_undone_unless_another_succeeded(rows: DisposableRows) -> None:
    rows.reserve(KEPT, 5)
    rows.note_expires(IT.id, 700.0)
    before = rows.extend(IT.id, 900.0)
    assert before
    rows.take_back(before, 900.0)
    assert rows.get(IT.id) == before
    rows.extend(IT.id, 900.0)
    rows.extend(IT.id, 950.0)
    rows.take_back(before, 900.0)
    kept = rows.get(IT.id)
    assert kept
    assert kept.disposable.expires == 950.0


@pytest.mark.parametrize(
    "meanwhile",
    [
        pytest.param(lambda rows: rows.touch(IT.id, 101.0), id="used"),
        pytest.param(lambda rows: rows.note_expires(IT.id, 5.0), id="renewed"),
        pytest.param(lambda rows: rows.end(IT.id, "gone", "", 1.0), id="ended"),
        pytest.param(lambda rows: rows.claim(KEPT, OTHER, ENDING, "x"), id="claimed"),
    ],
)
def test_a_sandbox_is_taken_over_only_if_its_row_is_unchanged(rows: DisposableRows, meanwhile: object) -> None:
    rows.reserve(KEPT, 5)
    assert callable(meanwhile)
    meanwhile(rows)
    assert rows.claim(KEPT, Owner(13, "300"), ENDING) is None


def test_a_sandbox_that_is_taken_over_gets_an_owner_and_a_reason(rows: DisposableRows) -> None:
    rows.reserve(KEPT, 5)
    claimed = rows.claim(KEPT, OTHER, ENDING, "has expired")
    assert claimed == rows.get(IT.id)
    assert claimed
    assert (claimed.owner, claimed.disposable.status, claimed.why) == (OTHER, ENDING, "has expired")


def test_the_time_of_use_never_goes_back_and_an_end_stays(rows: DisposableRows) -> None:
    rows.reserve(KEPT, 5)
    for at in (300.0, 200.0):
        rows.touch(IT.id, at)
    assert rows.end(IT.id, "expired", "has expired", 400.0)
    assert not rows.end(IT.id, "gone", "was deleted", 500.0)
    kept = rows.get(IT.id)
    assert kept
    assert (kept.idle_since, kept.disposable.status, kept.ended) == (300.0, "expired", 400.0)


def test_sandboxes_that_ended_long_ago_are_dropped(rows: DisposableRows) -> None:
    for number, ended in ((1, 1000.0), (2, 1000.0 + 8 * 86400)):
        rows.reserve(numbered(number), 5)
        rows.end(f"sb-0000000{number}", "gone", "was deleted", ended)
    assert rows.get("sb-00000001") is None
    assert rows.get("sb-00000002")


def test_the_mark_shows_without_a_database_that_none_lives(rows: DisposableRows) -> None:
    assert rows.is_empty()
    assert not rows.exists()
    for number in (1, 2):
        rows.reserve(numbered(number), 5)
    assert not rows.is_empty()
    rows.end("sb-00000001", "gone", "", 1.0)
    assert not rows.is_empty()
    rows.remove("sb-00000002")
    assert rows.is_empty()
    assert rows.exists()


def test_processes_at_once_never_exceed_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    command = [sys.executable, "-c", RESERVE, str(file)]
    started = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(4)]
    for process in started:
        assert process.stdin
        process.stdin.close()
    granted = []
    for process in started:
        assert process.stdout
        granted.append(int(process.stdout.read()))
        process.stdout.close()
        assert process.wait(20) == 0
    assert sum(granted) == 10
    database = Database(file)
    assert len(DisposableRows(database).living()) == 10
    database.close()
