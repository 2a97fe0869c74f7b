from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from remote_sandbox_mcp.core.sync.transfer import Headway, Order, Outcome, Place
from remote_sandbox_mcp.local.store.database import Database
from remote_sandbox_mcp.local.store.transfers import Ledger, Transfer, TransferEnd, id_of
from tests.cli.conftest import Cli, at_a_terminal, entry
from tests.support.line import ThreadedLine
from tests.support.sshd import Sshd, wait_until


@pytest.fixture
def ledger(clean_environment: Path) -> Iterator[Ledger]:
    """The rows; no process of theirs outlives the test."""
    state = clean_environment / "remote-sandbox-mcp"
    state.mkdir()
    ledger = Ledger(Database(state / "state.db"))
    yield ledger
    for transfer in ledger.latest(100):
        if transfer.pid and not transfer.is_over:
            os.kill(transfer.pid, signal.SIGKILL)
    ledger.database.close()


@pytest.fixture
def stuck(cli: Cli, good: Sshd, ledger: Ledger, tmp_path: Path) -> Iterator[str]:
    """A transfer that runs, but does not come forward."""
    with ThreadedLine(good.port) as line:
        line.freeze()
        cli.machines = [entry(good, port=line.port)]
        task_id = cli("push", str(tmp_path), "stuck", "--background", "--json").json["task_id"]
        wait_until(lambda: (row := ledger.get(id_of(task_id))) and row.headway, what="the hub to say something")
        yield str(task_id)
        cli("transfers", "cancel", str(task_id))


