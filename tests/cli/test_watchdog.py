from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.core.jobs.watch import Watch
from remote_sandbox_mcp.local.processes.locks import holder
from remote_sandbox_mcp.local.store.database import STATE_FILE, Database
from remote_sandbox_mcp.local.store.watches import Watches
from remote_sandbox_mcp.services.watchdog.daemon import LOCK_FILE
from tests.cli.conftest import Cli, Maker, entry
from tests.support.pace import at_most
from tests.support.sshd import Sshd, wait_until


@pytest.fixture
def state(clean_environment: Path) -> Iterator[Path]:
    """The state folder; no hub of it outlives the test."""
    folder = clean_environment / "remote-sandbox-mcp"
    folder.mkdir(mode=0o700)
    yield folder
    for lock in (folder / LOCK_FILE, *folder.glob("hub/*.lock")):
        if found := holder(lock):
            os.kill(found.pid, signal.SIGKILL)
            wait_until(lambda lock=lock: not holder(lock), what="the hub to be gone")


def daemon_of(state: Path) -> int:
    found = holder(state / LOCK_FILE)
    return found.pid if found else 0


def test_where_none_runs_that_is_told(cli: Cli, state: Path) -> None:
    told = cli("watchdog", "status")
    assert (told.code, told.stderr) == (1, "")
    rows = dict(line.split(maxsplit=1) for line in told.stdout.splitlines())
    assert rows["watchdog"] == "does not run"
    assert rows["watches"] == "0 active"
    assert cli("watchdog", "status", "--json").json == {
        "kind": "hub",
        "installed": False,
        "running": False,
        "active": 0,
        "database": str(state / "state.db"),
        "log_file": str(state / "hub/hub.log"),
    }
    # To look is not to make.
    assert not (state / "state.db").exists()


def test_without_a_service_manager_the_hub_is_started_and_looks_no_more_when_told_so(
    cli: Cli, state: Path, watches: Watches
) -> None:
    watches.add(Watch(sandbox="gpu1", session="train", due=time.time() + 3600))
    installed = cli("watchdog", "install")
    pid = daemon_of(state)
    assert (installed.code, installed.stderr) == (0, "")
    first, then = installed.stdout.splitlines()
    assert first == f"The watchdog runs as part of the hub, process {pid}."
    assert then.startswith("No service manager runs here: ")
    second = cli("watchdog", "run")
    assert (second.code, second.stdout) == (3, "")
    assert second.stderr == f"remote-sandbox-mcp: the watchdog of {state} runs already, as process {pid}\n"
    assert "REMOTE_SANDBOX_LIST=" not in Path(f"/proc/{pid}/environ").read_text()
    wait_until(lambda: "last_beat" in cli("watchdog", "status", "--json").json, what="a heartbeat")
    status = cli("watchdog", "status")
    assert status.code == 0
    assert status.stdout.splitlines()[0].split() == ["watchdog", "runs", "in", "the", "hub", "as", "process", str(pid)]
    removed = cli("watchdog", "remove")
    assert (removed.code, removed.stdout) == (0, "The watchdog does not run, and is not installed.\n")
    assert daemon_of(state) == 0
    assert cli("watchdog", "remove").code == 0


def test_it_runs_until_it_is_told_to_end(cli: Cli, state: Path) -> None:
    process = cli.start("watchdog", "run")
    wait_until(lambda: daemon_of(state) == process.pid, what="it to sign")
    wait_until(lambda: (state / "state.db").exists(), what="its first round")
    begun = time.monotonic()
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=10)
    assert (process.returncode, *said) == (0, b"", b"")
    assert time.monotonic() - begun < at_most(2)


@pytest.fixture
def watches(state: Path) -> Iterator[Watches]:
    database = Database(state / STATE_FILE)
    yield Watches(database)
    database.close()


def write_config(home: Path, *machines: dict[str, Any]) -> None:
    """As an operator would have them."""
    file = home / "xdg/config_home/remote-sandbox-mcp/config.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for machine in machines:
        lines.append(f"[machines.{machine.pop('name')}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in machine.items()]
    file.write_text("\n".join(lines))


def test_machines_are_watched_as_they_are_configured_and_little_is_used_for_it(
    cli: Cli, made: Maker, state: Path, watches: Watches, clean_environment: Path
) -> None:
    machine: Sshd = made("watched")
    watch = watches.add(Watch(sandbox=machine.name, session="train", due=time.time()))
    assert cli("watchdog", "install", REMOTE_SANDBOX_HUB_IDLE_S="600").code == 0
    wait_until(lambda: state_of(watches, watch.id) == "config_missing", what="the machine to be unknown")
    write_config(clean_environment, {**entry(machine)})
    again = watches.add(Watch(sandbox=machine.name, session="train", due=time.time()))
    wait_until(lambda: state_of(watches, again.id) not in ("starting", "config_missing"), what="it to be asked")
    pid = daemon_of(state)
    assert resident_mb(pid) < 120
    # The part of a core that it takes at rest, with the line open and all that it may need loaded.
    wait_until(lambda: is_at_rest(pid), what="it to come to rest", seconds=30)
    begun, used = time.monotonic(), cpu_s(pid)
    wait_until(lambda: time.monotonic() > begun + 8, what="some rest", seconds=12)
    assert (cpu_s(pid) - used) / (time.monotonic() - begun) < 0.01
    told = (state / "hub/hub.log").read_text()
    assert "the configuration has changed" in told
    assert "asyncssh" not in told


def state_of(watches: Watches, watch_id: int) -> str:
    found = watches.get(watch_id)
    return found.last_state if found else ""


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def is_at_rest(pid: int) -> bool:
    begun, used = time.monotonic(), cpu_s(pid)
    wait_until(lambda: time.monotonic() > begun + 4, what="some seconds")
    return cpu_s(pid) - used < 0.1


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
