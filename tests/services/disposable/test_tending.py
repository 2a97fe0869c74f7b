"""Rounds over the sandboxes: idle ones go, busy ones stay, and nothing that is wrong ends the rounds."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest

from remote_sandbox_mcp.core.commands.command import Command
from remote_sandbox_mcp.core.errors import SandboxError, UnknownSandbox, Unreachable, Unsupported
from remote_sandbox_mcp.core.jobs.job import JobOrder, JobSeen
from remote_sandbox_mcp.core.sandboxes.disposable import DisposableRules, SandboxOrder
from remote_sandbox_mcp.local.store.disposables import Owner
from remote_sandbox_mcp.services.disposable import reaper as tending
from tests.support.disposable_house import House, until
from tests.support.fakes.disposables import FakeProvider

from .conftest import Build

IDLE = DisposableRules(cleanup_after_minutes=10)
ORDER = SandboxOrder(name="web", timeout_s=0)


async def test_what_nobody_uses_is_deleted(build: Build) -> None:
    house = build(IDLE)
    made = await house.disposables.create(ORDER)
    house.pass_time(590)
    await house.tick()
    assert made.id in house.provider.made
    house.pass_time(11)
    await house.tick()
    assert house.provider.deleted == [made.id]
    with pytest.raises(UnknownSandbox, match=r"web was cleaned up for want of use at .*; make a new one"):
        house.fleet.member("web")


async def test_without_cleaning_up_it_stays(build: Build) -> None:
    house = build(DisposableRules(auto_cleanup=False))
    made = await house.disposables.create(ORDER)
    house.pass_time(1e6)
    await house.tick()
    assert made.id in house.provider.made


async def test_what_is_used_stays(build: Build) -> None:
    house = build(IDLE)
    made = await house.disposables.create(ORDER)
    sandbox = await house.fleet.get("web")
    for _ in range(5):
        house.pass_time(400)
        await sandbox.run(Command("true"))
        await house.tick()
    assert house.row(made.id).idle_since == 1_002_000.0
    assert house.provider.deleted == []


async def test_a_job_that_runs_is_use(build: Build) -> None:
    house = build(IDLE)
    made = await house.disposables.create(SandboxOrder(timeout_s=300))
    sandbox = await house.fleet.get(made.id)
    job = await sandbox.jobs.start(JobOrder(session="serve", script="x"))
    for _ in range(20):
        house.pass_time(45)
        await house.tick()
    await until(lambda: house.provider.made[made.id].expires > house.clock())
    assert house.provider.deleted == []
    house.provider.sandboxes[made.id].jobs.end(job.job_id)
    house.pass_time(400)
    await house.tick()
    assert made.id not in house.fleet.names


async def test_jobs_are_asked_for_only_when_it_matters(build: Build) -> None:
    house = build(IDLE)
    made = await house.disposables.create(SandboxOrder(timeout_s=500))
    house.pass_time(400)
    await house.tick()
    assert house.provider.asked.count("open") == 0
    house.pass_time(50)
    await house.tick()
    assert house.provider.asked.count("open") == 1
    assert house.row(made.id).idle_since == 1_000_000.0


class NoJobs:
    async def list(self, limit: int = 100) -> list[JobSeen]:
        raise Unsupported("there are no jobs here")


async def test_one_that_can_have_no_jobs_is_idle(build: Build) -> None:
    house = build(IDLE)
    made = await house.disposables.create(ORDER)
    house.provider.sandboxes[made.id].jobs = NoJobs()  # type: ignore[assignment]
    house.pass_time(601)
    await house.tick()
    assert house.provider.deleted == [made.id]


async def test_one_that_does_not_say_is_left_for_now(build: Build) -> None:
    house = build(IDLE)
    made = await house.disposables.create(ORDER)
    house.provider.sandboxes[made.id].fail(Unreachable("no answer"))
    house.pass_time(601)
    await house.tick()
    assert made.id in house.provider.made
    house.provider.sandboxes[made.id].fail(None)
    await house.tick()
    assert house.provider.deleted == [made.id]


async def test_what_could_not_be_deleted_is_tried_again_and_its_reason_stays(build: Build) -> None:
    house = build(IDLE)
    made = await house.disposables.create(ORDER)
    house.pass_time(601)
    house.provider.fail(Unreachable("the platform does not answer"), "delete")
    await house.tick()
    assert (house.row(made.id).disposable.status, list(house.fleet.names)) == ("ending", ["gpu1"])
    assert await house.disposables.list() == []
    house.provider.fail(None, "delete")
    await house.tick()
    assert house.row(made.id).why == "cleaned_up"


async def test_an_expired_one_is_removed_and_told(house: House) -> None:
    made = await house.disposables.create(replace(ORDER, timeout_s=100))
    house.pass_time(103)
    await house.tick()
    assert house.row(made.id).disposable.status == "expired"
    with pytest.raises(UnknownSandbox, match="web has expired"):
        house.fleet.member(made.id)


async def test_a_process_is_needed_by_sandboxes_that_live_alone(build: Build) -> None:
    """One that has expired, or was deleted by another process, is not named, even before that is noticed here."""
    house, elsewhere = build(), build()
    short = await house.disposables.create(replace(ORDER, name="short", timeout_s=100))
    doomed = await house.disposables.create(replace(ORDER, name="doomed", timeout_s=1000))
    lives = await house.disposables.create(replace(ORDER, name="lives", timeout_s=1000))
    sentence = "the sandbox {} lives, and what runs in it would end"
    assert [*await house.disposables.needs()] == [sentence.format(it.title) for it in (short, doomed, lives)]
    house.pass_time(103)
    assert [*await house.disposables.needs()] == [sentence.format(it.title) for it in (doomed, lives)]
    assert elsewhere.rows.end(doomed.id, "deleted", "deleted", house.clock())
    assert [*await house.disposables.needs()] == [sentence.format(lives.title)]


async def test_one_that_others_use_meanwhile_is_not_cleaned_up(build: Build) -> None:
    house = build(IDLE)
    made = await house.disposables.create(ORDER)
    house.pass_time(601)
    sandbox = house.provider.sandboxes[made.id]
    sandbox.delay_s = 0.05
    round_ = asyncio.ensure_future(house.tick())
    await until(lambda: "open" in house.provider.asked)
    house.rows.touch(made.id, house.clock())
    await round_
    assert house.provider.deleted == []


async def test_a_busy_one_is_not_swept_even_if_it_could_not_be_renewed(house: House) -> None:
    made = await house.disposables.create(replace(ORDER, timeout_s=100))
    sandbox = await house.fleet.get(made.id)
    house.provider.fail(Unreachable("the platform does not answer"), "renew")
    await sandbox.run(Command("endless", timeout_s=1000), patience_s=0.01)
    house.pass_time(150)
    await house.tick()
    assert made.id in house.provider.made


async def test_strange_trouble_with_one_does_not_hurt_the_others(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    class Strange(FakeProvider):
        async def delete(self, disposable: object) -> None:
            raise ZeroDivisionError("strange")

    strange, good = Strange("opensandbox"), FakeProvider("embedded")
    house = build(IDLE, opensandbox=strange, embedded=good)
    bad = await house.disposables.create(SandboxOrder(timeout_s=0))
    fine = await house.disposables.create(SandboxOrder(timeout_s=0, provider="embedded"))
    house.pass_time(601)
    with caplog.at_level(logging.ERROR):
        await house.tick()
    assert "could not be looked after" in caplog.text
    assert good.deleted == [fine.id]
    assert house.row(bad.id).disposable.status == "ending"


async def test_the_rounds_go_on_after_one_that_failed(house: House, caplog: pytest.LogCaptureFixture) -> None:
    rounds: list[int] = []

    async def tick() -> tuple[()]:
        rounds.append(1)
        if len(rounds) == 1:
            raise ZeroDivisionError("strange")
        return ()

    house.disposables.service.tending.tick = tick  # type: ignore[method-assign]
    house.disposables.service.tending.wake()
    await until(lambda: len(rounds) == 1)
    await until(lambda: "round over the disposable sandboxes failed" in caplog.text)
    house.disposables.service.tending.wake()
    await until(lambda: len(rounds) == 2)


async def test_the_rounds_begin_with_the_first_sandbox_and_need_nobody(build: Build) -> None:
    house = build(DisposableRules(cleanup_after_minutes=0.001))
    made = await house.disposables.create(replace(ORDER, timeout_s=1))
    house.pass_time(1)
    await until(lambda: house.provider.deleted == [made.id])


async def test_changes_by_others_are_told(house: House, build: Build) -> None:
    await house.disposables.create(ORDER)
    await house.tick()
    before = house.changes
    await house.tick()
    assert house.changes == before
    await build(embedded=house.provider).disposables.create(SandboxOrder(name="other"))
    await house.tick()
    assert house.changes == before + 1


# From one server to the next


async def test_at_the_end_of_a_server_all_of_them_stay(house: House, build: Build) -> None:
    made = await house.disposables.create(ORDER)
    house.pass_time(40)
    await (await house.fleet.get("web")).run(Command("true"))
    await house.close()
    assert list(house.provider.made) == [made.id]
    assert house.row(made.id).idle_since == 1_000_040.0
    assert house.provider.is_closed
    house.rows.database.close()


async def test_the_end_of_a_server_takes_a_second_at_most(build: Build) -> None:
    house = build(DisposableRules(pool={"/python": 1}))
    await house.disposables.adopt()
    await until(lambda: house.provider.made)
    house.provider.delay_s = 30.0
    begin = asyncio.get_running_loop().time()
    await house.disposables.close()
    assert asyncio.get_running_loop().time() - begin < 1.5


async def crashed(house: House, order: SandboxOrder) -> str:
    """One whose server is gone without a word."""
    house.belongs_to(Owner(99_999_999, "dead"))
    made = await house.disposables.create(order)
    await house.disposables.service.tending.stop()
    house.disposables.__dict__.pop("service")
    return made.id


async def test_what_a_crashed_server_left_ends_with_its_time(house: House, build: Build) -> None:
    made = await crashed(house, SandboxOrder(timeout_s=100))
    house.pass_time(103)
    later = build(embedded=house.provider)
    await later.disposables.adopt()
    await until(lambda: house.provider.deleted == [made])
    await until(lambda: later.rows.is_empty())
    assert list(later.fleet.names) == ["gpu1"]


async def test_what_is_left_is_known_again_and_inherited_without_opening(house: House, build: Build) -> None:
    made = await crashed(house, ORDER)
    before = list(house.provider.asked)
    later = build(embedded=house.provider)
    await later.disposables.adopt()
    assert list(later.fleet.names) == ["gpu1", made, "web"]
    await until(lambda: later.row(made).owner == later.disposables.service.registry.me)
    await until(lambda: house.provider.asked == [*before, "look"])
    await (await later.fleet.get("web")).run(Command("true"))


async def test_a_row_without_a_sandbox_is_struck_out(house: House, build: Build) -> None:
    made = await crashed(house, ORDER)
    house.provider.kill(made)
    later = build(embedded=house.provider)
    await later.disposables.adopt()
    await until(lambda: later.rows.is_empty())
    assert list(later.fleet.names) == ["gpu1"]


async def test_a_crash_while_one_was_made_is_swept(house: House, build: Build) -> None:
    house.belongs_to(Owner(99_999_999, "dead"))
    plan = house.disposables.service.making._plan(SandboxOrder(provider="embedded"))
    house.rows.reserve(plan, 5)
    await house.provider.create(plan.id, SandboxOrder())
    later = build(embedded=house.provider)
    await later.disposables.adopt()
    await until(lambda: house.provider.deleted == [plan.id])
    await until(lambda: later.rows.is_empty())


async def test_what_a_neighbour_leaves_that_crashes_is_taken_over_without_a_restart(house: House, build: Build) -> None:
    await house.disposables.create(SandboxOrder())
    orphan = await crashed(build(embedded=house.provider), SandboxOrder(name="left"))
    await house.tick()
    assert house.provider.deleted == []
    assert house.row(orphan).owner == house.disposables.service.registry.me
    assert "left" in house.fleet.names


async def test_deleting_what_a_crashed_server_was_making_ends_it(house: House, build: Build) -> None:
    house.belongs_to(Owner(99_999_999, "dead"))
    plan = house.disposables.service.making._plan(SandboxOrder(provider="embedded"))
    house.rows.reserve(plan, 5)
    await house.provider.create(plan.id, SandboxOrder())
    later = build(embedded=house.provider)
    assert (await later.disposables.service.delete(plan.id)).status == "gone"
    assert (house.provider.made, later.rows.living()) == ({}, ())


def test_time_to_look_for_late_ones_is_longer_than_a_platform_takes() -> None:
    assert tending.LATE_S >= 2 * 60


# Under another configuration


async def test_one_of_another_configuration_is_not_there(house: House, build: Build) -> None:
    maker = build(configuration="a", embedded=house.provider)
    made = await maker.disposables.create(ORDER)
    stranger = build(configuration="b", embedded=house.provider)
    assert await stranger.disposables.list() == []
    assert await stranger.disposables.find("web") is None
    assert not await stranger.disposables.is_over(made.id)
    for asked in ("delete", "pause", "resume"):
        with pytest.raises(UnknownSandbox, match="was never made"):
            await getattr(stranger.disposables.service, asked)(made.id)
    with pytest.raises(UnknownSandbox, match="was never made"):
        await stranger.disposables.service.renew("web", 10)
    with pytest.raises(UnknownSandbox, match="no sandbox is named"):
        stranger.fleet.member(made.id)
    assert list(house.provider.made) == [made.id]


async def test_names_of_one_configuration_are_free_in_another(house: House, build: Build) -> None:
    first = build(configuration="a", embedded=house.provider)
    second = build(configuration="b", embedded=house.provider)
    made = [await each.disposables.create(ORDER) for each in (first, second)]
    assert [each.fleet.member("web").name for each in (first, second)] == [it.id for it in made]


async def test_one_of_another_configuration_is_left_alone_until_its_time_is_over(house: House, build: Build) -> None:
    made = await crashed(build(configuration="a", embedded=house.provider), SandboxOrder(timeout_s=4000))
    stranger = build(IDLE, configuration="b", embedded=house.provider)
    house.pass_time(3000)
    await stranger.tick()
    assert (house.provider.deleted, stranger.row(made).owner.birth) == ([], "dead")
    house.pass_time(1003)
    await stranger.tick()
    assert house.provider.deleted == [made]


async def test_all_configurations_count_and_only_the_own_are_named(house: House, build: Build) -> None:
    rules = DisposableRules(max_concurrent=2)
    await build(rules, configuration="a", embedded=house.provider).disposables.create(SandboxOrder(name="theirs"))
    mine = build(rules, configuration="b", embedded=house.provider)
    await mine.disposables.create(SandboxOrder(name="ours"))
    with pytest.raises(
        SandboxError, match=r"2 exist \(1 of them under other config.*delete_sandbox \(the oldest: ours"
    ) as told:
        await mine.disposables.create(SandboxOrder())
    assert "theirs" not in str(told.value)


async def test_the_watchdog_ends_what_has_expired_and_takes_over_nothing(house: House, build: Build) -> None:
    over = await crashed(build(configuration="a", embedded=house.provider), SandboxOrder(timeout_s=100))
    left = await crashed(build(configuration="b", embedded=house.provider), SandboxOrder(timeout_s=1000))
    house.pass_time(103)
    watchdog = build(embedded=house.provider)
    await watchdog.disposables.sweep()
    assert house.provider.deleted == [over]
    assert (watchdog.row(left).owner.birth, list(watchdog.fleet.names)) == ("dead", ["gpu1"])


async def test_the_watchdog_leaves_alone_what_its_own_process_tends(house: House, build: Build) -> None:
    """In the hub, who uses a sandbox and who sweeps are one process; the user may be about to renew it."""
    made = await house.disposables.create(SandboxOrder(timeout_s=100))
    # It would see to the end of its time itself.
    await house.disposables.service.tending.stop()
    house.pass_time(103)
    watchdog = build(embedded=house.provider)
    await watchdog.disposables.sweep()
    assert house.provider.deleted == []
    assert not house.row(made.id).ended
