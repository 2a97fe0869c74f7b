"""The database: private, brought up to date once however many open it, and refused where it is from the future."""

from __future__ import annotations

import json
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.core.errors import ConfigError
from remote_sandbox_mcp.core.jobs.watch import EventType, Resume, Status, Watch
from remote_sandbox_mcp.core.sandboxes.disposable import Disposable, Limits
from remote_sandbox_mcp.core.sync.transfer import Headway
from remote_sandbox_mcp.local.store.database import Database, migrations, statements
from remote_sandbox_mcp.local.store.disposables import DisposableRows, Owner
from remote_sandbox_mcp.local.store.history import HistoryRows, WantedCalls
from remote_sandbox_mcp.local.store.jobs import JobRecord, JobRecords, RunRecords
from remote_sandbox_mcp.local.store.sessions import CallRecord, CallRows
from remote_sandbox_mcp.local.store.transfers import Ledger
from remote_sandbox_mcp.local.store.watches import Heartbeat, Watches

OPEN_AND_WRITE = """
import sys
from contextlib import suppress
from pathlib import Path
from remote_sandbox_mcp.local.store.database import Database
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


def test_the_files_are_readable_by_their_owner_only(file: Path) -> None:
    file.touch(mode=0o644)
    database = Database(file)
    with database.writing():
        beside = [path for path in file.parent.iterdir() if path.is_file()]
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in beside}
    database.close()
    assert set(modes) >= {"state.db", "state.db-wal", "state.lock"}
    assert set(modes.values()) == {0o600}


def test_migrations_run_once_and_the_database_opens_again(file: Path) -> None:
    for _ in range(2):
        database = Database(file)
        assert Ledger(database).latest(1) == ()
        database.close()
    assert version(file) == len(migrations("migrations")) >= 1


def test_processes_can_open_a_new_database_at_the_same_time(file: Path) -> None:
    command = [sys.executable, "-c", OPEN_AND_WRITE, str(file)]
    started = [subprocess.Popen([*command, f"tr-{number}"], stdin=subprocess.PIPE) for number in range(4)]
    for process in started:
        assert process.stdin
        process.stdin.close()
    assert [process.wait(20) for process in started] == [0] * 4
    connection = sqlite3.connect(file)
    assert connection.execute("SELECT count(*) FROM transfers").fetchone() == (4,)
    connection.close()


def test_a_database_of_a_newer_version_is_refused_and_left_alone(file: Path) -> None:
    newer = len(migrations("migrations")) + 1
    connection = sqlite3.connect(file)
    connection.execute(f"PRAGMA user_version = {newer}")
    connection.close()
    with pytest.raises(ConfigError, match=rf"state\.db was written by a newer .*version is {newer}.*; update"):
        Ledger(Database(file)).latest(1)
    assert version(file) == newer


def test_a_file_that_is_no_database_is_reported_in_a_sentence(file: Path) -> None:
    file.write_bytes(b"this is no database, and never was one\n" * 100)
    with pytest.raises(
        ConfigError, match=r"unable to use .*state\.db: it is damaged \(file is not a database\).*doctor --repair"
    ):
        Ledger(Database(file)).latest(1)


def test_a_missing_folder_is_reported_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unable to use .*state\.db: No such file"):
        Ledger(Database(tmp_path / "gone" / "state.db")).latest(1)


def test_an_exception_rolls_the_transaction_back(file: Path) -> None:
    database = Database(file)
    with suppress(KeyError), database.writing() as connection:
        connection.execute("INSERT INTO transfers (id, wanted, status, log_file, created, updated) "
                           "VALUES ('tr-1', '{}', 'queued', '', 0, 0)")  # fmt: skip
        raise KeyError
    assert Ledger(database).get("tr-1") is None
    database.close()


def reopened(file: Path, number: int) -> Database:
    shutil.copy(Path(__file__).with_name(f"state_{number}.db"), file)
    assert version(file) == number
    return Database(file)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_transfers_of_every_version_can_be_read(file: Path, number: int) -> None:
    database = reopened(file, number)
    done, running = Ledger(database).latest(10)
    database.close()
    assert version(file) == len(migrations("migrations"))
    assert (done.id, done.status, done.order.source.path) == ("tr-00000002", "completed", "/home/me/done")
    assert done.outcome
    assert (done.outcome.sent_files, done.outcome.problems[0].reason) == (2, "permission denied")
    assert running.order.excludes == ("*.log",)
    assert running.headway == Headway("sending", 1, 3, 10, 30, 5.0, 4.0, "a")
    assert running.cancel_requested


def test_an_old_database_without_watches_accepts_them(file: Path) -> None:
    database = reopened(file, 1)
    watches, records = Watches(database), JobRecords(database)
    added = watches.add(Watch(sandbox="gpu1", session="train"))
    records.add(JobRecord(job_id="job-00000001", sandbox="gpu1", session="train", watch_id=added.id))
    assert (watches.list(), [record.watch_id for record in records.list()]) == ((added,), [added.id])
    database.close()
    assert version(file) >= 2


@pytest.mark.parametrize("number", [2, 3])
def test_watches_of_the_second_version_can_be_read(file: Path, number: int) -> None:
    database = reopened(file, number)
    watches = Watches(database)
    done, waiting = watches.list()
    assert (done.sandbox, done.status, done.last_exit_code) == ("gpu2", Status.COMPLETED, 3)
    assert (waiting.name, waiting.log_file, waiting.metadata) == ("resnet", "/home/me/train.log\udcff", {"paper": "x"})
    assert (waiting.interrupted_at, waiting.resume_attempts, waiting.last_checkpoint) == (200.0, 1, '{"step":7}')
    policy = waiting.policy
    assert (policy.interval_s, policy.resume_env, policy.hooks) == (60.0, {"STEP": "7"}, ("codex",))
    interrupted, completed = watches.events()
    assert (interrupted.type, interrupted.payload) == (EventType.INTERRUPTED, {"reason": "gone", "rebooted": True})
    assert (completed.watch_id, completed.summary) == (2, "eval on gpu2 has ended with exit code 3")
    assert watches.last_beat() == Heartbeat(4321, 300.0)
    database.close()


def test_disposables_of_the_third_version_can_be_read(file: Path) -> None:
    database = reopened(file, 3)
    rows = DisposableRows(database)
    web, making, ready = rows.living()
    assert web.disposable == Disposable(
        id="sb-00000000000a",
        provider="opensandbox",
        key="k-1",
        name="web",
        image="python:3.12\udcff",
        created=100.0,
        expires=700.0,
        limits=Limits(cpu=1.5, memory_mb=512, told=("memory: cgroup",)),
        network=True,
        notes=("one",),
    )
    assert (web.timeout_s, web.owner, web.idle_since, web.ended) == (600.0, Owner(4321, "777"), 150.0, 0.0)
    assert (making.disposable.status, ready.pool) == ("creating", "image:node")
    over = rows.find("web2")
    assert over
    assert (over.disposable.status, over.why, over.ended) == ("gone", "was deleted", 160.0)
    database.close()


def test_pending_effects_of_the_second_version_are_carried_out(file: Path) -> None:
    database = reopened(file, 2)
    watches = Watches(database)
    told = [(effect.watch_id, effect.channel) for effect in watches.pending(400.0) if not effect.resume]
    assert told == [(1, "webhook"), (1, "hook:codex"), (2, "file"), (2, "desktop")]
    resumes = [effect.resume for effect in watches.pending(400.0) if effect.resume]
    assert resumes == [Resume("job-0123456789abcdef-r1", "job-0123456789abcdef")]
    ended, gone = JobRecords(database).list()
    assert (ended.session, ended.state, ended.exit_code, ended.ended) == ("eval", "ended", 3, 205.5)
    assert (gone.session, gone.state, gone.via, gone.command) == ("train", "gone", "tmux", "python train.py")
    database.close()


@pytest.mark.parametrize("number", [2, 3])
def test_jobs_of_versions_without_apps_are_not_apps(file: Path, number: int) -> None:
    database = reopened(file, number)
    records = JobRecords(database)
    assert (records.apps(), {record.app for record in records.list()}) == ((), {None})
    database.close()


def test_texts_of_a_version_that_kept_them_as_they_were_are_kept_without_secrets(file: Path) -> None:
    again = "HF_TOKEN=open-sesame python train.py"
    wanted: dict[str, Any] = {"run_id": "", "name": "n", "log_file": "", "cwd": "", "command": again}
    wanted["metadata"] = {"api_key": "sesame"}
    wanted["policy"] = {"resume_command": again, "resume_env": {"A_TOKEN": "sesame"}, "hooks": [], "webhook_url": ""}
    told = "on fake: redis-cli -a sesame"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript("".join(migrations("migrations")[:11]))
        connection.execute("PRAGMA user_version = 11")
        for number, status in enumerate(("active", "completed"), 1):
            watch = (
                number,
                "gpu1",
                "t",
                json.dumps(wanted),
                "job-1",
                status,
                told,
                told,
                f"PASSWORD=sesame {'x' * 99}",
            )
            rest = "60, ?, ?, 's', ?, ?, NULL, ?, '', 0, 0, 0, 0, 1, 1, 1, 1"
            connection.execute(f"INSERT INTO watches VALUES (?, 0, ?, ?, ?, {rest})", watch)
        job = json.dumps({"log_file": "l", "cwd": "c", "command": again})
        connection.execute("INSERT INTO jobs VALUES ('job-1', 'gpu1', 't', ?, '', 1, 'ended', 0, '', 2, 1)", (job,))
        run = (f"run {again}", "exit 0", f"token: sesame\n{'y' * 5000}")
        connection.execute("INSERT INTO runs VALUES ('run-1', 'gpu1', 'p', ?, 1, 'ended', 0, 0, ?, 1, ?)", run)
        payload = json.dumps({"last_line": "export API_KEY=sesame"})
        connection.execute("INSERT INTO events VALUES (1, 1, 'completed', ?, ?, 1)", (told, payload))
        call = (json.dumps({"command": "redis-cli -a sesame"}), told)
        rest = "'f', 'x', 'gpu1', 'exec_bash', ?, 'done', 0, ?, 9, 9e9"
        connection.execute(f"INSERT INTO history VALUES (1, 1, 1, 'c', 'v', 's', {rest})", call)
        connection.execute("INSERT INTO calls VALUES ('c', 'run_tests', 1, ?)", (json.dumps({"log": told}),))
        connection.execute("INSERT INTO calls VALUES ('d', 'run_tests', 1, NULL)")
        connection.commit()
    database = Database(file)
    watches = Watches(database)
    over, active = watches.list()
    assert (active.policy.resume_command, active.policy.resume_env) == (again, {"A_TOKEN": "sesame"})
    assert (over.policy.resume_command, over.command) == ("HF_TOKEN=[hidden] python train.py",) * 2
    (record,), (run_record,) = JobRecords(database).list(), RunRecords(database).latest("p", 9)
    assert (record.command, record.cwd, run_record.command) == (over.command, "c", f"run {over.command}")
    (kept,) = HistoryRows(database).newest(WantedCalls())
    assert kept.arguments == {"command": "redis-cli -a [hidden]"}
    assert CallRows(database).get("d") == CallRecord("d", "run_tests")
    search = ["grep", "-rla", "sesame", str(file.parent)]
    # By another process: to close a file of a database that is open here would drop its locks.
    assert subprocess.run(search, capture_output=True, text=True).stdout.split() == [
        str(file.parent / "again" / "1.json")
    ]
    assert watches.cancel(1)
    database.close()
    assert subprocess.run(search, capture_output=True).stdout == b""


@pytest.mark.parametrize(
    "name", ["transfers", "chunks", "watches", "jobs", "disposables", "runs", "kept_sessions", "history"]
)
def test_every_statement_has_a_name_and_one_end(name: str) -> None:
    found = statements(name)
    assert all(sqlite3.complete_statement(statement) for statement in found.values())
    assert all(statement.count(";") == 1 for statement in found.values())


def test_sqlite_is_not_loaded_before_it_is_needed() -> None:
    modules = "sys, remote_sandbox_mcp.services.transfers.background, remote_sandbox_mcp.local.store.chunks, "
    modules += "remote_sandbox_mcp.services.jobs.supervise, remote_sandbox_mcp.services.disposable.verbs"
    program = f"import {modules}; print('sqlite3' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"
