"""The service under a real systemd that boots in a container, for an ordinary user with lingering."""

from __future__ import annotations

import json
import shlex
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import remote_sandbox_mcp
from tests.support.engine import Container, Engine, EngineProblem, systemd_image
from tests.support.sshd import wait_until

pytestmark = pytest.mark.timeout(240)

IMAGE = "systemd-and-python"
USER, HOME = "alice", "/home/alice"
# Every character that means something to systemd, and a space.
PLACE = "/opt/odd $HOME %h \\x41 'a' \"b\" ;"
PYTHON = f"{PLACE}/bin/python3"
UNIT = "remote-sandbox-mcp-watchdog.service"
BACK_S = 30
# Something is watched: else the hub would soon look no more.
ENSURE = """
import asyncio, time
from remote_sandbox_mcp.config import paths
from remote_sandbox_mcp.core.jobs.watch import Watch
from remote_sandbox_mcp.local.store.database import STATE_FILE, Database
from remote_sandbox_mcp.local.store.watches import Watches
from remote_sandbox_mcp.services.watchdog.ensure import ensure_running
state = paths.state_folder()
Watches(Database(state / STATE_FILE)).add(Watch(sandbox="gpu1", session="train", due=time.time() + 3600))
print(asyncio.run(ensure_running(state, None)))
"""


@dataclass(frozen=True)
class Place:
    """A machine of its own, and on it a user who has our command."""

    engine: Engine
    machine: Container

    def __call__(self, *words: str, check: bool = True, **environ: str) -> subprocess.CompletedProcess[str]:
        """As the user, with no more of an environment than MCP clients give."""
        env = {"HOME": HOME, "USER": USER, "REMOTE_PASSWORD": "hunter2", **environ}
        return self.machine.exec(*words, user=USER, env=env, check=check)

    def watchdog(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self(PYTHON, "-m", "remote_sandbox_mcp", "watchdog", *words, check=check)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.watchdog("status", "--json", check=False).stdout)
        return found

    def systemctl(self, *words: str) -> str:
        given = f"XDG_RUNTIME_DIR=/run/user/{self.uid} systemctl --user --no-pager {shlex.join(words)}"
        return self("sh", "-c", given, check=False).stdout.strip()

    @property
    def uid(self) -> str:
        return self.machine.exec("id", "-u", USER).stdout.strip()

    def main_pid(self) -> int:
        """The service's process, 0 where it has none."""
        pid = self.systemctl("show", "--property=MainPID", "--value", UNIT)
        return int(pid) if pid.isdigit() else 0

    def runs_as_service(self, but: int = 0) -> bool:
        pid = self.main_pid()
        return pid not in (0, but) and self.status().get("pid") == pid

    def daemons(self) -> list[str]:
        found = self.machine.exec("pgrep", "-f", "remote_sandbox_mcp.* watchdog run", check=False)
        return found.stdout.split()


@pytest.fixture
def place() -> Iterator[Place]:
    try:
        image = systemd_image()
        with Engine() as engine:
            engine.import_image(image, IMAGE)
            yield furnish(engine)
    except EngineProblem as problem:
        pytest.fail(f"systemd could not be tested: {problem}", pytrace=False)


def furnish(engine: Engine) -> Place:
    """Boot it, and give it a user and our command."""
    source = Path(remote_sandbox_mcp.__file__).parents[1]
    libraries = sysconfig.get_paths()["purelib"]
    mounts = [f"--volume={source}:/opt/source:ro", f"--volume={libraries}:/opt/libraries:ro"]
    place = Place(engine, engine.boot(IMAGE, tuple(mounts)))
    machine = place.machine
    machine.exec("useradd", "--create-home", USER)
    machine.exec("python3", "-m", "venv", "--without-pip", PLACE)
    folder = f"{shlex.quote(PLACE)}/lib/python3*/site-packages"
    words = f"cd {folder} && printf '/opt/source\\n/opt/libraries\\n' > ours.pth"
    machine.exec("bash", "-c", words)
    machine.exec("loginctl", "enable-linger", USER)
    until_logged_in(place)
    return place


def until_logged_in(place: Place) -> None:
    socket = f"/run/user/{place.uid}/systemd/private"
    soon(lambda: not place.machine.exec("test", "-S", socket, check=False).returncode, "the user's systemd")


def soon(condition: Callable[[], object], what: str) -> None:
    wait_until(condition, what=what, seconds=BACK_S)


