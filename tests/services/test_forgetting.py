"""When machines drop results: at once where the client has them for sure, else later, or when we end in order."""

from __future__ import annotations

from typing import Any

import pytest

from remote_sandbox_mcp.core.client import Call, begin_call
from remote_sandbox_mcp.services.jobs import commands as module
from remote_sandbox_mcp.services.jobs.commands import Commands


class Machine:
    def __init__(self) -> None:
        self.forgotten: list[str] = []

    def forget(self, run_id: str) -> None:
        self.forgotten.append(run_id)


@pytest.fixture
def commands() -> Commands:
    registry: Any = None
    return Commands(registry)


@pytest.mark.parametrize(("ended_s", "forgotten"), [(0.0, ["run-1", "run-2"]), (60.0, [])], ids=["answered", "fresh"])
async def test_an_end_in_order_drops_what_clients_have(
    commands: Commands, ended_s: float, forgotten: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ENDED_S", ended_s)
    begin_call(Call("a call"))
    machine: Any = Machine()
    for run_id in ("run-1", "run-2"):
        commands.forgetting(machine, run_id)()
    assert machine.forgotten == []
    await commands.close(0.1)
    assert machine.forgotten == forgotten


async def test_without_another_process_that_could_answer_it_is_dropped_at_once(commands: Commands) -> None:
    machine: Any = Machine()
    commands.forgetting(machine, "run-1")()
    assert machine.forgotten == ["run-1"]
