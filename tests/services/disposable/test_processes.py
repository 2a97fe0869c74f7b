"""Several servers of one user at once, as real processes on one file, and what is left when they die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.disposable_folder import FolderProvider
from tests.support.disposable_house import House, until
from tests.support.pace import Deadline


class Server:
    """A process that does as it is told, one line for one answer."""

    def __init__(self, folder: Path, *options: str) -> None:
        command = [sys.executable, "-m", "tests.support.disposable_server", str(folder), *options]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, *words: object) -> object:
        self.say(*words)
        return self.hear()

    def say(self, *words: object) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()

    def hear(self) -> object:
        assert self.process.stdout
        return json.loads(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe
            pipe.close()
        self.process.wait(20)


@contextmanager
def servers(folder: Path, count: int, *options: str) -> Iterator[list[Server]]:
    started = [Server(folder, *options) for _ in range(count)]
    try:
        yield started
    finally:
        for server in started:
            server.close()


def sandboxes(folder: Path) -> set[str]:
    return {path.stem for path in (folder / "made").glob("*.json")}


def test_servers_at_once_never_exceed_the_limit(tmp_path: Path) -> None:
    with servers(tmp_path, 3, "--most", "6") as started:
        for server in started:
            server.say("create", 8)
        made = [server.hear() for server in started]
        assert sum(len(ids) for ids in made if isinstance(ids, list)) == len(sandboxes(tmp_path)) == 6
        listed = [server.ask("list") for server in started]
        assert listed[0] == listed[1] == listed[2]


def test_a_name_is_given_to_one_of_many_who_want_it(tmp_path: Path) -> None:
    with servers(tmp_path, 3) as started:
        for server in started:
            server.say("create_named", "web")
        answers = [str(server.hear()) for server in started]
        assert len([answer for answer in answers if answer.startswith("sb-")]) == 1
        assert len([answer for answer in answers if "named 'web' already" in answer]) == 2


def test_one_that_another_server_has_made_is_used_and_deleted_here(tmp_path: Path) -> None:
    with servers(tmp_path, 2) as (maker, other):
        made = maker.ask("create_named", "web")
        assert other.ask("run", "web") == 0
        assert other.ask("delete", "web") == "gone"
        assert "the sandbox web was deleted at" in str(maker.ask("run", str(made)))


async def test_what_a_killed_server_left_is_found_by_the_next_by_name_and_id(tmp_path: Path) -> None:
    with servers(tmp_path, 2) as (doomed, neighbour):
        (left,) = doomed.ask("create", 1)  # type: ignore[misc]
        (theirs,) = neighbour.ask("create", 1)  # type: ignore[misc]
        named = doomed.ask("create_named", "web")
        doomed.kill()
        house = House(tmp_path, clock=time.time, providers={"opensandbox": FolderProvider(tmp_path)})
        await house.disposables.adopt()
        assert {left, theirs, named, "web"} <= set(house.fleet.names)
        # Whichever of the two that are left looks first takes it over.
        heirs = (os.getpid(), neighbour.process.pid)
        await until(lambda: house.row(str(named)).owner.pid in heirs)
        assert house.row(str(theirs)).owner.pid == neighbour.process.pid
        assert sandboxes(tmp_path) == {left, theirs, named}
        await house.disposables.service.delete("web")
        await house.close()
        assert sandboxes(tmp_path) == {left, theirs}


def test_one_that_is_killed_while_it_makes_some_leaves_nothing_for_long(tmp_path: Path) -> None:
    with servers(tmp_path, 1, "--slow", "30") as (doomed,):
        doomed.say("create", 3)
        deadline = Deadline(10)
        while len(list((tmp_path / "made").glob("*.begun"))) < 3:
            assert not deadline.has_passed()
            time.sleep(0.005)
        doomed.kill()
    # What the platform was asked for appears after its client has died.
    for begun in (tmp_path / "made").glob("*.begun"):
        begun.rename(begun.with_suffix(".json"))
    assert len(sandboxes(tmp_path)) == 3
    with servers(tmp_path, 1) as (heir,):
        heir.ask("tick")
        assert heir.ask("list") == []
        assert sandboxes(tmp_path) == set()


def test_many_heirs_sweep_an_expired_one_once(tmp_path: Path) -> None:
    with servers(tmp_path, 1) as (doomed,):
        expired = [doomed.ask("create_for", 1) for _ in range(4)]
        doomed.kill()
    over = time.time() + 4
    with servers(tmp_path, 3) as heirs:
        while time.time() < over:
            time.sleep(0.05)
        for heir in heirs:
            heir.say("tick")
        assert [heir.hear() for heir in heirs] == ["ok"] * 3
        deleted = [heir.ask("deleted") for heir in heirs]
        assert sum(len(ids) for ids in deleted if isinstance(ids, list)) == len(expired)
        assert sandboxes(tmp_path) == set()


def test_one_of_another_configuration_is_neither_seen_nor_deleted(tmp_path: Path) -> None:
    with servers(tmp_path, 1, "--configuration", "a") as (maker,), servers(tmp_path, 1, "--configuration", "b") as (b,):
        made = str(maker.ask("create_named", "web"))
        assert b.ask("list") == []
        for name in (made, "web"):
            assert "was never made" in str(b.ask("delete", name))
            assert "no sandbox is named" in str(b.ask("run", name))
        assert sandboxes(tmp_path) == {made}


@pytest.mark.parametrize("state", ["never used", "used and empty"])
def test_adopting_nothing_costs_less_than_two_milliseconds(tmp_path: Path, state: str) -> None:
    if state == "used and empty":
        with servers(tmp_path, 1) as (server,):
            for made in server.ask("create", 2):  # type: ignore[attr-defined]
                server.ask("delete", made)
    command = [sys.executable, "-m", "tests.support.disposable_adopting", str(tmp_path)]
    said = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(3)]
    told = [json.loads(each.stdout) for each in said]
    assert min(each["milliseconds"] for each in told) < 2
    assert told[0]["loaded"] == []