def test_what_was_begun_in_the_background_is_waited_for_and_told_of(cli: Cli, good: Sshd, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("hello\n")
    begun = cli("push", str(tmp_path), "waited", "--background")
    first, how = begun.stdout.splitlines()[:2]
    task_id = first.split()[0]
    assert first == f"{task_id}  {tmp_path} -> shared:waited, in the background"
    assert f"remote-sandbox-mcp transfers wait {task_id}" in how
    waited = cli("transfers", "wait", task_id)
    assert (waited.code, waited.stderr) == (0, "")
    assert waited.stdout.startswith("Sent 1 file (6 bytes) to shared:waited in ")
    assert (good.home / "waited/note.txt").read_text() == "hello\n"

    header, row = cli("transfers").stdout.splitlines()
    assert header.split() == ["id", "status", "done", "rate", "age", "from", "->", "to"]
    assert row.split()[:4] == [task_id, "completed", "6", "bytes"]
    assert row.endswith(f"{tmp_path} -> shared:waited")
    shown = cli("transfers", "show", task_id).stdout
    assert "completed" in shown
    assert "Sent 1 file (6 bytes) to shared:waited in " in shown
    log = cli("transfers", "log", task_id).stdout
    assert f" queued: {tmp_path} -> shared:waited\n" in log
    assert " completed in " in log.splitlines()[-1]


def test_one_that_is_over_shows_no_rate(cli: Cli, good: Sshd, ledger: Ledger) -> None:
    order = Order(source=Place("", "/data", True), target=Place("shared", "copied"))
    now = time.time()
    ledger.add(Transfer(id="tr-1", order=order, status="running", log_file="", created=now, updated=now))
    outcome = Outcome(synced_type="folder", sent_files=1, bytes=5_000_000, seconds=2.0)
    assert ledger.end("tr-1", TransferEnd("completed", outcome), Headway("done", 1, 1, 5_000_000, 5_000_000, 2.5e6))
    row = cli("transfers").stdout.splitlines()[1]
    assert row.split()[:2] == ["1", "completed"]
    assert "/s" not in row.partition("/data")[0]


def test_json_is_what_the_tool_returns_with_both_ends(cli: Cli, good: Sshd, tmp_path: Path) -> None:
    task_id = cli("push", str(tmp_path), "told", "--background", "--json").json["task_id"]
    told = cli("transfers", "wait", str(task_id), "--json").json
    assert (told["task_id"], told["status"], told["result"]["uploaded_files"]) == (task_id, "completed", 0)
    assert (told["source"], told["target"]) == (str(tmp_path), "shared:told")
    assert "queued: " in told.pop("log_tail")
    assert cli("transfers", "--json").json == {"transfers": [told]}


def test_one_that_runs_is_listed_and_cancelled(cli: Cli, stuck: str) -> None:
    (row,) = cli("transfers", "list").stdout.splitlines()[1:]
    assert row.split()[:3] == [stuck, "running", "scanning"]
    first, second = cli("transfers", "cancel", stuck), cli("transfers", "cancel", stuck)
    assert (first.code, first.stdout) == (
        0,
        f"{stuck} cancelled; what has arrived stays, all else is as it was\n",
    )
    assert (second.code, second.stdout) == (0, f"{stuck} was over already: cancelled\n")
    waited = cli("transfers", "wait", stuck)
    assert (waited.code, waited.stderr) == (1, f"remote-sandbox-mcp: {stuck} was cancelled\n")


def test_a_signal_ends_only_the_waiting(cli: Cli, stuck: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    # In its own process it can be seen from outside when it waits.
    monkeypatch.setenv("REMOTE_SANDBOX_NO_HUB", "1")
    process = cli.start("transfers", "wait", stuck)
    wait_until(lambda: handles(process.pid, signal.SIGTERM), what="it to wait")
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=10)
    assert process.returncode == 128 + signal.SIGTERM
    told = f"remote-sandbox-mcp: {stuck} goes on; remote-sandbox-mcp transfers cancel {stuck} ends it\n"
    assert stderr.decode() == told
    row = ledger.get(id_of(stuck))
    assert row is not None
    assert row.status == "running"


def handles(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for the signal."""
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(status["SigCgt"], 16) >> (number - 1) & 1)


def test_one_whose_process_was_killed_is_stale(cli: Cli, stuck: str, ledger: Ledger) -> None:
    row = ledger.get(id_of(stuck))
    assert row is not None
    os.kill(row.pid, signal.SIGKILL)
    waited = cli("transfers", "wait", stuck)
    assert waited.code == 1
    assert waited.stderr == (
        f"remote-sandbox-mcp: {stuck} is stale: no process runs it; it goes on with the next client of the same "
        "configuration, or push or pull it again\n"
    )
    assert cli("transfers").stdout.splitlines()[1].split()[:2] == [stuck, "stale"]


def test_where_no_hub_can_be_had_it_is_told_and_not_begun(cli: Cli, good: Sshd, ledger: Ledger, tmp_path: Path) -> None:
    folder = Path(os.environ["REMOTE_SANDBOX_MCP_HOME"]) / "hub"
    folder.mkdir()
    folder.chmod(0o770)
    told = cli("push", str(tmp_path), "never", "--background")
    why = f"unable to leave it to the hub: {folder} is not a folder of this user's alone"
    assert (told.code, told.stderr) == (1, f"remote-sandbox-mcp: {why}\n")
    (row,) = ledger.latest(2)
    assert (row.status, row.error) == ("failed", why)
    assert not (good.home / "never").exists()


def test_a_terminal_is_shown_how_far_it_is(cli: Cli, good: Sshd, tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(os.urandom(2 << 20))
    with ThreadedLine(good.port, rtt_s=0.05) as line, ThreadPoolExecutor(1) as beside:
        cli.machines = [entry(good, port=line.port)]
        # It stands still until somebody looks on.
        line.freeze()
        task_id = cli("push", str(tmp_path), "shown", "--background", "--json").json["task_id"]
        begun: list[int] = []
        waiting = beside.submit(at_a_terminal, cli, "transfers", "wait", str(task_id), begun=begun.append)
        try:
            wait_until(lambda: any(handles(pid, signal.SIGTERM) for pid in begun), what="it to wait", seconds=30)
        finally:
            line.thaw()
        seen = waiting.result()
    # Whether it still scans when the first look is taken is a matter of milliseconds.
    assert "scanning" in seen or "sending" in seen
    assert "Sent 1 file (2.1 MB) to shared:shown in " in "".join(seen.split("\r\n")[-3:])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        pytest.param(["show", "tr-0"], "no transfer has the id 'tr-0'; there is none yet", id="show"),
        pytest.param(["cancel", "tr-0"], "no transfer has the id 'tr-0'", id="cancel"),
        pytest.param(["wait"], "whose? remote-sandbox-mcp transfers wait ID", id="no id"),
        pytest.param(["--limit", "0"], "--limit is 0, but must be between 1 and", id="limit"),
    ],
)
def test_mistakes_are_one_sentence_and_2(cli: Cli, words: list[str], sentence: str) -> None:
    outcome = cli("transfers", *words)
    assert (outcome.code, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith(f"remote-sandbox-mcp: {sentence}")


def test_where_there_are_none_the_way_to_one_is_told(cli: Cli) -> None:
    assert "--background" in cli("transfers").stdout
