"""A sandbox in use lives on; one that is over says so in a sentence."""

from __future__ import annotations

import asyncio

import pytest

from remote_sandbox_mcp.config.inherited import PLATFORM
from remote_sandbox_mcp.core.commands.command import Command, Completed, Running
from remote_sandbox_mcp.core.errors import (
    ConnectError,
    FileProblem,
    LostContact,
    SandboxError,
    UnknownSandbox,
    Unreachable,
    Unsupported,
)
from remote_sandbox_mcp.core.jobs.job import JobOrder, JobQuery, JobWait
from remote_sandbox_mcp.core.permission import Notify
from remote_sandbox_mcp.core.sandboxes.disposable import SandboxOrder
from remote_sandbox_mcp.core.sandboxes.files import Search, Span
from remote_sandbox_mcp.core.sandboxes.port import Stream
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from remote_sandbox_mcp.services.jobs.records import JobRegistry
from remote_sandbox_mcp.services.jobs.start import Starting
from tests.support.disposable_house import House, begun, until
from tests.support.fakes.disposables import FakeProvider

from .conftest import Build

ORDER = SandboxOrder(name="web", timeout_s=600.0)


async def opened(house: House, order: SandboxOrder = ORDER) -> tuple[str, Sandbox]:
    made = await house.disposables.create(order)
    return made.id, await house.fleet.get(made.id)


async def test_everything_that_a_sandbox_does_is_done_by_the_one_inside(house: House) -> None:
    _, sandbox = await opened(house)
    await sandbox.open()
    assert sandbox.is_open
    assert isinstance(await sandbox.run(Command("true")), Completed)
    await sandbox.write("~/a", b"one\n")
    assert (await sandbox.read("~/a", Span())).data == b"one\n"
    assert len((await sandbox.list("~")).entries) == 1
    assert len((await sandbox.search(Search("~", pattern="one"))).matches) == 1
    with pytest.raises(Unsupported):
        await sandbox.open_lane()
    with pytest.raises(FileProblem):
        await sandbox.read("~/b", Span())
    sandbox.forget("run-0000000000")
    await sandbox.close()
    assert house.provider.asked == ["create", "open"]


async def test_jobs_are_those_of_the_one_inside(house: House) -> None:
    _, sandbox = await opened(house)
    started = await sandbox.jobs.start(JobOrder(session="train", script="x"))
    look = JobQuery(job_id=started.job_id)
    assert [seen.session for seen in await sandbox.jobs.inspect([look])] == ["train"]
    await sandbox.jobs.send(look, text="y")
    assert (await sandbox.jobs.wait(look, JobWait(seconds=0.01))).why == "timeout"
    assert len(await sandbox.jobs.list()) == 1
    assert not (await sandbox.jobs.stop(look)).is_running


async def test_use_is_noted_for_the_others(house: House) -> None:
    made, sandbox = await opened(house)
    house.pass_time(100)
    await sandbox.run(Command("true"))
    await until(lambda: house.row(made).idle_since == 1_000_100.0)


async def test_looking_whether_it_answers_is_no_use(house: House) -> None:
    made, sandbox = await opened(house)
    house.pass_time(400)
    await sandbox.open()
    await house.get(made)
    await house.disposables.list()
    await house.tick()
    assert (house.row(made).idle_since, house.provider.renewals) == (1_000_000.0, [])


async def test_with_less_than_half_of_its_time_left_it_is_renewed_in_passing(house: House) -> None:
    made, sandbox = await opened(house)
    house.pass_time(299)
    await sandbox.run(Command("true", timeout_s=120))
    assert house.provider.renewals == []
    house.pass_time(2)
    await sandbox.run(Command("true", timeout_s=120))
    await until(lambda: house.provider.renewals == [(made, 600.0)])
    await until(lambda: house.row(made).disposable.expires == 1_000_901.0)


async def test_before_a_long_command_it_is_renewed_for_as_long(house: House) -> None:
    made, sandbox = await opened(house)
    await sandbox.run(Command("true", timeout_s=3600))
    assert house.provider.renewals == [(made, 3610.0)]
    assert house.row(made).disposable.expires == 1_003_610.0
    await sandbox.run(Command("true", timeout_s=3600))
    assert len(house.provider.renewals) == 1


