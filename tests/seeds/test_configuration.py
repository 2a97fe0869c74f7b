"""remote-sandbox-mcp 0.7, README, section 4 环境变量: name is any text."""

from __future__ import annotations

import pytest

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.services.fleet import Fleet
from tests.fronts.mcp.conftest import connected, member
from tests.support.config_reading import from_list
from tests.support.fakes.sandbox import FakeSandbox


@pytest.mark.parametrize("name", ["lab/gpu1", "lab:gpu1", "lab-gpu1"])
async def test_a_machine_may_have_any_name(name: str) -> None:
    configuration = from_list({"name": name, "host": "gpu1.example.org", "user": "me", "password": "x"})
    (machine,) = configuration.machines
    assert machine.name == "lab-gpu1"
    assert any('"lab-gpu1"' in problem for problem in configuration.problems) == (name != machine.name)
    async with connected(App(Fleet([member(FakeSandbox(name=machine.name))]))) as tools:
        assert (await tools.call("select_sandbox", sandbox_name=name))["active_sandbox"] == "lab-gpu1"
