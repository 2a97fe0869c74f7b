"""The verb `hub`, about hubs that real clients have started."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hub_desk import Desk, desk_in
from tests.support.server import Wire
from tests.support.sshd import wait_until

DEADLINE_S = 20.0
# Hubs of two environments are not the same; this is one that they live by.
ELSEWHERE = {"TMPDIR": "/var/tmp"}


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with desk_in(tmp_path) as desk:
        yield desk


def rows_of(text: str) -> dict[str, str]:
    return {name: rest.strip() for name, _, rest in (line.partition("  ") for line in text.splitlines()) if name}


def connected(client: Wire) -> Wire:
    client.initialize()
    assert not client.call("list_sandboxes").get("isError")
    return client


def test_without_a_hub_the_verbs_say_so_and_start_none(desk: Desk) -> None:
    assert desk("hub") == (1, "No hub runs. The next client starts one.\n", "")
    assert desk.status() == {"running": False, "others": []}
    assert desk("hub", "stop") == (0, "No hub runs. The next client starts one.\n", "")
    assert desk("hub", "restart")[0] == 1
    assert desk("hub", "log")[0] == 1
    assert not (desk.state / "hub").exists()
    assert "none is started from here" in desk("hub", REMOTE_SANDBOX_NO_HUB="1")[1]


def test_status_shows_clients_and_memory(desk: Desk) -> None:
    with desk.client() as client, desk.client() as silent:
        connected(client)
        silent.initialize()
        told = desk.status()
        assert (told["running"], told["answers"], told["pid"], told["others"]) == (True, True, desk.hub, [])
        assert sorted(each["client"] for each in told["clients"]) == ["", "by-hand"]
        assert {each["folder"] for each in told["clients"]} == {os.getcwd()}
        assert 20 << 20 < told["memory"] < 400 << 20
        code, said, complained = desk("hub")
        rows = rows_of(said)
        assert (code, complained) == (0, "")
        assert rows["hub"].startswith(f"runs as process {desk.hub}, for ")
        assert f"by-hand in {os.getcwd()}, for " in said
        assert (rows["socket"], rows["log"]) == (told["socket"], str(desk.state / "hub/hub.log"))
        assert f"process {desk.hub} serves 2 clients" in desk("doctor")[1]


def test_after_a_stop_another_hub_serves_the_same_client(desk: Desk) -> None:
    with desk.client() as client:
        connected(client)
        first = desk.hub
        code, said, _ = desk("hub", "stop")
        assert (code, said.splitlines()) == (
            0,
            ["1 client is connected, and will start another at once.", f"The hub, process {first}, has ended."],
        )
        assert not client.call("list_sandboxes").get("isError")
        second = desk.hub
        code, said, _ = desk("hub", "restart")
        third = desk.hub
        assert (code, said.splitlines()[-1]) == (0, f"Another runs as process {third}.")
        assert not client.call("list_sandboxes").get("isError")
        assert len({first, second, third, 0}) == 4


def test_hubs_of_other_environments_are_shown_and_ended_on_request(desk: Desk) -> None:
    with desk.client(**ELSEWHERE) as client:
        connected(client)
        told = desk.status()
        assert (told["running"], [each["pid"] for each in told["others"]]) == (False, [desk.hub])
        code, said, _ = desk("hub")
        assert (code, said.splitlines()[0]) == (1, "No hub for this version and environment runs.")
        assert rows_of(said)["another hub"].startswith(f"runs as process {desk.hub}")
        code, said, _ = desk("hub", "stop")
        assert (code, said) == (1, "No hub for this environment runs, but 1 other: hub stop --all ends all.\n")
        client.leave(None)
        ended = desk.hub
        assert desk("hub", "stop", "--all")[0] == 0
        desk.until_gone(ended)


def test_a_silent_hub_is_shown_with_the_way_to_end_it(desk: Desk) -> None:
    with desk.client() as client:
        connected(client)
        pid = desk.hub
        os.kill(pid, signal.SIGSTOP)
        try:
            code, said, _ = desk("hub")
        finally:
            os.kill(pid, signal.SIGCONT)
        assert (code, rows_of(said)["hub"]) == (
            0,
            f"process {pid} does not answer (timed out); to end it: kill -9 {pid}",
        )


def test_jobs_and_sandboxes_that_would_end_with_the_hub_keep_it_alive(desk: Desk) -> None:
    with desk.client(local=True) as client:
        client.initialize()
        started = client.call(
            "exec_bash_background", command="while ! [ -e go ]; do sleep 0.05; done", session_name="j"
        )
        assert not started.get("isError"), started
        made = client.call("create_sandbox")
        assert not made.get("isError"), made
        needs = desk.status()["needs"]
        client.leave(None)
    assert any(need == "the job j runs in local" for need in needs), needs
    assert any(need.endswith("lives, and what runs in it would end") for need in needs), needs
    pid = desk.hub
    # Twice as long as one that is idle stays here.
    wait_until(lambda: desk.status()["clients"] == [], what="the client to be gone")
    begun = time.monotonic()
    wait_until(lambda: time.monotonic() > begun + 2, what="two idle seconds")
    assert desk.hub == pid
    code, said, _ = desk("hub", "stop")
    assert code == 0
    assert "Ends with it, or waits for the next hub: the job j runs in local.\n" in said
    assert desk.hub == 0


def test_the_log_is_printed_and_followed(desk: Desk) -> None:
    with desk.client() as client:
        connected(client)
        code, said, _ = desk("hub", "log", "-n", "1")
        assert (code, said.count("\n")) == (0, 1)
        assert said.endswith(f"began as process {desk.hub}\n")
        following = desk.start("hub", "log", "-f")
        assert following.stdout
        assert following.stdout.readline().endswith(f"began as process {desk.hub}\n".encode())
        desk("hub", "stop")
        assert b"hub ended as process" in following.stdout.readline()


def test_following_the_log_ends_with_its_reader(desk: Desk) -> None:
    with desk.client() as client:
        connected(client)
        following = desk.start("hub", "log", "-f")
        assert following.stdout
        assert following.stdout.readline()
        following.stdout.close()
        # It notices with the next line.
        desk("hub", "stop")
        assert following.wait(DEADLINE_S) == 0
