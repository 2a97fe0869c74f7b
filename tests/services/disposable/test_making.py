"""Sandboxes are counted and written down before they are made, and struck out if that comes to nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from remote_sandbox_mcp.core.errors import BadArgument, ConfigError, SandboxError, UnknownSandbox, Unreachable
from remote_sandbox_mcp.core.sandboxes.disposable import DisposableRules, Limits, SandboxOrder
from tests.support.disposable_house import House, begun, until
from tests.support.fakes.disposables import FakeProvider

from .conftest import Build

ORDER = SandboxOrder(name="web", image="python")


async def test_a_new_one_is_a_member_of_the_fleet_by_its_id_and_its_name(house: House) -> None:
    made = await house.disposables.create(ORDER)
    assert (made.status, made.name, made.image, made.expires) == ("running", "web", "python", 1_000_600.0)
    by_id, by_name = await house.fleet.get(made.id), await house.fleet.get("web")
    assert by_id is by_name
    assert by_id.description.name == "web"
    assert house.changes == 1
    assert await house.disposables.find("web") == made
    assert await house.disposables.list() == [made]
    assert await house.get(made.id) == made


async def test_nothing_is_loaded_or_opened_before_the_first(house: House) -> None:
    assert await house.disposables.list() == ()
    await house.disposables.adopt()
    assert await house.disposables.find("gpu1") is None
    with pytest.raises(UnknownSandbox, match="no sandbox is named 'web'"):
        house.fleet.member("web")
    assert not house.rows.exists()
    assert house.provider.asked == []


async def test_names_of_machines_and_of_others_are_refused(house: House) -> None:
    await house.disposables.create(ORDER)
    for name in ("gpu1", "web"):
        with pytest.raises(BadArgument, match=f"named '{name}' already"):
            await house.disposables.create(replace(ORDER, name=name))
    assert len(house.provider.orders) == 1


async def test_one_too_many_is_refused_with_the_oldest_and_what_to_do(build: Build) -> None:
    house = build(DisposableRules(max_concurrent=2))
    first = await house.disposables.create(ORDER)
    house.pass_time(120)
    second = await house.disposables.create(SandboxOrder())
    sentence = rf"2 exist and max_concurrent_sandboxes is 2; .*web \(made 2 min ago\), {second.id} .*raise the limit"
    with pytest.raises(SandboxError, match=sentence):
        await house.disposables.create(SandboxOrder())
    await house.disposables.service.delete(first.id)
    await house.disposables.create(SandboxOrder())


async def test_what_has_expired_makes_room(build: Build) -> None:
    house = build(DisposableRules(max_concurrent=1))
    first = await house.disposables.create(ORDER)
    house.pass_time(603)
    second = await house.disposables.create(ORDER)
    assert [it.id for it in await house.disposables.list()] == [second.id]
    assert house.row(first.id).disposable.status == "expired"


async def test_what_nobody_uses_makes_room(build: Build) -> None:
    house = build(DisposableRules(max_concurrent=1, cleanup_after_minutes=5))
    first = await house.disposables.create(SandboxOrder(timeout_s=0))
    house.pass_time(301)
    await house.disposables.create(ORDER)
    assert house.row(first.id).why == "cleaned_up"
    assert house.provider.deleted == [first.id]


async def test_fifty_at_once_never_exceed_the_limit(build: Build) -> None:
    house = build(DisposableRules(max_concurrent=7))
    house.provider.delay_s = 0.01
    came = await asyncio.gather(*(house.disposables.create(SandboxOrder()) for _ in range(50)), return_exceptions=True)
    made = [it for it in came if not isinstance(it, BaseException)]
    assert len(made) == len(house.provider.made) == 7
    await asyncio.gather(*(house.disposables.service.delete(it.id) for it in made))
    assert (house.provider.made, house.rows.living()) == ({}, ())


async def test_what_could_not_be_made_leaves_no_row(house: House) -> None:
    house.provider.fail(SandboxError("there is no image nope"), "create")
    with pytest.raises(SandboxError, match="no image nope"):
        await house.disposables.create(ORDER)
    assert house.rows.living() == ()
    house.provider.fail(None, "create")
    await house.disposables.create(ORDER)


async def test_what_a_silent_platform_may_have_made_is_looked_for(house: House) -> None:
    house.provider.fail(Unreachable("the platform does not answer"), "create")
    with pytest.raises(Unreachable):
        await house.disposables.create(SandboxOrder())
    (left,) = house.rows.living()
    house.provider.fail(None, "create")
    await house.provider.create(left.id, SandboxOrder())
    await house.tick()
    assert (house.provider.made, house.rows.living()) == ({}, ())


async def test_what_never_appears_is_struck_out_after_a_while(house: House) -> None:
    house.provider.fail(Unreachable("the platform does not answer"), "create")
    with pytest.raises(Unreachable):
        await house.disposables.create(SandboxOrder())
    await house.tick()
    assert len(house.rows.living()) == 1
    house.pass_time(121)
    await house.tick()
    assert house.rows.living() == ()


async def test_one_whose_caller_is_gone_is_made_and_ended(house: House) -> None:
    house.provider.delay_s = 0.02
    task = await begun(house.disposables.create(ORDER))
    await until(lambda: house.provider.orders)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: house.provider.deleted and not house.rows.living())
    assert (house.provider.made, list(house.fleet.names)) == ({}, ["gpu1"])


async def test_one_that_is_deleted_while_it_is_made_is_ended(house: House) -> None:
    house.provider.delay_s = 0.05
    task = await begun(house.disposables.create(ORDER))
    await until(lambda: house.provider.orders)
    assert (await house.disposables.service.delete("web")).status == "gone"
    with pytest.raises(UnknownSandbox, match=r"the sandbox web was deleted at .* create_sandbox"):
        await task
    assert house.provider.made == {}


async def test_the_platform_is_asked_where_there_is_one(build: Build) -> None:
    embedded, platform = FakeProvider("embedded"), FakeProvider("opensandbox")
    house = build(embedded=embedded, opensandbox=platform)
    assert (await house.disposables.create(ORDER)).provider == "opensandbox"
    assert (await house.disposables.create(SandboxOrder(provider="embedded"))).provider == "embedded"
    assert (len(platform.made), len(embedded.made)) == (1, 1)


async def test_one_whose_provider_is_not_configured_any_more_is_told(build: Build) -> None:
    house = build(opensandbox=FakeProvider("opensandbox"))
    await house.disposables.create(ORDER)
    later = build(embedded=FakeProvider("embedded"))
    (listed,) = await later.disposables.list()
    assert "'opensandbox' is not configured here" in listed.notes[0]
    with pytest.raises(ConfigError, match="'opensandbox' is not configured here"):
        await later.disposables.service.delete("web")


async def test_a_snapshot_is_an_image_for_another(build: Build) -> None:
    house = build(opensandbox=FakeProvider("opensandbox"))
    await house.disposables.create(ORDER)
    kept = await house.disposables.service.snapshot("web", "before")
    again = await house.disposables.restore(kept, SandboxOrder(name="again", limits=Limits(cpu=1)))
    assert (kept, again.image, again.limits.cpu) == ("snapshot:before", "snapshot:before", 1)


# Those that are kept ready

POOL = DisposableRules(pool={"/python": 2}, max_concurrent=2)
PLAIN = SandboxOrder(name="web", image="/python")


def ready(house: House) -> list[str]:
    return [kept.id for kept in house.rows.living() if kept.pool and kept.disposable.status == "running"]


async def test_ready_ones_are_taken_at_once_and_made_anew(build: Build) -> None:
    house = build(POOL)
    await house.disposables.adopt()
    await until(lambda: len(ready(house)) == 2)
    assert await house.disposables.list() == []
    before = ready(house)
    made = await house.disposables.create(PLAIN)
    assert made.id in before
    assert (made.name, made.expires, (await house.fleet.get("web")).description.name) == ("web", 1_000_600.0, "web")
    assert house.provider.made[made.id].expires == 1_000_600.0
    await until(lambda: len(ready(house)) == 2)
    await house.disposables.create(SandboxOrder(image="/python"))
    with pytest.raises(SandboxError, match="2 exist and max_concurrent_sandboxes is 2"):
        await house.disposables.create(SandboxOrder(image="/python"))


async def test_special_wishes_are_not_served_from_what_is_ready(build: Build) -> None:
    house = build(POOL)
    await house.disposables.adopt()
    await until(lambda: len(ready(house)) == 2)
    made = await house.disposables.create(replace(PLAIN, env={"A": "b"}))
    assert made.id not in ready(house)
    assert house.provider.orders[-1].env == {"A": "b"}


async def test_a_ready_one_that_was_killed_is_not_handed_out(build: Build) -> None:
    house = build(POOL)
    await house.disposables.adopt()
    await until(lambda: len(ready(house)) == 2)
    dead, alive = ready(house)
    house.provider.kill(dead)
    assert (await house.disposables.create(PLAIN)).id == alive
    assert house.row(dead).ended


async def test_ready_ones_are_renewed_and_end_with_the_server(build: Build) -> None:
    house = build(POOL)
    await house.disposables.adopt()
    await until(lambda: len(ready(house)) == 2)
    house.pass_time(1000)
    await house.tick()
    assert {seconds for _, seconds in house.provider.renewals} == {1800.0}
    await house.disposables.close()
    assert house.provider.made == {}


async def test_ready_ones_that_cannot_be_made_are_not_tried_all_the_time(build: Build) -> None:
    house = build(POOL)
    house.provider.fail(SandboxError("there is no image python"), "create")
    await house.disposables.adopt()
    await until(lambda: len(house.provider.orders) == 2)
    for _ in range(3):
        await house.tick()
    assert len(house.provider.orders) == 2
    await until(lambda: not house.disposables.service.making.pool._filling)
    house.provider.fail(None, "create")
    house.pass_time(61)
    await house.tick()
    await until(lambda: len(ready(house)) == 2)


async def test_who_only_looks_makes_none_ready(build: Build) -> None:
    await build().disposables.create(ORDER)
    house = build(POOL)
    await house.disposables.list()
    await house.tick()
    assert house.provider.orders == []


async def test_images_of_containers_are_not_made_ready_without_a_platform(build: Build) -> None:
    house = build(DisposableRules(pool={"python:3.12": 2}))
    await house.disposables.adopt()
    await house.tick()
    assert house.provider.orders == []


async def test_what_is_being_made_when_the_server_ends_is_ended_with_it(house: House) -> None:
    house.provider.delay_s = 1.2
    creating = await begun(house.disposables.create(ORDER))
    await until(lambda: house.provider.asked)
    creating.cancel()
    await house.close()
    assert (len(house.provider.orders), house.provider.made) == (1, {})
