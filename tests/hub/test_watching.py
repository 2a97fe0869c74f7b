"""Watched jobs are looked after by the hub or by a service that is the hub: by who holds the lock."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from remote_sandbox_mcp.core.jobs.watch import Status, Watch
from remote_sandbox_mcp.hub.watching import HubWatchdog
from remote_sandbox_mcp.local.processes.locks import holder
from remote_sandbox_mcp.local.store.database import STATE_FILE, Database
from remote_sandbox_mcp.local.store.watches import Watches
from remote_sandbox_mcp.services.watchdog.daemon import LOCK_FILE, take_lock
from remote_sandbox_mcp.services.watchdog.service import until
from tests.support.hub_desk import Desk, desk_in
from tests.support.hub_place import done, logins
from tests.support.server import entry
from tests.support.sshd import Auth, Fleet, Sshd, wait_until

WAITING = "while ! [ -e go-on ]; do sleep 0.05; done; exit 3"


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with desk_in(tmp_path) as desk:
        yield desk


@pytest.fixture
def watches(desk: Desk) -> Iterator[Watches]:
    database = Database(desk.state / STATE_FILE)
    yield Watches(database)
    database.close()


# In the hub that a client has started


def test_the_hub_looks_after_a_job_as_long_as_it_runs_and_then_ends(desk: Desk, watches: Watches, sshd: Sshd) -> None:
    with desk.client(entry(sshd)) as client:
        client.initialize()
        job = client.call("exec_bash_background", command=WAITING, session_name="w", interval_s=1)
        assert not job.get("isError"), job
        hub = desk.hub
        # There is no second daemon.
        assert desk.watchdog == hub
        assert desk.status()["needs"] == ["it looks after 1 watched job"]
        client.leave(None)
    gone = time.time()
    # One that is idle ends here after a second.
    wait_until(lambda: (beat := watches.last_beat()) and beat.at > gone + 2.5, what="it to go on without a client")
    assert (desk.hub, desk.watchdog) == (hub, hub)
    watch = watches.get(job["structuredContent"]["watch_id"])
    assert watch
    (sshd.home / "go-on").touch()
    wait_until(lambda: (now := watches.get(watch.id)) and now.status is Status.COMPLETED, what="its end to be seen")
    desk.until_gone(hub)
    told = (desk.state / "hub/hub.log").read_text()
    assert "watching over" in told
    assert "watching no more: nothing to look after" in told
    assert not (desk.state / "watchdog.log").exists()
    (sshd.home / "go-on").unlink()


@pytest.mark.parametrize("auth", ["key", "password"])
def test_the_hub_looks_after_a_job_over_the_connection_of_the_session(
    desk: Desk, watches: Watches, fleet: Fleet, auth: Auth
) -> None:
    machine = fleet.machine(f"watched-{auth}", auth=auth)
    with desk.client(entry(machine)) as client:
        client.initialize()
        job = client.call("exec_bash_background", command=WAITING, session_name="o", interval_s=1)
        assert not job.get("isError"), job
        (machine.home / "go-on").touch()
        watch = job["structuredContent"]["watch_id"]
        wait_until(lambda: (now := watches.get(watch)) and now.status is Status.COMPLETED, what="its end to be seen")
        assert logins(machine) == 1
        # The watchdog has given the machine back, and the session goes on with it.
        wait_until(lambda: not desk.watchdog, what="the watchdog to let go")
        done(client.call("exec_bash", command="true"))
        assert logins(machine) == 1
    machine.reset()


def test_removing_the_watchdog_does_not_end_the_hub(desk: Desk, sshd: Sshd) -> None:
    with desk.client(entry(sshd)) as client:
        client.initialize()
        job = client.call("exec_bash_background", command=WAITING, session_name="r", interval_s=1)
        assert not job.get("isError"), job
        hub = desk.hub
        code, said, _ = desk("watchdog", "status")
        assert (code, said.splitlines()[0].split()) == (
            0,
            ["watchdog", "runs", "in", "the", "hub", "as", "process", str(hub)],
        )
        # There is nothing to install without a service manager.
        installed = desk("watchdog", "install")
        assert installed[1].startswith(f"The watchdog runs as part of the hub, process {hub}.\n")
        assert desk.watchdog == hub
        assert desk("watchdog", "remove")[0] == 0
        assert (desk.watchdog, desk.hub) == (0, hub)
        assert not client.call("list_sandboxes").get("isError")
        # The next job that is to be watched brings it back.
        client.call("exec_bash_background", command="true", session_name="s", interval_s=1)
        assert desk.watchdog == hub


def test_a_restarted_hub_continues_the_watches(desk: Desk, sshd: Sshd) -> None:
    with desk.client(entry(sshd)) as client:
        client.initialize()
        job = client.call("exec_bash_background", command=WAITING, session_name="again", interval_s=1)
        assert not job.get("isError"), job
        first = desk.hub
        client.leave(None)
    code, said, complained = desk("hub", "restart")
    assert (code, complained) == (0, "")
    assert "looks after 1 watched job" in said
    assert desk.watchdog == desk.hub != first


# The service


def test_the_service_is_the_hub_and_does_not_end_when_idle(desk: Desk) -> None:
    service = desk.start("watchdog", "run")
    wait_until(lambda: desk.hub == desk.watchdog == service.pid, what="it to be both")
    with desk.client() as client:
        client.initialize()
        assert not client.call("list_sandboxes").get("isError")
        told = desk.status()
        assert (told["pid"], len(told["clients"]), told["lives_on"]) == (service.pid, 1, True)
        client.leave(None)
    begun = time.monotonic()
    wait_until(lambda: time.monotonic() > begun + 2, what="two idle seconds")
    assert desk("hub", "status")[0] == 0
    service.send_signal(signal.SIGTERM)
    assert (*service.communicate(timeout=10), service.returncode) == (b"", b"", 0)
    assert (desk.hub, desk.watchdog) == (0, 0)


def test_a_service_lets_a_running_hub_keep_its_clients(desk: Desk) -> None:
    with desk.client() as client:
        client.initialize()
        assert not client.call("list_sandboxes").get("isError")
        hub = desk.hub
        service = desk.start("watchdog", "run")
        wait_until(lambda: desk.watchdog == service.pid, what="it to watch")
        assert not client.call("list_sandboxes").get("isError")
        assert desk.hub == hub
        client.leave(None)
    wait_until(lambda: desk.hub == service.pid, what="it to take the hub's place", seconds=20)


def test_a_server_without_a_hub_leaves_its_watches_to_the_hub(desk: Desk, watches: Watches, sshd: Sshd) -> None:
    with desk.client(entry(sshd), REMOTE_SANDBOX_NO_HUB="1") as client:
        client.initialize()
        assert not desk.hub
        job = client.call("exec_bash_background", command=WAITING, session_name="n", interval_s=1)
        assert not job.get("isError"), job
        assert "notes" not in job["structuredContent"]
        hub = desk.hub
        assert desk.watchdog == hub not in (0, client.process.pid)
        assert sshd.key_file not in Path(f"/proc/{hub}/environ").read_text()
        client.leave(None)
    watch_id = job["structuredContent"]["watch_id"]
    (sshd.home / "go-on").touch()
    wait_until(lambda: (now := watches.get(watch_id)) and now.status is Status.COMPLETED, what="its end to be seen")
    desk.until_gone(hub)
    (sshd.home / "go-on").unlink()


# The lock


@pytest.fixture
def state(clean_environment: Path) -> Path:
    folder = clean_environment / "remote-sandbox-mcp"
    folder.mkdir(mode=0o700)
    return folder


async def test_of_two_hubs_one_watches_and_the_other_continues_after_it(state: Path) -> None:
    first, second = HubWatchdog(state), HubWatchdog(state)
    await first.begin(None)
    await second.begin(None)
    assert (first.is_on, second.is_on) == (True, False)
    await second.take_up()
    assert not second.is_on
    assert await first.let_go()
    await second.take_up()
    # Nothing is watched.
    assert not second.is_on
    database = Database(state / STATE_FILE)
    Watches(database).add(Watch(sandbox="gpu1", session="train", due=time.time() + 3600))
    await first.take_up()
    # It was told to let go.
    assert not first.is_on
    await second.take_up()
    assert second.is_on
    found = holder(state / LOCK_FILE)
    assert found
    assert found.pid == os.getpid()
    assert await second.let_go()
    assert holder(state / LOCK_FILE) is None
    database.close()


async def test_a_loop_cancelled_before_its_first_step_releases_the_lock(state: Path) -> None:
    watching = HubWatchdog(state)
    watching.go_round(take_lock(state), None, until_idle=True)
    assert await watching.let_go()
    assert holder(state / LOCK_FILE) is None


async def test_a_cancelled_caller_leaves_no_lock_without_work(state: Path) -> None:
    watching = HubWatchdog(state)
    asking = asyncio.ensure_future(watching.begin(None))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    assert await until(lambda: watching.is_on, 30)
    assert await watching.let_go()
    assert await until(lambda: holder(state / LOCK_FILE) is None, 30)


# Jobs that wait

ONCE = "echo begun >> begun; [ $(wc -l < begun) -eq 1 ]"


@pytest.mark.parametrize("attempted", [False, True], ids=["while it waits", "between decision and start"])
def test_a_hub_that_was_killed_starts_a_waiting_job_once(desk: Desk, fleet: Fleet, attempted: bool) -> None:
    machine = fleet.machine(f"waits-{attempted}".lower())
    with desk.client(entry(machine)) as client:
        client.initialize()
        first = client.call(
            "exec_bash_background", command=f"{WAITING[:-1]}0", session_name="first", interval_s=1, sandbox_name="any"
        )
        assert not first.get("isError"), first
        second = client.call(
            "exec_bash_background", command=ONCE, session_name="second", after=["first"], interval_s=1
        )["structuredContent"]
        assert (second["status"], second["queue"]["reason"]) == ("pending", "it starts after first has ended")
        hub = desk.hub
        os.kill(hub, signal.SIGKILL)
        wait_until(lambda: desk.hub not in (0, hub), what="another hub", seconds=60)
        if attempted:
            # As it is recorded just before a start.
            with closing(sqlite3.connect(desk.state / STATE_FILE)) as connection, connection:
                connection.execute("UPDATE waiting SET tried = ?", (machine.name,))
        else:
            (machine.home / "go-on").touch()
        wait_until(lambda: (machine.home / "begun").exists(), what="its start", seconds=120)
        (machine.home / "go-on").touch()
        ended = client.call("wait_background_task", tmux_session="second", timeout_s=40)["structuredContent"]
        assert (ended["outcome"], (machine.home / "begun").read_text()) == ("succeeded", "begun\n")
        with closing(sqlite3.connect(desk.state / STATE_FILE)) as connection:
            assert connection.execute("SELECT COUNT(*) FROM waiting").fetchone() == (0,)
    machine.reset()
