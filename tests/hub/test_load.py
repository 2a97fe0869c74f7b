"""Many clients at once, and one that asks for too much."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from remote_sandbox_mcp.services.session import MOST_IN_ALL
from tests.support.hub_place import logins
from tests.support.hubs import hub_pids
from tests.support.server import entry, wire
from tests.support.sshd import Fleet, Sshd


def test_many_clients_share_one_hub_and_every_call_gets_its_own_answer(machine: Sshd, tmp_path: Path) -> None:
    with ExitStack() as stack:
        lines = [stack.enter_context(wire(tmp_path, entry(machine))) for _ in range(8)]
        for line in lines:
            line.initialize()
        asked = [
            {
                line.start_call("exec_bash", command=f"echo {place}-{number}"): f"{place}-{number}\n"
                for number in range(10)
            }
            for place, line in enumerate(lines)
        ]
        for line, expected in zip(lines, asked, strict=True):
            heard: dict[int, str] = {}
            while len(heard) < len(expected):
                message = line.receive()
                # A client may hear of changes between its answers.
                if "id" in message:
                    heard[message["id"]] = message["result"]["structuredContent"]["stdout"]
            assert heard == expected
        assert len(hub_pids(tmp_path)) == 1


@pytest.mark.parametrize("has_python", [True, False], ids=["outpost", "plain"])
def test_clients_that_start_at_once_make_one_login(fleet: Fleet, tmp_path: Path, *, has_python: bool) -> None:
    # More sessions than OpenSSH grants by default: only a refusal is a reason for a further login.
    machine = fleet.machine(
        f"once-{has_python}".lower(), python=has_python, max_sessions=100, extra_config=["LogLevel VERBOSE"]
    )
    with ExitStack() as stack:
        lines = [stack.enter_context(wire(tmp_path, entry(machine))) for _ in range(12)]
        numbers = []
        for line in lines:
            line.initialize()
            numbers.append(line.start_call("exec_bash", command="sleep 1; echo done"))
        for line, number in zip(lines, numbers, strict=True):
            # A client may hear of changes before its answer.
            answer = line.answer_to(number)
            assert "result" in answer, answer
            assert answer["result"]["structuredContent"]["stdout"] == "done\n"
        assert logins(machine) == 1
    machine.reset()


def test_a_client_that_floods_the_hub_does_not_starve_another(machine: Sshd, tmp_path: Path) -> None:
    with wire(tmp_path, entry(machine)) as flooding, wire(tmp_path, entry(machine)) as other:
        flooding.initialize()
        other.initialize()
        other.call("exec_bash", command="true")
        # Each takes a second, so 500 of them at once would keep a machine busy.
        for _ in range(500):
            flooding.start_call("exec_bash", command="sleep 1")
        begun = time.monotonic()
        for _ in range(5):
            other.call("exec_bash", command="true")
        seconds = time.monotonic() - begun
        print(f"five calls of the other took {seconds:.2f} s")
        assert seconds < 5
        # Not all of the flood is carried out at once, although these calls only wait for the machine.
        assert list(machine.processes().values()).count("sleep 1") <= MOST_IN_ALL
    machine.reset()
