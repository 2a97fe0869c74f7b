"""Transfers are run by the hub: it takes up what other processes have left, and leaves its own to the next one."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.local.store.database import STATE_FILE, Database
from remote_sandbox_mcp.local.store.transfers import Ledger, Transfer
from tests.support.hub_desk import Desk, desk_in
from tests.support.hub_place import Place
from tests.support.line import ThreadedLine
from tests.support.server import Wire, entry
from tests.support.sshd import Sshd, wait_until

MIB = 1 << 20
# What is larger goes on in the background.
SMALL = {"REMOTE_SANDBOX_INLINE_SYNC_MAX_BYTES": str(MIB)}
NO_HUB = {"REMOTE_SANDBOX_NO_HUB": "1"}
SECRET = "not-to-be-seen-anywhere"
# Of a client that has a secret in its environment, which no process and no file may show.
SECRETIVE = SMALL | {"REMOTE_PASSWORD": SECRET}


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with desk_in(tmp_path) as desk:
        yield desk


@pytest.fixture
def ledger(desk: Desk) -> Iterator[Ledger]:
    database = Database(desk.state / STATE_FILE)
    yield Ledger(database)
    database.close()


@pytest.fixture
def line(machine: Sshd) -> Iterator[ThreadedLine]:
    with ThreadedLine(machine.port, rtt_s=0.02) as line:
        yield line


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    file = tmp_path / "large"
    file.write_bytes(os.urandom(MIB) * 16)
    return file


@pytest.fixture
def there(machine: Sshd, request: pytest.FixtureRequest) -> Iterator[Path]:
    folder = machine.home / request.node.originalname[:60]
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def begin(client: Wire, line: ThreadedLine, ours: Path, there: Path, ledger: Ledger) -> Transfer:
    """A transfer that has begun and cannot go on."""
    client.initialize()
    client.call("exec_bash", command="true")
    client.start_call("sync_local_to_remote", local_path=str(ours), remote_path=f"{there.name}/large")
    wait_until(lambda: ledger.latest(1), what="the transfer to begin", seconds=20)
    line.freeze()
    (begun,) = ledger.latest(2)
    assert not begun.is_over
    return begun


def check_done(ledger: Ledger, begun: Transfer, ours: Path, there: Path, *, by: int) -> None:
    wait_until(lambda: (row := ledger.get(begun.id)) and row.is_over, what="its end", seconds=40)
    row = ledger.get(begun.id)
    assert row
    assert (row.status, row.pid, row.error) == ("completed", by, "")
    assert (there / "large").read_bytes() == ours.read_bytes()


def taken_up(ledger: Ledger, begun: Transfer) -> int:
    """The process that has taken it up."""
    wait_until(lambda: (row := ledger.get(begun.id)) and row.pid != begun.pid, what="another process", seconds=20)
    row = ledger.get(begun.id)
    assert row
    return row.pid


def shown_by(pid: int) -> bytes:
    return b"".join(Path(f"/proc/{pid}/{what}").read_bytes() for what in ("cmdline", "environ"))


# A call that is cancelled


def test_the_transfer_of_a_cancelled_call_is_listed_and_can_be_ended(
    desk: Desk, ledger: Ledger, machine: Sshd, line: ThreadedLine, ours: Path, there: Path
) -> None:
    with desk.client(entry(machine, port=line.port), **SMALL) as client:
        begun = begin(client, line, ours, there, ledger)
        number = client._number
        client.send("notifications/cancelled", {"requestId": number}, answered=False)
        line.thaw()
        (listed,) = client.call("check_file_transfer_task")["structuredContent"]["tasks"]
        assert listed["task_id"] == begun.number
        ended = client.call("cancel_file_transfer_task", task_id=begun.id)["structuredContent"]
        assert ended["status"] in ("cancelled", "completed")


# A server without a hub


def test_a_server_that_ends_leaves_its_transfer_to_the_hub(
    desk: Desk, ledger: Ledger, machine: Sshd, line: ThreadedLine, ours: Path, there: Path
) -> None:
    with desk.client(entry(machine, port=line.port), forks_hubs=False, **SECRETIVE, **NO_HUB) as client:
        begun = begin(client, line, ours, there, ledger)
        assert (begun.pid, desk.hub) == (client.process.pid, 0)
        seconds, code, _ = client.leave(None)
        assert (code, seconds < 5) == (0, True)
    hub = taken_up(ledger, begun)
    assert desk.hub == hub
    assert desk.status()["needs"] == [f"the transfer {begun.number} runs"]
    assert SECRET.encode() not in shown_by(hub)
    line.thaw()
    check_done(ledger, begun, ours, there, by=hub)
    # It stays no longer than it is needed.
    desk.until_gone(hub)
    written = [file for file in desk.state.rglob("*") if file.is_file()]
    assert not [file for file in written if SECRET.encode() in file.read_bytes()]


def test_a_running_hub_continues_the_transfer_of_an_unknown_client(
    desk: Desk, ledger: Ledger, machine: Sshd, line: ThreadedLine, ours: Path, there: Path
) -> None:
    with desk.client() as other:
        other.initialize()
        assert not other.call("list_sandboxes").get("isError")
        hub = desk.hub
        with desk.client(entry(machine, port=line.port), **SMALL, **NO_HUB) as client:
            begun = begin(client, line, ours, there, ledger)
            client.leave(None)
        line.thaw()
        check_done(ledger, begun, ours, there, by=hub)
        # Its machines are none of the other client's.
        assert machine.name not in json.dumps(other.call("list_sandboxes"))


def test_without_a_hub_the_next_server_continues_the_transfer(
    desk: Desk, ledger: Ledger, machine: Sshd, line: ThreadedLine, ours: Path, there: Path
) -> None:
    # Others could get at it: no hub is started there.
    (desk.state / "hub").mkdir()
    (desk.state / "hub").chmod(0o770)
    with desk.client(entry(machine, port=line.port), **SMALL) as client:
        begun = begin(client, line, ours, there, ledger)
        client.leave(None)
        assert "transfers wait for the next client: no hub goes on with them" in client.stderr
    line.thaw()
    with desk.client(entry(machine, port=line.port), **SMALL) as second:
        second.initialize()
        # Nobody asks after it.
        check_done(ledger, begun, ours, there, by=second.process.pid)


def test_a_client_with_another_machine_of_that_name_does_not_continue_it(
    desk: Desk, ledger: Ledger, machine: Sshd, line: ThreadedLine, ours: Path, there: Path
) -> None:
    with desk.client(entry(machine, port=line.port), **SMALL, **NO_HUB) as client:
        begun = begin(client, line, ours, there, ledger)
        client.process.kill()
        client.process.wait()
    line.thaw()
    with desk.client(entry(machine), **SMALL) as other:
        other.initialize()
        told = other.call("check_file_transfer_task", task_id=begun.id, wait_s=1)["structuredContent"]
        assert (told["status"], told["stale"]) == ("running", True)
        assert not (there / "large").exists()
        # Any may end it.
        assert other.call("cancel_file_transfer_task", task_id=begun.id)["structuredContent"]["status"] == "cancelled"


# The hub itself


@pytest.mark.parametrize("is_answered", [True, False], ids=["its call is answered", "its call is made again"])
def test_a_hub_that_replaces_another_continues_its_transfers(
    desk: Desk, ledger: Ledger, machine: Sshd, line: ThreadedLine, ours: Path, there: Path, is_answered: bool
) -> None:
    with desk.client(entry(machine, port=line.port), forks_hubs=is_answered, **SECRETIVE) as client:
        begun = begin(client, line, ours, there, ledger)
        assert begun.pid == desk.hub
        if is_answered:
            assert client.receive()["result"]["structuredContent"]["task_id"] == begun.number
        os.kill(begun.pid, signal.SIGKILL)
        # Also where the machine does not answer just now.
        hub = taken_up(ledger, begun)
        if not is_answered:
            assert client.receive()["result"]["structuredContent"]["task_id"] == begun.number
        # What is forked shows what its parent was started with.
        assert is_answered or SECRET.encode() not in shown_by(hub)
        line.thaw()
        check_done(ledger, begun, ours, there, by=hub)
        assert desk.hub == hub


def test_transfers_of_a_stopped_hub_wait_for_the_next_client(
    desk: Desk, ledger: Ledger, machine: Sshd, line: ThreadedLine, ours: Path, there: Path
) -> None:
    with desk.client(entry(machine, port=line.port), **SMALL) as client:
        begun = begin(client, line, ours, there, ledger)
        client.leave(None)
    code, said, _ = desk("hub", "stop")
    assert (code, said.splitlines()[0]) == (
        0,
        f"Ends with it, or waits for the next hub: the transfer {begun.number} runs.",
    )
    line.thaw()
    assert desk("transfers", "list")[1].splitlines()[1].split()[:2] == [str(begun.number), "stale"]
    with desk.client(entry(machine, port=line.port), **SMALL) as second:
        second.initialize()
        second.call("check_file_transfer_task", task_id=begun.id, wait_s=20)
        check_done(ledger, begun, ours, there, by=desk.hub)


def written_config(place: Place, machine: Sshd, port: int) -> Path:
    fields: dict[str, Any] = entry(machine, port=port)
    rows = [f"{name} = {json.dumps(value)}" for name, value in fields.items() if name != "name"]
    return place.write("\n".join(["[local]", "enabled = false", f"[machines.{machine.name}]", *rows, ""]))


def test_a_restarted_hub_continues_transfers_of_configured_machines(
    desk: Desk, ledger: Ledger, machine: Sshd, line: ThreadedLine, ours: Path, there: Path
) -> None:
    place = Place(desk.home)
    config = written_config(place, machine, line.port)
    with place.front(env=SMALL) as client:
        begun = begin(client, line, ours, there, ledger)
        client.leave(None)
    code, _, complained = desk("--config", str(config), "hub", "restart")
    assert (code, complained) == (0, "")
    line.thaw()
    check_done(ledger, begun, ours, there, by=desk.hub)


def test_a_service_continues_transfers_when_it_starts(
    desk: Desk, ledger: Ledger, machine: Sshd, line: ThreadedLine, ours: Path, there: Path
) -> None:
    place = Place(desk.home)
    config = written_config(place, machine, line.port)
    with place.front(env=SMALL) as client:
        begun = begin(client, line, ours, there, ledger)
        client.process.kill()
        client.process.wait()
    os.kill(begun.pid, signal.SIGKILL)
    desk.until_gone(begun.pid)
    line.thaw()
    service = desk.start("--config", str(config), "watchdog", "run")
    check_done(ledger, begun, ours, there, by=service.pid)
