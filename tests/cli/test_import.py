"""`import` and `daemon`: the command on a home that 0.x has used; with 0.7.6 itself where the package index answers."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.config import paths
from remote_sandbox_mcp.local.store.database import STATE_FILE, Database
from remote_sandbox_mcp.local.store.watches import Watches
from tests.cli.conftest import Cli, entry
from tests.support.original import PASSPHRASE, PASSWORD, Original, install_once, lay_out, statuses
from tests.support.sshd import Sshd, wait_until

# Generous: an import starts a hub, and this machine may be busy.
LONG_S = 120.0
# The package is installed first.
pytestmark = pytest.mark.timeout(400)
# In a shell of its own: after a plain `exit`, the original's script writes no exit code.
JOB = "sh -c 'until [ -e go ]; do sleep 0.1; done; echo over; exit 3'"


@pytest.fixture(autouse=True)
def no_watch_outlives_its_test(cli: Cli) -> Iterator[None]:
    yield
    cli("hub", "stop", "--all")


@pytest.fixture
def state() -> Path:
    return paths.state_path()


@pytest.fixture
def database(state: Path) -> Path:
    return lay_out(state)


def test_it_is_shown_first_and_nothing_changes_without_a_yes(cli: Cli, database: Path) -> None:
    told = cli("import")
    assert told.code == 1
    for words in (
        "machine gpu1",
        "me@gpu1.example.org, with its password",
        "watch 5",
        "transfer 1",
        "Nothing was changed",
    ):
        assert words in told.stdout
    assert cli("import", "--dry-run").code == 0
    assert statuses(database)[5] == "active"
    assert not paths.config_file().exists()


def test_no_secret_is_told_or_written_where_others_look(cli: Cli, database: Path, state: Path) -> None:
    done = cli("import", "--yes", "--json")
    assert (done.code, done.json["done"], done.json["removed"]) == (0, True, [str(state / "config.json")])
    assert [it["name"] for it in done.json["found"] if it["kind"] == "watch"] == list("1234567")
    assert cli("doctor", "--json").json["problems"]
    assert cli("import", "--yes").stdout.startswith("Nothing is left to take over")
    assert "would be given back" in cli("import", "--undo", "--dry-run").stdout
    back = cli("import", "--undo")
    assert back.code == 0
    assert len(set(back.stdout.splitlines())) == len(back.stdout.splitlines())
    assert "7 watches and 2 transfers of 0.x are the original's again." in back.stdout
    assert json.loads((state / "config.json").read_text())["sandboxes"][0]["password"] == PASSWORD
    assert cli("import", "--undo").stdout == "Nothing was taken over that could be given back.\n"
    logs = [path.read_text(errors="replace") for path in state.rglob("*.log")]
    for secret in (PASSWORD, PASSPHRASE):
        assert not [text for text in (*cli.said, *logs) if secret in text]


def test_a_watchdog_that_may_still_run_keeps_its_watches(cli: Cli, database: Path, state: Path) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE daemon_meta SET updated_ts = ?", (int(time.time()),))
    done = cli("import", "--yes")
    assert done.code == 1
    assert "The watches were not taken over: the watchdog of 0.x gave a sign of life" in done.stdout
    assert statuses(database)[5] == "active"
    assert not (state / STATE_FILE).exists()
    # It needs the file.
    assert (state / "config.json").exists()
    assert "gpu1" in paths.config_file().read_text()
    assert any("has left watches in" in problem for problem in cli("doctor", "--json").json["problems"])


def test_a_list_of_machines_that_is_named_is_taken_from_there(cli: Cli, tmp_path: Path) -> None:
    machine = {"name": "gpu1", "host": "gpu1.example.org", "port": 22, "user": "me", "password": PASSWORD}
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"schema_version": 1, "saved_at": 1, "sandboxes": [machine]}))
    (problem,) = cli("--config", str(file), "doctor", "--json").json["problems"]
    assert f"in plain text in {file}, which do not count yet" in problem
    assert "run remote-sandbox-mcp import with the same --config" in problem
    assert cli("--config", str(file), "import", "--yes").code == 0
    assert "gpu1.example.org" in paths.config_file().read_text()
    assert not file.exists()
    assert cli("import", "--undo").code == 0
    assert json.loads(file.read_text())["sandboxes"][0]["password"] == PASSWORD


def test_a_foreign_folder_is_refused(cli: Cli, database: Path, state: Path, tmp_path: Path) -> None:
    state.rename(tmp_path / "elsewhere")
    state.symlink_to(tmp_path / "elsewhere")
    refused = cli("import", "--yes")
    assert refused.code == 2
    assert "is a link, so nothing is taken over from it" in refused.stderr


def test_the_old_daemon_ends_with_a_sentence(cli: Cli, database: Path) -> None:
    ended = cli("daemon", "--config", "x", "--db", str(database))
    assert ended.code == 0
    assert "a part of the hub now" in ended.stdout
    assert "remote-sandbox-mcp import" in ended.stderr


# With the original itself


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    return Original(install_once(tmp_path_factory))


def row(database: Path, number: int) -> dict[str, Any]:
    with closing(sqlite3.connect(database)) as connection:
        connection.row_factory = sqlite3.Row
        return dict(connection.execute("SELECT * FROM watches WHERE id = ?", (number,)).fetchone())


def ours(state: Path, number: int) -> Any:
    with closing(Database(state / STATE_FILE)) as opened:
        return Watches(opened).get(number)


def test_jobs_that_the_original_watched_are_watched_here_and_resumed_once(
    cli: Cli, original: Original, sshd: Sshd, state: Path
) -> None:
    listed = {"REMOTE_SANDBOX_LIST": json.dumps([entry(sshd)])}
    home, database = Path(sshd.home), state / "watchdog.sqlite3"
    live = original.call("exec_bash_background", listed, command=JOB, session_name="live", interval_s=1)
    again = "echo once >> resumed; sleep 0.5"
    lost = original.call(
        "exec_bash_background", listed, command="sleep 1000", session_name="lost", interval_s=1, auto_resume=True,
        resume_command=again, checkpoint_path="step", resume_delay_s=25, max_resume_attempts=1,
    )  # fmt: skip
    assert (live["watch_id"], lost["watch_id"]) == (1, 2)
    with original.daemon(state) as daemon:
        wait_until(lambda: row(database, 1)["last_state"] == "running", what="the old watchdog", seconds=LONG_S)
        assert original.call("exec_bash", listed, command="tmux kill-session -t lost")["exit_code"] == 0
        wait_until(lambda: row(database, 2)["interrupted_ts"] > 0, what="the interruption", seconds=LONG_S)
        done = cli("import", "--yes", "--json", REMOTE_SANDBOX_LIST="")
        assert (done.code, done.json["problems"]) == (0, [])
        assert f"process {daemon.pid}, is ended first" in [it["said"] for it in done.json["found"]]
        assert daemon.wait(LONG_S) is not None
    assert statuses(database) == {1: "imported", 2: "imported"}
    (home / "go").touch()
    wait_until(lambda: ours(state, 1).status.value == "completed", what="the end of the job", seconds=LONG_S)
    assert (ours(state, 1).last_exit_code, ours(state, 1).last_state) == (3, "failed")
    wait_until(lambda: ours(state, 2).status.value == "completed", what="the resumed job", seconds=LONG_S)
    assert ours(state, 2).resume_attempts == 1
    assert (home / "resumed").read_text() == "once\n"
    # With the old watchdog back, nothing is begun again.
    with original.daemon(state):
        before = last_scan(database)
        wait_until(lambda: last_scan(database) > before + 2, what="rounds of the old watchdog", seconds=LONG_S)
    assert (home / "resumed").read_text() == "once\n"


def test_an_old_watchdog_that_was_started_by_hand_is_named(cli: Cli, original: Original, state: Path) -> None:
    database = lay_out(state)
    before = last_scan(database) if has_scan(database) else 0
    with original.daemon(state, by_hand=True) as daemon:
        wait_until(lambda: has_scan(database) and last_scan(database) > before, what="its watchdog", seconds=LONG_S)
        done = cli("import", "--yes")
        assert done.code == 1
        assert f"kill {daemon.pid}" in done.stdout
        assert daemon.poll() is None
    assert statuses(database)[5] == "active"


def has_scan(database: Path) -> bool:
    with closing(sqlite3.connect(database)) as connection:
        return bool(connection.execute("SELECT count(*) FROM daemon_meta WHERE key = 'last_scan'").fetchone()[0])


def last_scan(database: Path) -> int:
    with closing(sqlite3.connect(database)) as connection:
        return int(connection.execute("SELECT updated_ts FROM daemon_meta WHERE key = 'last_scan'").fetchone()[0])


def test_the_state_folder_of_the_tests_is_what_the_original_makes(original: Original, tmp_path: Path) -> None:
    import subprocess

    from tests.support.original import HERE

    machines = json.loads((HERE / "config.json").read_text())["sandboxes"]
    env = {"HOME": str(tmp_path), "REMOTE_SANDBOX_MCP_HOME": str(tmp_path), "REMOTE_SANDBOX_LIST": json.dumps(machines)}
    subprocess.run([str(original.python), str(HERE / "make.py")], cwd=tmp_path, env=env, check=True, timeout=LONG_S)
    assert schema((tmp_path / "state.sql").read_text()) == schema((HERE / "state.sql").read_text())


def schema(text: str) -> list[str]:
    return text[: text.index("INSERT INTO")].splitlines()