async def test_one_without_an_end_is_never_renewed(house: House) -> None:
    _, sandbox = await opened(house, SandboxOrder(timeout_s=0))
    await sandbox.run(Command("true", timeout_s=86400))
    assert house.provider.renewals == []


async def test_many_at_once_renew_it_once(house: House) -> None:
    made, sandbox = await opened(house)
    house.pass_time(400)
    house.provider.delay_s = 0.01
    await asyncio.gather(*(sandbox.run(Command("true", timeout_s=590)) for _ in range(20)))
    await until(lambda: not house.life(made)._renewing.locked())
    assert house.provider.renewals == [(made, 600.0)]


async def test_what_another_process_has_renewed_is_not_shortened(house: House) -> None:
    made, sandbox = await opened(house)
    house.rows.extend(made, 1_009_000.0)
    house.pass_time(400)
    await sandbox.run(Command("true"))
    await until(lambda: house.life(made).disposable.expires == 1_009_000.0)
    assert house.provider.renewals == []


async def test_a_command_is_run_even_where_renewing_fails(house: House) -> None:
    made, sandbox = await opened(house)
    house.provider.fail(Unreachable("the platform does not answer"), "renew")
    assert isinstance(await sandbox.run(Command("true", timeout_s=3600)), Completed)
    await until(lambda: house.row(made).disposable.expires == 1_000_600.0)


async def test_a_command_that_runs_is_not_cut_off(house: House) -> None:
    made, sandbox = await opened(house)
    seen = await sandbox.run(Command("endless", timeout_s=3000), patience_s=0.01)
    assert isinstance(seen, Running)
    for _ in range(10):
        house.pass_time(290)
        await house.tick()
    assert house.provider.made[made].expires > 1_003_000.0
    assert house.life(made).is_busy
    await sandbox.stop(seen.run_id)
    assert not house.life(made).is_busy


async def test_a_run_that_nobody_asks_for_is_over_with_its_own_time(house: House) -> None:
    made, sandbox = await opened(house)
    await sandbox.run(Command("endless", timeout_s=100), patience_s=0.01)
    assert house.life(made).is_busy
    house.pass_time(111)
    assert not house.life(made).is_busy


async def test_a_cancelled_call_leaves_nothing_busy(house: House) -> None:
    made, sandbox = await opened(house)
    task = await begun(sandbox.run(Command("endless")))
    await until(lambda: house.provider.sandboxes[made].commands)
    assert house.life(made).is_busy
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not house.life(made).is_busy


async def test_a_connection_to_a_port_is_use_until_it_is_closed(house: House) -> None:
    made, sandbox = await opened(house)

    async def echo(stream: Stream) -> None:
        stream.write(await stream.read())
        await stream.drain()

    house.provider.sandboxes[made].ports[80] = echo
    stream = await sandbox.connect(80)
    stream.write(b"hello")
    await stream.drain()
    assert await stream.read() == b"hello"
    assert house.life(made).is_busy
    stream.close()
    assert not house.life(made).is_busy


# One that is over

GONE = "the sandbox web {} at .*; make a new one with create_sandbox"


async def test_one_that_was_killed_is_told_noted_and_forgotten(house: House) -> None:
    made, sandbox = await opened(house)
    house.provider.kill(made)
    with pytest.raises(ConnectError, match=GONE.format("was ended by its platform or from outside")):
        await sandbox.run(Command("true"))
    assert list(house.fleet.names) == ["gpu1"]
    assert (house.row(made).disposable.status, house.rows.is_empty()) == ("gone", True)
    with pytest.raises(UnknownSandbox, match=GONE.format("was ended by its platform or from outside")):
        house.fleet.member("web")
    assert house.changes == 2


async def test_a_command_that_was_cut_off_by_the_end_keeps_what_it_had_printed(house: House) -> None:
    made, sandbox = await opened(house)
    task = await begun(sandbox.run(Command("endless")))
    await until(lambda: house.provider.sandboxes[made].commands)
    house.provider.kill(made)
    with pytest.raises(LostContact, match=GONE.format("was ended by its platform or from outside")) as told:
        await task
    assert (told.value.outcome, told.value.so_far.stdout.head) == ("lost", b"so far")


