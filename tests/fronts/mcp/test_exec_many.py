"""exec_bash on several sandboxes at once, as a client sees it."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from mcp import Client
from mcp.types import Implementation

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.core.errors import Unreachable
from remote_sandbox_mcp.fronts.mcp.server import build
from remote_sandbox_mcp.services.fleet import Fleet
from remote_sandbox_mcp.views.results import size_of
from tests.fronts.mcp.conftest import connected, member
from tests.support.fakes.sandbox import Answer, FakeSandbox, after
from tests.support.server import Caller, text_of, until

ENDLESS = Answer("so far\n", then=after(math.inf))


def rows_of(done: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["sandbox"]: row for row in done["results"]}


async def test_every_sandbox_gets_the_command_and_a_row_in_the_order_of_the_names(
    tools: Caller, fake: FakeSandbox, other: FakeSandbox
) -> None:
    fake.answers, other.answers = {"make": Answer("built\n")}, {"make": Answer("", "no rule\n", 2)}
    done = await tools.run("make", sandbox_names=["other", "fake", "other"], cwd="/srv", timeout_s=7)
    assert all(0 <= row.pop("duration") < 7 for row in done["results"])
    assert done == {
        "summary": "2 sandboxes: 1 exit 2, 1 exit 0",
        "results": [
            {"sandbox": "other", "exit_code": 2, "stderr": "no rule\n"},
            {"sandbox": "fake", "exit_code": 0, "stdout": "built\n"},
        ],
    }
    assert [(it.script, it.cwd, it.timeout_s) for it in (*fake.commands, *other.commands)] == [("make", "/srv", 7)] * 2


async def test_all_means_what_is_configured_and_no_disposable_sandbox(tools: Caller, app: App) -> None:
    app.fleet.add(member(FakeSandbox(name="disposable")), "clean")
    assert list(rows_of(await tools.run("true", sandbox_names="all"))) == ["fake", "other"]
    assert list(rows_of(await tools.run("true", sandbox_names=["clean", "disposable"]))) == ["disposable"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"sandbox_names": ["fake", "fakd"]}, "no sandbox is named 'fakd'; did you mean fake?"),
        ({"sandbox_names": []}, "sandbox_names is empty; name sandboxes"),
        ({"sandbox_names": ["fake", ""]}, "a name in sandbox_names is empty"),
        ({"sandbox_names": ["fake"], "sandbox_name": "other"}, "sandbox_name and sandbox_names were both given"),
        ({"sandbox_names": ["fake"], "sandbox_id": "other"}, "sandbox_name and sandbox_names were both given"),
        ({"sandbox_names": "all", "timeout_s": 0}, "timeout_s is 0"),
    ],
    ids=["unknown", "none", "no name", "both", "both by another name", "bad argument"],
)
async def test_a_mistake_is_one_sentence_and_nothing_runs(
    tools: Caller, fake: FakeSandbox, given: dict[str, Any], told: str
) -> None:
    assert (await tools.fail("exec_bash", command="true", **given))["error"].startswith(told)
    assert not fake.commands


async def test_a_sandbox_that_fails_is_a_row_and_delays_no_other(
    tools: Caller, fake: FakeSandbox, other: FakeSandbox
) -> None:
    heard: list[str] = []
    is_told = asyncio.Event()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(f"{progress:.0f} of {total:.0f}: {message}")
        if "other: unreachable" in heard[-1]:
            is_told.set()

    async def once_told() -> Answer:
        await is_told.wait()
        return Answer("and on\n")

    fake.answers = {"slow": Answer("so far\n", then=once_told)}
    other.fail(Unreachable("unable to open other: no route to it"))
    done = rows_of(await tools.run("slow", sandbox_names="all", progress=hear))
    assert done["other"]["error"] == "unable to open other: no route to it (nothing was started)"
    assert done["other"]["code"] == "unreachable"
    assert (done["fake"]["exit_code"], done["fake"]["stdout"]) == (0, "so far\nand on\n")
    assert "1 of 2: other: unreachable: unable to open other: no route to it (nothing was started)" in heard


async def test_a_command_that_outlasts_the_call_has_its_handle_in_its_row(
    fake: FakeSandbox, other: FakeSandbox
) -> None:
    fake.answers, other.answers = {"slow": ENDLESS}, {"slow": Answer("quick\n")}
    async with connected(App(Fleet([member(fake), member(other)]), patience_s=0.1)) as tools:
        done = rows_of(await tools.run("slow", sandbox_names="all", timeout_s=500))
        assert done["other"]["exit_code"] == 0
        assert done["fake"]["running"]
        seen = await tools.call("check_background_task", tmux_session=done["fake"]["tmux_session"])
        assert (seen["running"], seen["log_tail"]) == (True, "so far")
        await tools.call("stop_background_task", tmux_session=done["fake"]["tmux_session"])


async def test_a_cancelled_call_stops_all_of_its_commands(tools: Caller, fake: FakeSandbox, other: FakeSandbox) -> None:
    fake.answers = other.answers = {"slow": ENDLESS}
    call = asyncio.ensure_future(tools.run("slow", sandbox_names="all", timeout_s=500))
    await until(lambda: fake.commands and other.commands, "both to begin")
    call.cancel()
    for sandbox in (fake, other):
        run = sandbox._runs[sandbox.commands[0].run_id]
        await until(run.task.done, "the command to be stopped")


@pytest.mark.parametrize(("client", "most"), [("claude-code", 45_000), ("codex", 10_000), ("else", 100_000)])
@pytest.mark.parametrize("count", [3, 150])
async def test_the_answer_is_bounded_and_names_failures_first_where_not_all_fit(
    client: str, most: int, count: int
) -> None:
    output = "".join(f'line {number} "quoted" \\ \n' for number in range(20_000))
    fakes = [FakeSandbox({"long": Answer(output, output)}, name=f"machine-{number}") for number in range(count)]
    fakes[-1].answers = {"long": Answer("", "broken\n", 1)}
    app = App(Fleet(map(member, fakes)))
    async with Client(build(app), client_info=Implementation(name=client, version="1")) as asking:
        answer = await asking.call_tool("exec_bash", {"command": "long", "sandbox_names": "all"})
    await app.close()
    assert answer.structured_content
    assert size_of(answer.structured_content) <= most
    assert len(text_of(answer)) <= most
    told = answer.structured_content
    assert told["summary"] == f"{count} sandboxes: {count - 1} exit 0, 1 exit 1"
    assert f"machine-{count - 1}" in {row["sandbox"] for row in told["results"]}
    first = told["results"][0]
    if count == 3:
        assert first["stdout"].endswith('line 19999 "quoted" \\ \n')
        assert first["stdout"].startswith("line ")
        assert not any(fake.forgotten for fake in fakes[:-1])
