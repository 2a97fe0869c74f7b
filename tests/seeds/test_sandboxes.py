"""remote-sandbox-mcp 0.7, README, section 7 沙箱管理: list_sandboxes, get_active_sandbox."""

from __future__ import annotations

from dataclasses import replace

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.core.errors import ConfigError, Unreachable
from remote_sandbox_mcp.services.fleet import Fleet, Member
from tests.fronts.mcp.conftest import connected, member
from tests.support.fakes.sandbox import Answer, FakeSandbox
from tests.support.server import Caller

PROBED = """@@ probe 1
@@ load
 {load} {load} {load} 1/100 1
@@ cpus
 online: 8
 usable: 8
@@ memory
 MemTotal: 67108864
 MemFree: 67108864
 MemAvailable: 67108864
@@ end
"""
UNREADABLE = "the key of the password manager cannot be read; unlock it"


def machine(name: str, kind: str = "ssh", load: float = 0.0) -> FakeSandbox:
    fake = FakeSandbox(lambda command: Answer(stdout=PROBED.format(load=load)), name=name)
    capabilities = replace(fake.description.capabilities, is_this_computer=kind == "local")
    fake.description = replace(fake.description, kind=kind, capabilities=capabilities)
    return fake


async def test_a_machine_whose_secret_cannot_be_read_is_not_alive(fake: FakeSandbox) -> None:
    """connection_alive of list_sandboxes and get_active_sandbox."""

    async def opener() -> FakeSandbox:
        raise ConfigError(UNREADABLE)

    locked = Member("locked", lambda: machine("locked").description, opener)
    async with connected(App(Fleet([locked, member(fake)]))) as tools:
        first = (await tools.call("list_sandboxes"))["sandboxes"][0]
        active = await tools.call("get_active_sandbox")
        measured = (await tools.call("list_sandboxes", check_resources=True))["sandboxes"][0]
    for seen in (first, active, measured):
        assert (seen["connection_alive"], seen["connection_error"]) == (False, UNREADABLE)
    assert measured["resources"] == {"error": UNREADABLE}


async def test_resources_of_a_machine_that_does_not_answer_have_an_error(tools: Caller, other: FakeSandbox) -> None:
    other.fail(Unreachable("no answer within 5 s"))
    seen = (await tools.call("list_sandboxes", check_resources=True))["sandboxes"][1]
    assert seen["resources"] == {"error": "no answer within 5 s"}


async def test_an_idle_machine_without_gpus_has_the_score_1(tools: Caller, fake: FakeSandbox) -> None:
    """idle_score: 0=全忙, 1=全空."""
    fake.answers = machine("any").answers
    seen = (await tools.call("list_sandboxes", check_resources=True))["sandboxes"][0]
    assert (seen["resources"]["idle_score"], seen["resources"]["gpu"]) == (1, [])


async def test_the_most_idle_is_one_of_the_configured_machines() -> None:
    """Section 8: select the sandbox with the highest idle_score."""
    fleet = Fleet([member(machine("local", kind="local")), member(machine("gpu1", load=7)), member(machine("gpu2"))])
    async with connected(App(fleet)) as tools:
        seen = (await tools.call("list_sandboxes", check_resources=True))["sandboxes"]
    assert [(each["name"], each["kind"]) for each in seen] == [("gpu1", "ssh"), ("gpu2", "ssh"), ("local", "local")]
    scores = [each["resources"]["idle_score"] for each in seen]
    assert scores[1] == 1
    assert scores[2] < max(scores[:2])