async def test_one_that_has_expired_is_told_as_that(house: House) -> None:
    made, sandbox = await opened(house)
    house.pass_time(601)
    house.provider.kill(made)
    with pytest.raises(ConnectError, match=GONE.format("has expired, unused for its whole time,")):
        await sandbox.read("~/a", Span())
    assert house.row(made).disposable.status == "gone"


async def test_one_that_another_process_has_deleted_is_told_as_that(house: House, build: Build) -> None:
    made, sandbox = await opened(house)
    other = build(embedded=house.provider)
    await other.disposables.service.delete("web")
    with pytest.raises(ConnectError, match=GONE.format("was deleted")):
        await sandbox.run(Command("true"))
    assert made not in house.fleet.names


async def test_what_another_process_has_deleted_leaves_the_fleet_by_itself(house: House, build: Build) -> None:
    made, _ = await opened(house)
    other = build(embedded=house.provider)
    await other.disposables.service.delete("web")
    await house.tick()
    assert list(house.fleet.names) == ["gpu1"]
    with pytest.raises(UnknownSandbox, match=r"web was deleted at "):
        house.fleet.member(made)


async def test_trouble_with_one_that_is_there_is_told_as_it_is(house: House) -> None:
    made, sandbox = await opened(house)
    house.provider.sandboxes[made].fail(Unreachable("web: no route"))
    with pytest.raises(Unreachable, match="web: no route"):
        await sandbox.run(Command("true"))
    house.provider.fail(Unreachable("the platform does not answer"))
    with pytest.raises(Unreachable, match="web: no route"):
        await sandbox.run(Command("true"))
    assert made in house.fleet.names


async def test_one_that_is_paused_says_so_until_it_is_resumed(house: House) -> None:
    made, sandbox = await opened(house, SandboxOrder(name="web", timeout_s=0))
    assert (await house.disposables.service.pause("web")).status == "paused"
    with pytest.raises(ConnectError, match="web is paused; continue it with resume_sandbox"):
        await sandbox.run(Command("true"))
    assert (await house.get("web")).status == "paused"
    house.pass_time(3 * 3600)
    await house.tick()
    assert made in house.provider.made
    assert (await house.disposables.service.resume("web")).status == "running"
    assert isinstance(await sandbox.run(Command("true")), Completed)


# Verbs


async def test_deleting_twice_says_what_became_of_it(house: House) -> None:
    made, _ = await opened(house)
    first = await house.disposables.service.delete(made)
    again = await house.disposables.service.delete("web")
    assert (first.status, first.notes, again.status) == ("gone", (), "gone")
    assert again.notes[0].startswith("the sandbox web was deleted at ")
    assert house.provider.deleted == [made]
    with pytest.raises(UnknownSandbox, match="was never made"):
        await house.disposables.service.delete("other")
    with pytest.raises(UnknownSandbox, match="is a machine"):
        await house.disposables.service.delete("gpu1")


async def test_what_cannot_be_deleted_now_stays_known(house: House) -> None:
    made, _ = await opened(house)
    house.provider.fail(Unreachable("the platform does not answer"), "delete")
    with pytest.raises(Unreachable):
        await house.disposables.service.delete(made)
    assert (await house.fleet.get("web")).description.name == "web"
    house.provider.fail(None, "delete")
    await house.disposables.service.delete(made)


async def test_a_renewal_sets_how_long_it_lives_from_then_on(house: House) -> None:
    made, sandbox = await opened(house)
    renewed = await house.disposables.service.renew("web", 2000)
    assert (renewed.expires, house.row(made).timeout_s) == (1_002_000.0, 2000.0)
    house.pass_time(1001)
    await sandbox.run(Command("true"))
    await until(lambda: house.provider.renewals == [(made, 2000), (made, 2000)])
    await sandbox.run(Command("endless", timeout_s=5000), patience_s=0.01)
    assert (await house.disposables.service.renew("web", 60)).expires == house.clock() + 5010
    with pytest.raises(SandboxError, match="timeout is 0"):
        await house.disposables.service.renew("web", 0)


