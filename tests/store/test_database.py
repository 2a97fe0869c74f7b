"""The database: private, brought up to date once however many open it, and refused where it is from the future."""

from __future__ import annotations

import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from remote_sandbox_mcp.core.errors import ConfigError
from remote_sandbox_mcp.core.transfer import Headway
from remote_sandbox_mcp.store.database import Database
from remote_sandbox_mcp.store.sql import migrations, statements
from remote_sandbox_mcp.store.transfers import Ledger

OPEN_AND_WRITE = """
import sys
from contextlib import suppress
from pathlib import Path
from remote_sandbox_mcp.store.database import Database
database = Database(Path(sys.argv[1]))
sys.stdin.read()
with database.writing() as connection:
    connection.execute("INSERT INTO transfers (id, wanted, status, log_file, created, updated) "
                       "VALUES (?, '{}', 'queued', '', 0, 0)", (sys.argv[2],))
database.close()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


def version(file: Path) -> int:
    connection = sqlite3.connect(file)
    try:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])
    finally:
        connection.close()


def test_it_is_for_the_owner_alone(file: Path) -> None:
    file.touch(mode=0o644)
    database = Database(file)
    with database.writing():
        beside = [path for path in file.parent.iterdir() if path.is_file()]
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in beside}
    database.close()
    assert set(modes) >= {"state.db", "state.db-wal", "state.lock"}
    assert set(modes.values()) == {0o600}


def test_it_is_brought_up_to_date_once_and_opens_again(file: Path) -> None:
    for _ in range(2):
        database = Database(file)
        assert Ledger(database).latest(1) == ()
        database.close()
    assert version(file) == len(migrations("migrations")) >= 1


def test_processes_that_open_it_at_the_same_time_do_not_hinder_each_other(file: Path) -> None:
    command = [sys.executable, "-c", OPEN_AND_WRITE, str(file)]
    started = [subprocess.Popen([*command, f"tr-{number}"], stdin=subprocess.PIPE) for number in range(4)]
    for process in started:
        assert process.stdin
        process.stdin.close()
    assert [process.wait(20) for process in started] == [0] * 4
    connection = sqlite3.connect(file)
    assert connection.execute("SELECT count(*) FROM transfers").fetchone() == (4,)
    connection.close()


def test_one_of_a_newer_version_is_refused_and_left_alone(file: Path) -> None:
    newer = len(migrations("migrations")) + 1
    connection = sqlite3.connect(file)
    connection.execute(f"PRAGMA user_version = {newer}")
    connection.close()
    with pytest.raises(ConfigError, match=rf"state\.db was written by a newer .*version is {newer}.*; update"):
        Ledger(Database(file)).latest(1)
    assert version(file) == newer


def test_one_that_is_no_database_is_told_in_a_sentence(file: Path) -> None:
    file.write_bytes(b"this is no database, and never was one\n" * 100)
    with pytest.raises(ConfigError, match=r"unable to use .*state\.db: file is not a database.*move that file away"):
        Ledger(Database(file)).latest(1)


def test_a_folder_that_is_not_there_is_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unable to open .*state\.db: No such file"):
        Ledger(Database(tmp_path / "gone" / "state.db")).latest(1)


def test_what_an_exception_leaves_is_undone(file: Path) -> None:
    database = Database(file)
    with suppress(KeyError), database.writing() as connection:
        connection.execute("INSERT INTO transfers (id, wanted, status, log_file, created, updated) "
                           "VALUES ('tr-1', '{}', 'queued', '', 0, 0)")  # fmt: skip
        raise KeyError
    assert Ledger(database).get("tr-1") is None
    database.close()


def test_a_database_of_the_first_version_opens_for_ever(file: Path) -> None:
    shutil.copy(Path(__file__).with_name("state_1.db"), file)
    database = Database(file)
    done, running = Ledger(database).latest(10)
    database.close()
    assert (done.id, done.status, done.order.source.path) == ("tr-00000002", "completed", "/home/me/done")
    assert done.outcome
    assert (done.outcome.sent_files, done.outcome.problems[0].reason) == (2, "permission denied")
    assert running.order.excludes == ("*.log",)
    assert running.headway == Headway("sending", 1, 3, 10, 30, 5.0, 4.0, "a")
    assert running.cancel_requested


@pytest.mark.parametrize("name", ["transfers", "chunks"])
def test_every_statement_has_a_name_and_one_end(name: str) -> None:
    found = statements(name)
    assert all(sqlite3.complete_statement(statement) for statement in found.values())
    assert all(statement.count(";") == 1 for statement in found.values())


def test_sqlite_is_not_loaded_before_it_is_needed() -> None:
    modules = "sys, remote_sandbox_mcp.tasks.transfers, remote_sandbox_mcp.store.chunks"
    program = f"import {modules}; print('sqlite3' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"
