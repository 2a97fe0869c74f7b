"""Jobs that ask for GPUs, through the tools: placed, pending with reasons, in every answer, stopped, after others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.core.jobs.cards import CardRequest
from remote_sandbox_mcp.core.sandboxes.disposable import Offer, Traits
from remote_sandbox_mcp.core.sandboxes.port import Stream
from remote_sandbox_mcp.core.suites.suite import TestReport
from remote_sandbox_mcp.services.fleet import Fleet
from remote_sandbox_mcp.services.suites import service as suites
from tests.fronts.mcp.conftest import connected, member
from tests.support.fakes.disposables import FakeProvider
from tests.support.fakes.jobs import FakeCard
from tests.support.fakes.sandbox import FakeSandbox
from tests.support.pythons import python_answer
from tests.support.server import Caller, error_of


@pytest.fixture
def machines() -> list[FakeSandbox]:
    made = [FakeSandbox(name="gpu1"), FakeSandbox(name="gpu2")]
    for sandbox in made:
        sandbox.jobs.cards = [FakeCard(f"GPU-{sandbox.description.name}", used_by="")]
    return made


@pytest.fixture
def app(machines: list[FakeSandbox]) -> App:
    return App(Fleet(map(member, machines)))


@pytest.fixture
async def tools(app: App) -> AsyncIterator[Caller]:
    async with connected(app) as caller:
        yield caller


async def start(tools: Caller, name: str, **fields: object) -> dict[str, object]:
    given = {"sandbox_name": "any", "gpus": 1, "ensure_watchdog": False, **fields}
    return await tools.call("exec_bash_background", command="train", session_name=name, **given)


async def test_a_job_gets_a_card_or_is_pending_with_reasons_in_every_answer(
    tools: Caller, app: App, machines: list[FakeSandbox]
) -> None:
    first = await start(tools, "first", gpu_memory="40g", run_for="8h")
    assert (first["status"], first["sandbox"], first["gpus"]) == ("started", "gpu1", ["GPU-gpu1"])
    assert machines[0].jobs.started[0].run_for_s == 28800.0
    assert (await start(tools, "second", sandbox_name=["gpu1", "gpu2"]))["sandbox"] == "gpu2"
    third = await start(tools, "third", sandbox_name="gpu1, gpu2")
    reason = "gpu1: 1 of 1 used by me. gpu2: 1 of 1 used by me"
    assert (third["status"], third["sandbox"]) == ("pending", "gpu1,gpu2")
    assert third["queue"] == {"reason": reason}
    checked = await tools.call("check_background_task", tmux_session="third")
    assert (checked["pending"], checked["running"], checked["outcome"]) == (True, False, "pending")
    assert checked["queue"] == {"reason": reason}
    waited = await tools.call("wait_background_task", tmux_session="third", timeout_s=0)
    assert (waited["reason"], waited["outcome"]) == ("timeout", "pending")
    listed = (await tools.call("list_background_tasks", status="pending"))["tasks"]
    assert [(task["tmux_session"], task["queue"]["reason"]) for task in listed] == [("third", reason)]
    answer = await tools.ask("check_background_task", tmux_session="third")
    assert getattr(answer.content[0], "text", "").startswith(f"on gpu1,gpu2: pending: {reason}\n")
    machines[1].jobs.end(machines[1].jobs.started[0].job_id)
    await app.jobs.waiting.tick("")
    assert (await tools.call("check_background_task", tmux_session="third"))["outcome"] == "pending"
    await tools.call("check_background_task", tmux_session="second")
    await app.jobs.waiting.tick("")
    assert (await tools.call("check_background_task", tmux_session="third", sandbox_name="gpu2"))["running"] is True


async def test_a_pending_job_is_stopped_and_says_so(tools: Caller) -> None:
    for name in ("a", "b", "c"):
        await start(tools, name)
    stopped = await tools.call("stop_background_task", tmux_session="c")
    assert (stopped["outcome"], stopped["stopped"], stopped.get("error")) == (
        "stopped",
        True,
        "it was stopped before it started",
    )
    assert (await tools.call("check_background_task", tmux_session="c"))["outcome"] == "stopped"
    assert "sandbox_name" not in str(await tools.call("wait_background_task", tmux_session="c", timeout_s=5))


async def test_a_person_puts_a_waiting_job_ahead_of_the_others(tools: Caller) -> None:
    for name in ("a", "b", "c", "d"):
        await start(tools, name)
    checked = await tools.call("check_background_task", tmux_session="d")
    assert checked["queue"]["reason"].startswith("1 job ahead of it. ")
    raised = await tools.client.call_tool("raise_background_task", {"tmux_session": "d", "sandbox_name": "any"})
    assert "ahead of it" not in str(raised.structured_content)
    assert getattr(raised.content[0], "text", "").startswith("d has priority 1 now; ")
    refused = error_of(await tools.client.call_tool("raise_background_task", {"tmux_session": "a"}))["error"]
    assert "a does not wait for a place" in refused


async def test_one_that_may_not_wait_is_an_error_with_the_reasons(tools: Caller) -> None:
    for name in ("a", "b"):
        await start(tools, name)
    problem = await tools.fail(
        "exec_bash_background", command="x", gpus=1, sandbox_name="any", wait_for_gpus=False, session_name="c"
    )
    assert problem["code"] == "not_started"
    assert "gpu1: 1 of 1 used by me. gpu2: 1 of 1 used by me" in problem["error"]


async def test_a_job_waits_for_others_and_mistakes_are_sentences(tools: Caller) -> None:
    await start(tools, "prepare", gpus=0)
    begun = await start(tools, "train", after="prepare", priority=3)
    assert begun["queue"] == {"reason": "it starts after prepare has ended"}
    assert begun["notes"] == ["nobody looks for a place for it while ensure_watchdog is false"]
    for given, said in (
        ({"after": ["nothing"]}, "after: there is no job 'nothing'"),
        ({"gpu_memory": "40g"}, "say how many with gpus"),
        ({"gpus": 1, "run_for": "long"}, "run_for must be a span of time"),
        ({"gpus": 1, "sandbox_name": ["gpu1", "gpu9"]}, "no sandbox is named 'gpu9'"),
        ({"gpus": 1, "session_name": "train"}, "a job named train waits already"),
    ):
        answer = await tools.ask("exec_bash_background", command="x", **given)
        assert said in error_of(answer)["error"]


async def serve(stream: Stream) -> None:
    await stream.read()
    stream.write(b"HTTP/1.1 200 OK\r\n\r\n")
    await stream.drain()


async def deploy(tools: Caller, machines: list[FakeSandbox], **fields: object) -> dict[str, object]:
    """Deploy an app that answers as soon as it has been started."""
    before = {each.description.name: len(each.jobs.started) for each in machines}

    async def listen() -> None:
        while True:
            for each in machines:
                if len(each.jobs.started) > before[each.description.name]:
                    each.ports[8000] = serve
            await asyncio.sleep(0.01)

    listening = asyncio.ensure_future(listen())
    try:
        return await tools.call("deploy_app", **{"command": "serve", "port": 8000, "sandbox_id": "any", **fields})
    finally:
        listening.cancel()


async def test_an_app_gets_cards_of_the_best_machine_and_is_found_there_again(
    tools: Caller, machines: list[FakeSandbox]
) -> None:
    await start(tools, "first", sandbox_name="gpu1")
    app = await deploy(tools, machines, gpus=1, gpu_memory="40g", health_path="/")
    assert (app["status"], app["sandbox"], app["gpus"]) == ("running", "gpu2", ["GPU-gpu2"])
    assert machines[1].jobs.started[0].cards == CardRequest(1, 40960)
    again = await deploy(tools, machines, sandbox_id=["gpu1", "gpu2"], gpus=1, health_path="/")
    assert (again["sandbox"], again["task"], len(machines[1].jobs.started)) == ("gpu2", app["task"], 1)


async def test_an_app_without_free_cards_is_refused_with_the_reasons_and_does_not_wait(
    tools: Caller, machines: list[FakeSandbox]
) -> None:
    await start(tools, "first")
    named = await deploy(tools, machines, sandbox_id="gpu2", gpus=1)
    assert (named["sandbox"], named["gpus"]) == ("gpu2", ["GPU-gpu2"])
    for given, said in (
        ({"sandbox_id": "any", "port": 8001}, "gpu1: 1 of 1 used by me. gpu2: 1 of 1 used by me"),
        ({"sandbox_id": "gpu1", "port": 8001}, "gpu1: 1 of 1 used by me"),
        ({"sandbox_id": "gpu1", "port": 8001, "gpus": 0, "gpu_memory": "40g"}, "say how many with gpus"),
    ):
        problem = error_of(await tools.ask("deploy_app", **{"command": "serve", "gpus": 1, **given}))
        assert said in problem["error"]
    listed = (await tools.call("list_background_tasks"))["tasks"]
    assert {task["outcome"] for task in listed} == {"running"}


async def test_a_sandbox_is_made_on_the_machine_with_free_cards_or_refused_with_the_reasons(
    tools: Caller, app: App, machines: list[FakeSandbox]
) -> None:
    nowhere = error_of(await tools.ask("create_sandbox", on="any", gpu=1))["error"]
    assert "on any stands for machines with docker, podman or slurm, and there is none" in nowhere
    offers = {}
    for name in ("gpu1", "gpu2"):
        provider = FakeProvider(f"docker:{name}")
        provider.traits = Traits(machine=name, has_cards=True)
        offers[provider.kind] = Offer(provider.traits, lambda provider=provider: provider)  # type: ignore[misc]
    app.disposables.reconfigure(app.settings.rules, offers)
    await start(tools, "first", sandbox_name="gpu1")
    made = await tools.call("create_sandbox", on="any", gpu=1, image="python")
    assert (made["on"], made["limits"]) == ("gpu2", {"gpus": 1})
    listed = await tools.call("create_sandbox", on=["gpu1", "gpu2"], gpu=1, gpu_memory="40g", image="python")
    assert listed["on"] == "gpu2"
    for given, said in (
        ({"on": "gpu1,gpu9"}, "no sandboxes are made on gpu9, only on gpu1, gpu2"),
        ({"on": "any", "gpu_memory": "200g"}, "gpu1: it has 0 GPUs with 200 GB, not 1"),
        ({"on": "gpu2", "gpu_memory": "40g", "gpu": "0"}, "gpu_memory is for a number of GPUs (gpu=2)"),
    ):
        assert said in error_of(await tools.ask("create_sandbox", **{"gpu": 1, "image": "python", **given}))["error"]
    await start(tools, "second", sandbox_name="gpu2")
    for gpu, said in (
        (1, "gpu1: 1 of 1 used by me. gpu2: 1 of 1 used by me"),
        ("0,1", "on any takes a number of GPUs"),
    ):
        assert said in error_of(await tools.ask("create_sandbox", on="any", gpu=gpu, image="python"))["error"]


async def test_tests_and_python_get_the_best_machine_say_which_and_are_found_there_again(
    tools: Caller, machines: list[FakeSandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run_tests(sandbox: FakeSandbox, **given: object) -> TestReport:
        assert sandbox is machines[1]
        assert given["hold"]
        return TestReport(runner="pytest", command="true", passed=1)

    monkeypatch.setattr(suites, "run_tests", run_tests)
    await start(tools, "first", sandbox_name="gpu1")
    machines[1].answers = python_answer
    for places in ("any", ["gpu1", "gpu2"]):
        report = await tools.client.call_tool("run_tests", {"sandbox_id": places, "command": "true", "gpus": 1})
        assert (report.structured_content or {})["sandbox"] == "gpu2"
        seen = await tools.client.call_tool("run_python", {"sandbox_name": places, "code": "1", "gpus": 1})
        assert (seen.structured_content or {})["sandbox"] == "gpu2"
    await start(tools, "second", sandbox_name="gpu2")
    for tool, given in (
        ("run_tests", {"sandbox_id": "any", "command": "true"}),
        ("run_python", {"sandbox_name": "any", "code": "1", "session": "another"}),
    ):
        problem = await tools.fail(tool, gpus=1, **given)
        assert "gpu1: 1 of 1 used by me. gpu2: 1 of 1 used by me" in problem["error"]
    # A session goes on where it is, whatever else holds the cards by now.
    again = await tools.client.call_tool("run_python", {"sandbox_name": "any", "code": "1", "gpus": 1})
    assert (again.structured_content or {})["sandbox"] == "gpu2"