async def test_every_verb_says_what_became_of_one_that_is_over(build: Build) -> None:
    house = build(opensandbox=FakeProvider("opensandbox"))
    made, _ = await opened(house)
    assert await house.disposables.service.endpoint(made, 80) == "http://127.0.0.1:80/"
    await house.disposables.service.delete(made)
    for asked in (
        house.get(made),
        house.disposables.service.renew(made, 60),
        house.disposables.service.pause(made),
        house.disposables.service.resume(made),
        house.disposables.service.snapshot(made),
        house.disposables.service.endpoint(made, 80),
    ):
        with pytest.raises(UnknownSandbox, match=GONE.format("was deleted")):
            await asked


async def test_a_verb_on_one_that_was_killed_notes_it(house: House) -> None:
    made, _ = await opened(house)
    house.provider.kill(made)
    with pytest.raises(ConnectError, match=GONE.format("was ended by its platform or from outside")):
        await house.disposables.service.renew(made, 60)
    assert house.rows.is_empty()


async def test_a_provider_that_does_not_answer_delays_nobody_and_is_told(build: Build) -> None:
    embedded, platform = FakeProvider("embedded"), FakeProvider("opensandbox")
    house = build(embedded=embedded, opensandbox=platform)
    far = await house.disposables.create(SandboxOrder())
    near = await house.disposables.create(SandboxOrder(provider="embedded"))
    platform.fail(Unreachable("no route to the platform"))
    listed = {it.id: it for it in await house.disposables.list()}
    assert listed[near.id] == near
    assert "opensandbox did not answer (no route to the platform)" in listed[far.id].notes[0]
    assert "did not answer" in (await house.get(far.id)).notes[0]


async def test_what_is_not_there_any_more_is_not_listed(house: House) -> None:
    made, _ = await opened(house)
    house.provider.kill(made)
    assert await house.disposables.list() == []
    assert (house.rows.is_empty(), list(house.fleet.names)) == (True, ["gpu1"])


async def test_a_round_that_began_before_its_end_does_not_bring_it_back(house: House) -> None:
    made, _ = await opened(house)
    row = house.row(made)
    await house.disposables.service.delete(made)
    house.disposables.service.registry.admit_all([row])
    assert list(house.fleet.names) == ["gpu1"]


async def test_who_listens_hears_of_changes_until_that_is_ended(house: House) -> None:
    heard: list[int] = []
    end = house.disposables.on_change(lambda: heard.append(1))
    made, _ = await opened(house)
    await house.disposables.service.pause(made)
    end()
    await house.disposables.service.delete(made)
    assert len(heard) >= 2
    count = len(heard)
    await house.tick()
    assert len(heard) == count


async def test_a_renewal_tells_the_end_that_the_platform_has_set(house: House) -> None:
    house.provider.least_s = 60.0
    made, sandbox = await opened(house)
    renewed = await house.disposables.service.renew("web", 10)
    assert (renewed.expires, house.row(made).disposable.expires) == (1_000_060.0, 1_000_060.0)
    house.pass_time(56)
    house.provider.least_s = 90.0
    await sandbox.run(Command("true", timeout_s=20))
    assert house.row(made).disposable.expires == 1_000_146.0


async def test_a_platform_that_gives_no_sandbox_is_told_though_nobody_has_one(build: Build) -> None:
    platform = FakeProvider("opensandbox")
    house = build(opensandbox=platform)
    assert list(await house.disposables.troubles(())) == []
    platform.fail(Unreachable("it does not answer"), "list")
    assert list(await house.disposables.troubles(())) == ["it does not answer"]


@pytest.mark.parametrize(("kind", "names"), [("embedded", ["web"]), ("opensandbox", ["web", PLATFORM])])
async def test_what_a_platform_has_is_handed_over_with_the_platforms_key(
    build: Build, monkeypatch: pytest.MonkeyPatch, kind: str, names: list[str]
) -> None:
    house, handed = build(**{kind: FakeProvider(kind)}), []
    monkeypatch.setattr("remote_sandbox_mcp.config.inherited.hand_over", lambda names, *_: handed.extend(names) or "")
    await house.disposables.create(SandboxOrder(name="web"))
    assert await Starting(house.fleet, Notify(), JobRegistry()).hand_over(["web"]) == ""
    assert handed == names