def test_the_service_takes_over_survives_crashes_and_restarts_and_leaves_nothing(place: Place) -> None:
    takes_over_from_a_process_that_was_started_without_it(place)
    is_enabled_with_a_clean_environment(place)
    comes_back_after_a_kill(place)
    is_started_when_it_is_needed(place)
    comes_back_with_the_users_systemd(place)
    comes_back_when_the_machine_is_booted(place)
    leaves_nothing(place)
    another_state_folder_has_a_service_of_its_own(place)


def takes_over_from_a_process_that_was_started_without_it(place: Place) -> None:
    assert place(PYTHON, "-c", ENSURE).stdout == "\n"
    before = place.status()
    assert (before["kind"], before["installed"], before["running"]) == ("systemd", False, True)
    installed = place.watchdog("install")
    pid = place.main_pid()
    assert installed.stdout == f"The watchdog runs as a systemd user service, process {pid}.\n"
    assert installed.stderr == ""
    assert pid != before["pid"]
    assert place.daemons() == [str(pid)]


def is_enabled_with_a_clean_environment(place: Place) -> None:
    assert place.systemctl("is-enabled", UNIT) == "enabled"
    status = place.status()
    assert (status["kind"], status["installed"], status["running"]) == ("systemd", True, True)
    assert (status["pid"], status["lingering"], "notes" in status) == (place.main_pid(), True, False)
    environ = place.machine.exec("cat", f"/proc/{place.main_pid()}/environ").stdout
    assert "hunter2" not in environ
    soon(lambda: place.status().get("last_beat"), "a heartbeat")


def comes_back_after_a_kill(place: Place) -> None:
    pid = place.main_pid()
    place.machine.exec("kill", "-9", str(pid))
    soon(lambda: place.runs_as_service(but=pid), "the service to come back after a kill")


def is_started_when_it_is_needed(place: Place) -> None:
    place.systemctl("stop", UNIT)
    assert place.daemons() == []
    assert place(PYTHON, "-c", ENSURE).stdout == "\n"
    assert place.runs_as_service()


def comes_back_with_the_users_systemd(place: Place) -> None:
    pid = place.main_pid()
    place.machine.exec("systemctl", "restart", f"user@{place.uid}.service")
    soon(lambda: place.runs_as_service(but=pid), "the service to come back with the user's systemd")


def comes_back_when_the_machine_is_booted(place: Place) -> None:
    place.machine.restart()
    place.engine.until_up(place.machine)
    until_logged_in(place)
    soon(place.runs_as_service, "the service to come back after a boot")
    assert len(place.daemons()) == 1


def leaves_nothing(place: Place) -> None:
    removed = place.watchdog("remove")
    assert removed.stdout == "The watchdog does not run, and is not installed.\n"
    assert removed.stderr.startswith("remote-sandbox-mcp: Nobody looks after the active watches; to start it: ")
    assert place.daemons() == []
    assert place.machine.exec("find", "/home", "/etc/systemd/user", "-name", "remote-sandbox-mcp-w*").stdout == ""
    assert place.systemctl("list-unit-files", UNIT).endswith("0 unit files listed.")
    assert "\n0 loaded units listed." in place.systemctl("list-units", "--all", UNIT)
    status = place.watchdog("status", check=False)
    assert (status.returncode, status.stdout.split("\n")[0].split()) == (1, ["watchdog", "does", "not", "run"])


def another_state_folder_has_a_service_of_its_own(place: Place) -> None:
    state, config = f'{HOME}/an odd $place %n "\\', f"{HOME}/my $config %h.toml"

    def watchdog(*words: str) -> dict[str, Any]:
        given = (PYTHON, "-m", "remote_sandbox_mcp", "--config", config, "watchdog", *words, "--json")
        told: dict[str, Any] = json.loads(place(*given, check=False, REMOTE_SANDBOX_MCP_HOME=state).stdout)
        return told

    there = watchdog("install")
    assert (there["installed"], there["running"], there["database"]) == (True, True, f"{state}/state.db")
    process = f"/proc/{there['pid']}"
    assert f"REMOTE_SANDBOX_MCP_HOME={state}\0" in place.machine.exec("cat", f"{process}/environ").stdout
    assert f"\0--config\0{config}\0watchdog\0run\0" in place.machine.exec("cat", f"{process}/cmdline").stdout
    usual = place.status()
    assert (usual["installed"], usual["running"]) == (False, False)
    assert watchdog("remove")["running"] is False
    assert place.daemons() == []
    assert place.machine.exec("find", HOME, "-name", "*.service").stdout == ""
