"""A state file that cannot be used: the error says why and what to do, and what need not survive goes on in memory."""

from __future__ import annotations

import json
import logging
import os
import resource
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from remote_sandbox_mcp.local.store import database as module
from remote_sandbox_mcp.local.store.database import Database
from remote_sandbox_mcp.local.store.history import CallRow, HistoryRows, WantedCalls
from remote_sandbox_mcp.local.store.jobs import RunRecord, RunRecords, added
from remote_sandbox_mcp.local.store.repair import find_trouble, repair
from remote_sandbox_mcp.local.store.sessions import CallRows
from remote_sandbox_mcp.local.store.trouble import StateError, outage_of
from tests.support.root import as_root, run_as_root

CALL = CallRow(tool="exec_bash", outcome="done", begun=1e12, seconds=1.0)
HOLD = "import sqlite3, sys\nc = sqlite3.connect(sys.argv[1], isolation_level=None)\nc.execute('BEGIN EXCLUSIVE')\n"
HOLD += "print('held', flush=True)\nsys.stdin.read()\n"
TRY = """
import json, resource, sys
from pathlib import Path
from remote_sandbox_mcp.local.store.database import Database
from remote_sandbox_mcp.local.store.history import CallRow, HistoryRows, WantedCalls
from remote_sandbox_mcp.local.store.trouble import StateError
rows = HistoryRows(Database(Path(sys.argv[1])))
if sys.argv[2:] == ["nobody"]:
    import os, sqlite3
    from remote_sandbox_mcp.local.store.database import migrations, statements
    statements("history"), migrations("migrations")
    os.setgroups([]), os.setegid(65534), os.seteuid(65534)
elif len(sys.argv) > 2:
    import sqlite3, importlib.resources
    from remote_sandbox_mcp.local.store.database import migrations, statements
    statements("history"), migrations("migrations")
    soft = len(__import__("os").listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, soft - 1))
rows.write([CallRow(tool="exec_bash", outcome="done", begun=1e12, seconds=1.0)], 30)
kept = len(rows.newest(WantedCalls()))
try:
    with rows.database.writing():
        reason, text = "", ""
except StateError as problem:
    reason, text = problem.reason, str(problem)
print(json.dumps([kept, reason, text]))
"""


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk of one megabyte; gives the file that fills it."""
    folder.mkdir(mode=0o700)
    run_as_root("mount", "-t", "tmpfs", "-o", f"size=1m,mode=0700,uid={os.getuid()}", "tmpfs", str(folder))
    try:
        yield folder / "filler"
    finally:
        subprocess.run(as_root("umount", "-l", str(folder)), check=False)


def fill(file: Path) -> None:
    with suppress(OSError), file.open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))


def warnings(log: pytest.LogCaptureFixture) -> list[str]:
    return [it.getMessage() for it in log.records if it.levelno == logging.WARNING and "Calls on sandboxes" in it.msg]


def strict_reason(database: Database) -> str:
    record = RunRecord(run_id="run-1", sandbox="a", place="a", command="true", created=1e12)
    with pytest.raises(StateError) as caught:
        RunRecords(database).write([added(record)])
    return caught.value.reason


def test_a_full_disk_keeps_history_in_memory_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with small_disk(tmp_path / "state") as filler:
        database = Database(tmp_path / "state" / "state.db")
        rows = HistoryRows(database)
        rows.write([CALL], 30)
        fill(filler)
        for _ in range(3):
            rows.write([CALL], 30)
        assert len(rows.newest(WantedCalls())) == 4
        # What others rely on is refused, not kept where nobody finds it.
        assert strict_reason(database) == "full"
        (told,) = warnings(caplog)
        assert "its disk is full; free some space" in told
        assert "may be made twice" in told
        filler.unlink()
        RunRecords(database).write([added(RunRecord(run_id="r", sandbox="a", place="a", command="true", created=1.0))])
        assert outage_of(database.file) is None
        rows.write([CALL], 30)
        assert len(rows.newest(WantedCalls())) == 2
        database.close()


def test_a_disk_that_was_always_full_has_no_file_and_works_too(tmp_path: Path) -> None:
    with small_disk(tmp_path / "state") as filler:
        fill(filler)
        rows = HistoryRows(Database(tmp_path / "state" / "state.db"))
        rows.write([CALL], 30)
        assert len(rows.newest(WantedCalls())) == 1
        assert strict_reason(rows.database) == "full"


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
@pytest.mark.parametrize("kind", ["mode", "mount"])
def test_a_folder_that_cannot_be_written(tmp_path: Path, kind: str) -> None:
    with small_disk(tmp_path / "state"):
        state = tmp_path / "state"
        rows = HistoryRows(Database(state / "state.db"))
        rows.write([CALL], 30)
        rows.database.close()
        (state / "state.db").chmod(0o644)
        os.chmod(state, 0o555)
        for folder in (tmp_path, *tmp_path.parents[:-1]):
            folder.chmod(folder.stat().st_mode | 0o711)
        if kind == "mount":
            run_as_root("mount", "-o", "remount,ro", str(state))
        words = [sys.executable, "-c", TRY, str(state / "state.db"), *(["nobody"] if kind == "mode" else [])]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    kept, reason, text = json.loads(done.stdout)
    assert (kept > 0, reason) == (True, "read_only"), done
    assert "this user cannot write there; make it writable, or set REMOTE_SANDBOX_MCP_HOME" in text


def test_no_descriptors_left(tmp_path: Path) -> None:
    words = [sys.executable, "-c", TRY, str(tmp_path / "state.db"), "few"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    kept, reason, text = json.loads(done.stdout)
    assert (kept, reason) == (1, "descriptors"), done
    assert "as many files open as it may" in text
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 0


def test_a_locked_file_is_waited_for_once_and_its_holder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "BUSY_S", 0.3)
    file = tmp_path / "state.db"
    HistoryRows(Database(file)).write([CALL], 30)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdin
    assert holder.stdout
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StateError) as caught:
            RunRecords(Database(file)).write([])
        assert caught.value.reason == "locked"
        assert f"process {holder.pid} keeps it locked" in str(caught.value)
        # Each of a call's other uses fails, or goes on in memory, at once.
        other = Database(file)
        with other.reading() as connection:
            assert connection.execute("PRAGMA busy_timeout").fetchone()[0] == 0
        assert strict_reason(other) == "locked"
        rows = HistoryRows(other)
        rows.write([CALL], 30)
        assert len(rows.newest(WantedCalls())) == 2
        assert len(warnings(caplog)) == 1
    finally:
        holder.stdin.close()
        holder.stdout.close()
        holder.wait(10)
    RunRecords(other).write([])
    with other.reading() as connection:
        assert connection.execute("PRAGMA busy_timeout").fetchone()[0] == 300


def test_a_file_that_is_no_database_is_called_damaged_and_nothing_else_is(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    file.write_bytes(b"this is no database, and never was one\n" * 100)
    rows = HistoryRows(Database(file))
    assert strict_reason(rows.database) == "damaged"
    rows.write([CALL], 30)
    assert len(rows.newest(WantedCalls())) == 1
    # Whether a call was made cannot be known then.
    with pytest.raises(StateError, match="doctor --repair"):
        CallRows(rows.database).get("call")


def test_a_repair_keeps_a_copy_and_saves_what_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    rows = HistoryRows(Database(file))
    rows.write([CALL] * 3000, 30)
    rows.database.close()
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'history'").fetchone()
    assert find_trouble(file) is None
    content = bytearray(file.read_bytes())
    middle = (len(content) // 4096 * 3 // 4) * 4096
    assert root < middle // 4096
    content[middle : middle + 8192] = b"x" * 8192
    file.write_bytes(content)
    problem = find_trouble(file)
    assert problem
    assert problem.reason == "damaged"
    assert "\n" not in str(problem)
    done = repair(file)
    assert done.copy
    assert b"x" * 8192 in done.copy.read_bytes()
    assert stat.S_IMODE(done.copy.stat().st_mode) == stat.S_IMODE(file.stat().st_mode) == 0o600
    again = HistoryRows(Database(file))
    assert 1000 < len(again.newest(WantedCalls(limit=5000))) < 3000
    again.database.close()
    assert find_trouble(file) is None
    assert sorted(it.name for it in tmp_path.iterdir() if "repaired" in it.name) == []
