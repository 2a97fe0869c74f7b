"""The hub's watchdog serves the watches of every configuration: each with its own machines, whoever is connected."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.hub_desk import Desk, desk_in
from tests.support.server import Wire, entry
from tests.support.sshd import Fleet, Sshd, wait_until

BEGIN = "echo began >>ran; while ! [ -e enough ]; do sleep 0.05; done"
AGAIN = "echo again >>ran; while ! [ -e enough ]; do sleep 0.05; done"


@dataclass(frozen=True)
class Place:
    """A configuration file, and the machine that it calls gpu."""

    machine: Sshd
    file: Path

    def begin(self, client: Wire) -> None:
        job = client.call(
            "exec_bash_background",
            **{"command": BEGIN, "session_name": "train", "cwd": str(self.machine.home), "interval_s": 1},
            **{"auto_resume": True, "resume_command": AGAIN, "resume_delay_s": 0, "max_resume_attempts": 5},
        )
        assert not job.get("isError"), job
        self.await_runs("began")

    @property
    def runs(self) -> list[str]:
        file = self.machine.home / "ran"
        return file.read_text().split() if file.exists() else []

    def await_runs(self, *runs: str) -> None:
        wait_until(lambda: self.runs == [*runs], what=f"{runs} in {self.file.name}, not {self.runs}", seconds=30)

    def interrupt(self) -> None:
        subprocess.run(self.machine.client("tmux kill-session -t =train"), check=True, capture_output=True)


def place(fleet: Fleet, folder: Path, name: str) -> Place:
    machine = fleet.machine(name)
    fields: dict[str, Any] = entry(machine, name="gpu")
    file = folder / f"{name}.toml"
    lines = [f"{key} = {json.dumps(value)}" for key, value in fields.items() if key != "name"]
    file.write_text("\n".join(["[local]", "enabled = false", "[machines.gpu]", *lines, ""]))
    file.chmod(0o600)
    return Place(machine, file)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with desk_in(tmp_path) as desk:
        yield desk


@pytest.fixture
def places(fleet: Fleet, tmp_path: Path) -> Iterator[tuple[Place, Place]]:
    made = place(fleet, tmp_path, "first-file"), place(fleet, tmp_path, "second-file")
    yield made
    for one in made:
        one.machine.reset()


def enter(desk: Desk, place: Place) -> Any:
    return desk.client(config_file=place.file)


def test_a_job_of_a_second_configuration_is_resumed_on_its_own_machine(desk: Desk, places: tuple[Place, Place]) -> None:
    first, second = places
    with enter(desk, first) as one, enter(desk, second) as other:
        one.initialize()
        first.begin(one)
        watchdog = desk.watchdog
        other.initialize()
        second.begin(other)
        assert desk.watchdog == watchdog == desk.hub
        second.interrupt()
        second.await_runs("began", "again")
        first.interrupt()
        first.await_runs("began", "again")
        # Neither is resumed on the other's machine, which has the same name, nor twice.
        assert second.runs == ["began", "again"]


def test_a_configuration_is_served_while_its_clients_are_gone_and_when_they_come_again(
    desk: Desk, places: tuple[Place, Place]
) -> None:
    first, second = places
    with enter(desk, first) as one:
        one.initialize()
        first.begin(one)
        with enter(desk, second) as other:
            other.initialize()
            second.begin(other)
            assert desk.status()["configurations"] == 2
            other.leave(None)
        wait_until(lambda: desk.status()["configurations"] == 1, what="the hub to close the second configuration")
        second.interrupt()
        second.await_runs("began", "again")
        with enter(desk, second) as other:
            other.initialize()
            assert not other.call("list_sandboxes").get("isError")
            assert desk.status()["configurations"] == 2
            second.interrupt()
            second.await_runs("began", "again", "again")
            other.leave(None)
        assert first.runs == ["began"]


def test_a_hub_that_only_a_first_client_has_restarted_serves_the_second_configuration(
    desk: Desk, places: tuple[Place, Place]
) -> None:
    first, second = places
    with enter(desk, second) as other:
        other.initialize()
        second.begin(other)
        other.leave(None)
    before = desk.hub
    os.kill(before, signal.SIGKILL)
    desk.until_gone(before)
    second.interrupt()
    with enter(desk, first) as one:
        one.initialize()
        first.begin(one)
        second.await_runs("began", "again")
        assert first.runs == ["began"]
