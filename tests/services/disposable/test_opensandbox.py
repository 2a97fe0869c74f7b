"""The same with containers of a real platform: its server, its engine, and what is left in it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from mcp.shared.subscriptions import ResourceUpdated

from remote_sandbox_mcp.backends.opensandbox.provider import OpenSandboxProvider
from remote_sandbox_mcp.core.commands.command import Command, Completed
from remote_sandbox_mcp.core.errors import ConnectError, SandboxError, UnknownSandbox
from remote_sandbox_mcp.core.sandboxes.disposable import DisposableRules, SandboxOrder
from remote_sandbox_mcp.local.store.disposables import Owner
from remote_sandbox_mcp.local.waiting import within
from tests.support.disposable_house import House, until
from tests.support.platform import API_KEY, IMAGE, Platform
from tests.support.server import serve

# The engine and its images take their time to start, once.
pytestmark = [pytest.mark.xdist_group("platform"), pytest.mark.timeout(240)]

RULES = DisposableRules(default_image=IMAGE, max_concurrent=6)
Make = Callable[..., House]


@pytest.fixture
async def make(platform: Platform, tmp_path: Path) -> AsyncIterator[Make]:
    """Servers of one installation; at the end nothing of theirs is in the engine."""
    houses: list[House] = []

    def build(rules: DisposableRules = RULES) -> House:
        provider = OpenSandboxProvider(platform.settings(), rules, str(tmp_path))
        houses.append(House(tmp_path, rules, time.time, {"opensandbox": provider}))
        return houses[-1]

    yield build
    for house in houses:
        for it in await house.disposables.list():
            await house.disposables.service.delete(it.id)
        await house.close()
    assert platform.containers() == []


async def output(house: House, name: str, script: str, timeout_s: float = 60.0) -> str:
    seen = await (await house.fleet.get(name)).run(Command(script, timeout_s=timeout_s))
    assert isinstance(seen, Completed)
    return seen.stdout.head.decode()


async def test_a_container_is_renewed_paused_resumed_and_thrown_away(make: Make, platform: Platform) -> None:
    house = make()
    made = await house.disposables.create(SandboxOrder(name="web"))
    assert await output(house, "web", "echo here", timeout_s=3000) == "here\n"
    assert house.row(made.id).disposable.expires > time.time() + 3000
    (listed,) = await house.providers["opensandbox"].list()
    assert listed.expires > time.time() + 3000
    await house.disposables.service.pause("web")
    with pytest.raises(ConnectError, match="web is paused; continue it with resume_sandbox"):
        await output(house, "web", "true")
    assert [it.status for it in await house.disposables.list()] == ["paused"]
    await house.disposables.service.resume("web")
    assert await output(house, "web", "echo again") == "again\n"
    await house.disposables.service.delete(made.id)
    assert platform.containers() == []
    with pytest.raises(UnknownSandbox, match="web was deleted at"):
        house.fleet.member("web")


async def test_a_container_that_is_removed_under_us_is_told(make: Make, platform: Platform) -> None:
    house = make()
    made = await house.disposables.create(SandboxOrder(name="web"))
    await output(house, "web", "true")
    platform.engine.docker("rm", "--force", platform.container_of(made.key))
    with pytest.raises(SandboxError, match=r"web was ended by its platform or from outside at .*create_sandbox"):
        await output(house, "web", "true")
    assert (house.rows.is_empty(), list(house.fleet.names)) == (True, ["gpu1"])


async def test_it_is_known_to_the_next_server(make: Make, platform: Platform) -> None:
    first = make()
    left = await first.disposables.create(SandboxOrder(name="web"))
    await (await first.fleet.get("web")).write("a", b"mine")
    await first.close()
    assert platform.containers() == [platform.container_of(left.key)]
    second = make()
    await second.disposables.adopt()
    assert await output(second, "web", "cat a") == "mine"
    await second.disposables.service.delete("web")


async def test_what_a_crashed_server_left_is_taken_over(make: Make, platform: Platform) -> None:
    first = make()
    first.belongs_to(Owner(99_999_999, "dead"))
    made = await first.disposables.create(SandboxOrder())
    await first.disposables.service.tending.stop()
    first.disposables.__dict__.pop("service")
    await first.providers["opensandbox"].close()
    second = make()
    await second.disposables.adopt()
    await until(lambda: second.row(made.id).owner == second.disposables.service.registry.me, 30)
    await second.disposables.service.delete(made.id)
    assert platform.containers() == []


async def test_several_at_once_leave_nothing(make: Make, platform: Platform) -> None:
    house = make()
    came = await asyncio.gather(*(house.disposables.create(SandboxOrder()) for _ in range(8)), return_exceptions=True)
    made = [it for it in came if not isinstance(it, BaseException)]
    assert len(made) == len(platform.containers()) == 6
    await asyncio.gather(*(house.disposables.service.delete(it.id) for it in made))
    assert (platform.containers(), house.rows.living()) == ([], ())


async def test_a_ready_container_is_there_at_once(make: Make) -> None:
    house = make(DisposableRules(default_image=IMAGE, pool={IMAGE: 1}))
    await house.disposables.adopt()

    def ready() -> list[str]:
        return [row.id for row in house.rows.living() if row.pool and row.disposable.status == "running"]

    await until(ready, 60)
    waiting = ready()
    made = await house.disposables.create(SandboxOrder(name="web"))
    assert [made.id] == waiting
    assert await output(house, "web", "echo here") == "here\n"
    await until(ready, 60)


async def test_while_the_platform_is_down_that_is_told_and_nothing_is_lost(make: Make, platform: Platform) -> None:
    house = make()
    made = await house.disposables.create(SandboxOrder(name="web"))
    platform.stop_server()
    try:
        (listed,) = await house.disposables.list()
        assert (listed.status, "opensandbox did not answer" in listed.notes[-1]) == ("running", True)
        for asked in (house.disposables.service.delete("web"), house.disposables.create(SandboxOrder())):
            with pytest.raises(ConnectError):
                await asked
    finally:
        platform.start_server()
    assert await output(house, made.id, "echo here") == "here\n"
    await house.disposables.service.delete("web")
    # What may have been made meanwhile is looked for until it is certain that nothing was.
    (doubtful,) = house.rows.living()
    assert (doubtful.disposable.status, doubtful.disposable.key) == ("ending", "")


async def test_a_client_hears_that_its_container_was_killed_by_somebody_else(
    platform: Platform, tmp_path: Path
) -> None:
    config = f'[opensandbox]\nserver_url = "{platform.url}"\napi_key = "env:KEY"\ndefault_image = "{IMAGE}"\n'
    async with serve(tmp_path, config=config, env={"KEY": API_KEY}) as server:
        await server.call("create_sandbox", name="web")
        async with server.client.listen(resource_subscriptions=["sandbox://web/status"]) as events:
            await asyncio.to_thread(platform.engine.docker, "rm", "-f", *platform.containers())
            assert await within(anext(events), 20) == ResourceUpdated("sandbox://web/status")
        assert (await server.fail("run_command", sandbox_id="web", command="true"))["code"] == "unknown_sandbox"


async def test_what_a_server_was_making_when_it_ended_is_ended_by_it_or_by_the_next(
    platform: Platform, tmp_path: Path
) -> None:
    config = f'[opensandbox]\nserver_url = "{platform.url}"\napi_key = "env:KEY"\ndefault_image = "{IMAGE}"\n'
    config += '[disposable]\nnetwork_hosts = ["*"]\n'
    async with serve(tmp_path, config=config, env={"KEY": API_KEY}) as server:
        creating = asyncio.ensure_future(server.ask("create_sandbox", network=True))
        await until(platform.containers, 60)
    creating.cancel()
    await asyncio.gather(creating, return_exceptions=True)
    async with serve(tmp_path, config=config, env={"KEY": API_KEY}):
        await until(lambda: not platform.containers(), 60)


async def test_a_container_that_ended_by_itself_is_told_as_ended_and_removed(make: Make, platform: Platform) -> None:
    house = make()
    entrypoint = ("sh", "-c", "until [ -e /tmp/over ]; do sleep 0.1; done")
    made = await house.disposables.create(SandboxOrder(name="web", entrypoint=entrypoint, network=True, free=True))
    # Not by a command of ours, which would end with it.
    platform.engine.docker("exec", platform.container_of(made.key), "touch", "/tmp/over")
    await until(lambda: not platform.containers("status=running"), 30)
    assert platform.containers()
    with pytest.raises(ConnectError, match="the sandbox web ended by itself when its main process ended at "):
        await output(house, "web", "true")
    assert list(await house.disposables.list()) == []
    assert house.row(made.id).disposable.status == "ended"
    await until(lambda: not platform.containers(), 30)
