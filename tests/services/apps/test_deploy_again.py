"""Apps that run already: ordered again, written down by an earlier server, asked after where nobody answers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from remote_sandbox_mcp.core.errors import BadArgument, Unreachable
from remote_sandbox_mcp.core.jobs.job import JobQuery, JobState
from remote_sandbox_mcp.core.sandboxes.port import Deployment, Health
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from remote_sandbox_mcp.services.apps.deploy import SAME, Deployments
from tests.support.app_world import Pages, World, fetch, no_endpoint, web_server
from tests.support.sshd import free_port
from tests.support.waiting import eventually


async def running(world: World) -> list[str]:
    return [job.session for job in await world.sandbox.jobs.list() if job.is_running]


def as_written(deployed: Deployment) -> Deployment:
    """What the next server reads of it."""
    return replace(deployed, status="unknown", url="", health=Health(), log="", notes=())


def next_server(world: World, pages: Pages) -> World:
    """Another one on the same sandbox, which knows what is written down."""
    fresh = Deployments(world.get, world.start, world.forwards, no_endpoint, pages.recall, pages.note)
    return World(world.sandbox, fresh, world.forwards, world.get, world.start)


async def test_the_same_app_ordered_twice_is_one_with_one_address(walled: World) -> None:
    port = free_port()
    first = await walled.deploy(web_server(port), port)
    second = await walled.deploy(web_server(port), port, health_path="/")
    assert (second.task, second.url, second.status) == (first.task, first.url, "running")
    assert (second.health.status, second.notes) == (200, (SAME,))
    assert await running(walled) == [first.task]


@pytest.mark.parametrize("how", ["one after the other", "at once"])
async def test_an_app_that_is_not_ready_yet_is_not_started_a_second_time(walled: World, how: str) -> None:
    port = free_port()

    async def order() -> Deployment:
        return await walled.deploy(f"sleep 1.5; {web_server(port)}", port, timeout_s=1 if how[0] == "o" else 30)

    if how == "at once":
        first, second = await asyncio.gather(order(), order())
        assert (first.status, second.status) == ("running", "running")
    else:
        first, second = await order(), await order()
        assert first.status == "unhealthy"
    assert first.task == second.task
    assert await running(walled) == [first.task]


@pytest.mark.parametrize(
    ("command", "cwd"), [("touch ~/started", ""), ("", "/tmp")], ids=["another command", "another folder"]
)
async def test_another_app_at_the_same_port_is_refused_with_what_runs_there(
    walled: World, command: str, cwd: str
) -> None:
    port = free_port()
    first = await walled.deploy("exec sleep 300", port, timeout_s=1)
    words = rf"port {port} has another app, which runs as the task {first.task} at {first.url}, so nothing was started"
    with pytest.raises(BadArgument, match=words):
        await walled.deploy(command or "exec sleep 300", port, cwd=cwd)
    assert await running(walled) == [first.task]


async def test_one_that_has_ended_makes_room_for_another(walled: World) -> None:
    port = free_port()
    first = await walled.deploy(web_server(port), port)
    await walled.sandbox.jobs.stop(JobQuery(job_id=first.job_id), 1)
    second = await walled.deploy(web_server(port), port)
    assert (second.status, SAME in second.notes, second.task != first.task) == ("running", False, True)
    assert (await fetch(second.url)).status_code == 200


async def test_a_second_order_that_is_given_up_leaves_the_app_alone(walled: World) -> None:
    port = free_port()
    first = await walled.deploy("exec sleep 300", port, timeout_s=1)
    walled.beats.clear()
    call = asyncio.ensure_future(walled.deploy("exec sleep 300", port, timeout_s=60))
    await eventually(lambda: asyncio.sleep(0, walled.beats), bool, "the call to wait for it")
    call.cancel()
    await asyncio.wait((call,))
    await walled.deployments.close()
    assert await running(walled) == [first.task]


async def test_an_address_that_was_closed_is_not_told_any_more(walled: World) -> None:
    port = free_port()
    first = await walled.deploy(web_server(port), port)
    await walled.forwards.close(walled.name, port)
    (listed,) = await walled.deployments.list()
    assert (listed.status, listed.url) == ("running", "")
    again = await walled.deploy(web_server(port), port)
    assert again.task == first.task
    assert (await fetch(again.url)).status_code == 200


async def test_an_app_of_an_earlier_server_is_listed_and_opened_only_when_ordered(walled: World) -> None:
    port = free_port()
    first = await walled.deploy(web_server(port), port)
    await walled.forwards.close()
    later = next_server(walled, Pages(as_written(first)))
    (listed,) = await later.deployments.list()
    assert (listed.status, listed.task, listed.url) == ("running", first.task, "")
    assert walled.forwards.list() == []
    opened = await later.deploy(web_server(port), port)
    assert (opened.task, opened.notes) == (first.task, (SAME,))
    assert (await fetch(opened.url)).status_code == 200
    assert await running(walled) == [first.task]


async def test_the_end_of_one_is_told_and_written_down_once(walled: World) -> None:
    port = free_port()
    first = await walled.deploy(web_server(port), port)
    pages = Pages(as_written(first))
    later = next_server(walled, pages)
    await walled.sandbox.jobs.stop(JobQuery(job_id=first.job_id), 1)
    for _ in range(2):
        (listed,) = await later.deployments.list()
        assert (listed.status, listed.url) == ("stopped", "")
        assert "the app" in listed.problem
    assert pages.noted == [(first.job_id, JobState.ENDED)]
    assert await next_server(walled, pages).deployments.list() == []


async def test_one_that_fails_at_once_or_is_given_up_is_written_down_as_ended(walled: World) -> None:
    pages = Pages()
    later = next_server(walled, pages)
    failed = await later.deploy("exit 3", free_port())
    later.beats.clear()
    call = asyncio.ensure_future(later.deploy("exec sleep 300", free_port()))
    await eventually(lambda: asyncio.sleep(0, later.beats), bool, "the call to wait for it")
    call.cancel()
    await asyncio.wait((call,))
    await later.deployments.close()
    assert pages.noted[0] == (failed.job_id, JobState.ENDED)
    assert [state for _, state in pages.noted] == [JobState.ENDED, JobState.ENDED]
    assert [it.port for it in await later.deployments.list()] == [failed.port]


async def test_another_servers_app_takes_the_place_of_one_that_ended(walled: World) -> None:
    port, pages = free_port(), Pages()
    later = next_server(walled, pages)
    await later.deploy("exit 3", port)
    second = await walled.deploy(web_server(port), port)
    pages.written.append(as_written(second))
    (listed,) = await later.deployments.list()
    assert (listed.task, listed.status) == (second.task, "running")


async def test_an_app_whose_sandbox_does_not_answer_is_unknown(walled: World) -> None:
    async def unreachable(name: str) -> Sandbox:
        raise Unreachable("unable to open gpu1: no answer")

    written = Deployment(sandbox="gpu1", port=80, status="running", url="http://127.0.0.1:80/", task="web")
    pages = Pages(written)
    deployments = Deployments(unreachable, walled.start, walled.forwards, no_endpoint, pages.recall, pages.note)
    (listed,) = await deployments.list()
    assert (listed.status, listed.task, listed.problem) == ("unknown", "web", "unable to open gpu1: no answer")
