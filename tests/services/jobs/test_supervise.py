"""Rounds of the watchdog: one round trip for each machine, nobody stopped by another's trouble, nothing done twice."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.core.errors import ConfigError
from remote_sandbox_mcp.core.jobs.job import JobState, NoCards
from remote_sandbox_mcp.core.jobs.watch import Decision, Event, EventType, Policy, Status, Watch
from remote_sandbox_mcp.local.store.jobs import JobRecord
from remote_sandbox_mcp.services.jobs import curves, supervise
from tests.support.job_world import BEGINNING, World, unheard

QUIET = Policy(notify_local=False)
RESUMING = Policy(
    notify_local=False, auto_resume=True, resume_command="again", resume_cwd="/w", resume_env={"STEP": "7"},
    resume_delay_s=0, max_resume_attempts=2,
)  # fmt: skip
GONE, ENDED = JobState.GONE, JobState.ENDED


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.bury()


async def later(world: World, seconds: float = 300.0) -> float:
    world.now += seconds
    return await world.supervisor.tick()


# One round


async def test_with_nothing_to_do_nothing_is_due(world: World) -> None:
    assert await world.supervisor.tick() == math.inf


async def test_a_round_looks_at_what_is_due_and_says_when_the_next_is(world: World) -> None:
    world.watch(policy=QUIET)
    assert await world.supervisor.tick() == BEGINNING + 300
    assert await later(world, 200) == BEGINNING + 300
    assert len(world.machine().queries) == 1
    assert world.state().last_state == "running"


async def test_however_many_watches_each_machine_is_asked_once(world: World) -> None:
    for number in range(500):
        world.watch(f"job-{number}", f"gpu{number % 20}", policy=QUIET)
    for round_number in (1, 2):
        await later(world)
        assert [len(machine.queries) for machine in world.machines.values()] == [round_number] * 20
        assert [len(machine.queries[-1]) for machine in world.machines.values()] == [25] * 20
    assert {watch.last_state for watch in world.watches.list(limit=1000)} == {"running"}


async def test_the_rows_of_jobs_are_kept_up_to_date(world: World) -> None:
    watch = world.watch(policy=QUIET)
    world.records.add(JobRecord(job_id=watch.job_id, sandbox="gpu1", session="train"))
    await world.supervisor.tick()
    world.machine().end(ENDED, exit_code=3)
    await later(world)
    record = world.records.get(watch.job_id)
    assert record
    assert (record.state, record.exit_code) == ("ended", 3)
    assert world.state().status is Status.COMPLETED
    assert await later(world) == math.inf


async def test_a_look_at_a_row_that_changed_meanwhile_is_dropped(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.watch(policy=QUIET)
    world.machine().end(ENDED, exit_code=0)
    look = world.machine().inspect

    async def look_while_somebody_cancels(looks: Any) -> Any:
        world.watches.cancel(1)
        return await look(looks)

    monkeypatch.setattr(world.machine(), "inspect", look_while_somebody_cancels)
    assert await world.supervisor.tick() == math.inf
    assert (world.state().status, world.events()) == (Status.CANCELLED, [])


# Trouble


async def test_a_sandbox_that_is_not_configured_is_told_at_once(world: World) -> None:
    world.watch(policy=QUIET)
    machine = world.machines.pop("gpu1")
    await world.supervisor.tick()
    assert (world.events(), world.state().last_state) == (["config_missing"], "config_missing")
    world.machines["gpu1"] = machine
    await later(world)
    assert world.events() == ["config_missing", "running_restored"]


@pytest.mark.parametrize("trouble", ["down", "hangs", "defect", "short answer"])
async def test_a_machine_in_trouble_stops_no_other(
    world: World, trouble: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervise, "LIMIT_S", 0.05)
    monkeypatch.setattr(supervise.attempt, "__defaults__", (0.05,))
    for name in ("bad", "good"):
        world.watch("train", name, policy=replace(QUIET, alert_after_failures=1))
    world.machine("bad").is_up = trouble != "down"
    world.machine("bad").hangs = trouble == "hangs"

    async def look(looks: Any) -> Any:
        if trouble == "defect":
            raise ZeroDivisionError("oops")
        return []

    if trouble in ("defect", "short answer"):
        monkeypatch.setattr(world.machine("bad"), "inspect", look)
    assert await world.supervisor.tick() == BEGINNING + 300
    assert (world.state(2).last_state, world.events(2)) == ("running", [])
    assert (world.state(1).last_state, world.events(1)) == ("unreachable", ["ssh_unreachable"])
    reason = {"down": "bad does not answer", "hangs": "no answer within 0.05 s", "defect": "ZeroDivisionError: oops",
              "short answer": "asked for 1 jobs and answered for 0"}  # fmt: skip
    assert reason[trouble] in world.state(1).last_error
    assert ("unexpected trouble" in caplog.text) is (trouble in ("defect", "short answer"))


async def test_a_checkpoint_that_hangs_hides_no_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "CHECKPOINTS_S", 0.01)
    world.watch("slow", policy=replace(QUIET, checkpoint_command="cat /hung"), last_checkpoint="step 7")
    world.watch("other", policy=QUIET)
    look = world.machine().inspect

    async def hang_for_checkpoints(looks: Any) -> Any:
        if any(one.checkpoint_command for one in looks):
            await asyncio.sleep(3600)
        return await look(looks)

    monkeypatch.setattr(world.machine(), "inspect", hang_for_checkpoints)
    await world.supervisor.tick()
    assert [world.state(number).last_state for number in (1, 2)] == ["running", "running"]
    assert world.state(1).last_checkpoint == "step 7"
    assert "it took too long" in world.state(1).last_error
    assert world.state(2).last_error == ""


async def test_a_machine_that_hangs_holds_up_no_effect_of_another(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bad", "good"):
        world.watch("train", name, policy=RESUMING)
    world.machine("bad").hangs = True
    world.machine("good").end(GONE)
    announce, told = world.announce, asyncio.Event()

    async def hear(channel: str, watch: Watch, event: Event) -> None:
        await announce(channel, watch, event)
        if event.type is EventType.RESUME_STARTED:
            told.set()

    monkeypatch.setattr(world.supervisor._effects, "_announce", hear)
    tick = asyncio.ensure_future(world.supervisor.tick())
    await asyncio.wait_for(told.wait(), 10)
    assert not tick.done()
    tick.cancel()
    await asyncio.wait([tick])


async def test_one_watch_that_fails_stops_no_other_of_its_machine(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for session in ("a", "b", "c"):
        world.watch(session, policy=QUIET)
    commit = world.watches.commit

    def fail_for_the_second(decision: Decision, now: float, **more: Any) -> bool:
        if decision.watch.id == 2:
            raise ConfigError("disk full")
        return commit(decision, now, **more)

    monkeypatch.setattr(world.watches, "commit", fail_for_the_second)
    # It is due still, but not again and again without a pause.
    assert await world.supervisor.tick() == BEGINNING + 30
    assert [world.state(number).last_state for number in (1, 2, 3)] == ["running", "starting", "running"]
    assert "disk full" in caplog.text


@pytest.mark.parametrize("problem", [unheard(passing=False), ZeroDivisionError("oops"), asyncio.TimeoutError()])
async def test_a_listener_that_fails_stops_no_other_and_is_not_told_again(world: World, problem: Exception) -> None:
    world.watch(policy=replace(QUIET, hooks=("a", "b")))
    world.machine().end(ENDED, exit_code=0)
    world.deaf = [problem]
    for _ in range(3):
        await later(world)
    assert len(world.told) == 2
    assert set(world.heard.values()) == {1}


async def test_what_did_not_reach_anybody_is_told_again_three_times(world: World) -> None:
    world.watch(policy=QUIET)
    world.machine().end(ENDED, exit_code=0)
    world.deaf = [unheard(passing=True) for _ in range(9)]
    dues = [await world.supervisor.tick()]
    while dues[-1] < math.inf:
        world.now = dues[-1]
        dues.append(await world.supervisor.tick())
    assert [due - BEGINNING for due in dues] == [10, 70, 370, math.inf]
    assert len(world.deaf) == 5


async def test_what_reaches_somebody_at_last_is_not_told_again(world: World) -> None:
    world.watch(policy=QUIET)
    world.machine().end(ENDED, exit_code=0)
    world.deaf = [unheard(passing=True)]
    await world.supervisor.tick()
    assert await later(world, 10) == math.inf
    assert world.heard == {(1, "file"): 1}


async def test_a_slow_hook_holds_up_nobody_and_is_not_taken_for_dead(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "PATIENCE_S", 0.01)
    world.watch(policy=replace(QUIET, hooks=("slow",)))
    world.machine().end(ENDED, exit_code=0)
    announce, released = world.announce, asyncio.Event()

    async def wait_for_the_hook(channel: str, watch: Watch, event: Event) -> None:
        if channel == "hook:slow":
            await released.wait()
        await announce(channel, watch, event)

    monkeypatch.setattr(world.supervisor._effects, "_announce", wait_for_the_hook)
    # Something may still have to be done about it soon.
    assert await world.supervisor.tick() == BEGINNING + 1
    world.watch("other", policy=QUIET)
    await later(world)
    assert world.state(2).last_state == "running"
    assert world.heard == {(1, "file"): 1}
    released.set()
    assert await later(world, 100) == BEGINNING + 600
    assert world.heard == {(1, "file"): 1, (1, "hook:slow"): 1}
    with world.watches.database.reading() as connection:
        assert {row[0] for row in connection.execute("SELECT state FROM outbox")} == {"done"}


async def test_events_are_told_in_their_order(world: World) -> None:
    watch = world.watch(policy=QUIET)
    happened = [Event(type=EventType.INTERRUPTED, summary=f"{number}") for number in range(20)]
    world.watches.commit(Decision(watch, tuple(happened)), world.now)
    await world.supervisor.tick()
    assert [event.summary for _, _, event in world.told] == [event.summary for event in happened]


# Resuming


async def test_a_job_that_is_gone_is_started_again_in_the_same_round(world: World) -> None:
    watch = world.watch(policy=RESUMING, log_file="/w/log", cwd="/elsewhere")
    world.machine().end(GONE, rebooted=True)
    await world.supervisor.tick()
    (order,) = world.machine().orders
    assert (order.job_id, order.instead_of) == (f"{watch.job_id}-r1", watch.job_id)
    assert (order.session, order.script, order.cwd, order.log_file) == ("train", "again", "/w", "/w/log")
    assert order.env == {"STEP": "7"}
    assert world.events() == ["interrupted", "resume_started"]
    assert (world.state().job_id, world.state().last_state) == (order.job_id, "running")
    record = world.records.get(order.job_id)
    assert record
    assert (record.session, record.watch_id, record.state, record.command) == ("train", 1, "running", "again")
    await later(world)
    assert (world.events(), len(world.machine().queries)) == (["interrupted", "resume_started"], 2)


async def test_attempts_are_used_up(world: World) -> None:
    world.watch(policy=RESUMING)
    for _ in range(5):
        world.machine().end(GONE)
        await later(world)
    assert world.events() == ["interrupted", "resume_started"] * 2 + ["exhausted"]
    assert world.machine().begun == ["job-gpu1-train", "job-gpu1-train-r1", "job-gpu1-train-r2"]


async def test_a_session_that_is_not_ours_is_resumed_as_ours(world: World) -> None:
    world.watch(policy=RESUMING, job_id="")
    world.machine().end(GONE)
    world.machine().jobs["job-gpu1-train"].job_id = ""
    await world.supervisor.tick()
    (order,) = world.machine().orders
    assert (order.job_id, order.instead_of) == (f"job-watch-00000001-{int(BEGINNING * 1000):x}-r1", "")


async def test_a_resume_that_is_refused_for_good_is_told_and_counts(world: World) -> None:
    world.watch(policy=RESUMING)
    world.machine().end(GONE)
    world.machine().mishaps = ["refused", "refused"]
    await world.supervisor.tick()
    assert world.events() == ["interrupted", "resume_failed"]
    assert "no such folder" in world.state().last_error
    await later(world)
    assert world.events() == ["interrupted", "resume_failed", "resume_failed", "exhausted"]
    assert await later(world) == math.inf


async def test_a_resume_waits_for_cards_that_somebody_else_has_by_now(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again under the same id, and uses up no attempt."""
    watch = world.watch(policy=RESUMING)
    world.machine().end(GONE)
    start, tried = world.machine().start, []

    async def start_with_cards(order: Any) -> Any:
        tried.append(order.job_id)
        if len(tried) < 4:
            raise NoCards("gpu1: 1 GPU cannot be had now: 0 of 1 are free", ("GPU 0 is used by bob",))
        return await start(order)

    monkeypatch.setattr(world.machine(), "start", start_with_cards)
    for _ in range(4):
        await later(world)
    assert tried == [f"{watch.job_id}-r1"] * 4
    assert (world.events(), world.state().resume_attempts) == (["interrupted", "resume_started"], 1)


@pytest.mark.parametrize(
    ("state", "events"),
    [(JobState.RUNNING, ["interrupted", "running_restored"]), (ENDED, ["interrupted", "completed"])],
    ids=["runs", "ended"],
)
async def test_a_job_that_was_not_gone_after_all_costs_no_attempt(
    world: World, state: JobState, events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = world.watch(policy=RESUMING)
    job = world.machine().jobs[watch.job_id]
    job.state = GONE
    start = world.machine().start

    async def start_too_late(order: Any) -> Any:
        job.state = state
        return await start(order)

    monkeypatch.setattr(world.machine(), "start", start_too_late)
    assert await world.supervisor.tick() == BEGINNING
    assert (world.events(), world.state().resume_attempts) == (["interrupted"], 0)
    await later(world, 0)
    assert world.events() == events
    assert world.machine().begun == [watch.job_id]


@pytest.mark.parametrize("mishap", ["lost before", "lost after"])
async def test_a_resume_without_contact_is_tried_again_under_the_same_name(world: World, mishap: str) -> None:
    watch = world.watch(policy=RESUMING)
    world.machine().end(GONE)
    world.machine().mishaps = [mishap, mishap]
    assert await world.supervisor.tick() == BEGINNING + 300
    assert (world.events(), world.state().last_state) == (["interrupted"], "unreachable")
    looks = len(world.machine().queries)
    await later(world)
    assert world.events() == ["interrupted", "ssh_unreachable"]
    assert len(world.machine().queries) == looks
    await later(world)
    assert world.events() == ["interrupted", "ssh_unreachable", "resume_started"]
    assert world.machine().begun == [watch.job_id, f"{watch.job_id}-r1"]
    assert world.state().resume_attempts == 1


async def test_a_resume_waits_for_a_home_folder_that_is_not_mounted(world: World) -> None:
    world.watch(policy=replace(RESUMING, resume_delay_s=100))
    world.machine().end(GONE)
    await world.supervisor.tick()
    world.machine().is_mounted = False
    await later(world, 100)
    assert (world.events(), world.state().last_state) == (["interrupted"], "unknown")
    world.machine().is_mounted = True
    await later(world)
    assert world.events() == ["interrupted", "resume_started"]


async def test_a_watch_that_is_cancelled_while_its_job_is_started_again_stays_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.watch(policy=RESUMING)
    world.machine().end(GONE)
    start = world.machine().start

    async def start_while_somebody_cancels(order: Any) -> Any:
        world.watches.cancel(1)
        return await start(order)

    monkeypatch.setattr(world.machine(), "start", start_while_somebody_cancels)
    await world.supervisor.tick()
    assert await later(world) == math.inf
    assert (world.state().status, world.events()) == (Status.CANCELLED, ["interrupted"])


async def test_a_row_changed_while_its_job_is_started_again_loses_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.watch(policy=RESUMING)
    world.machine().end(GONE)
    start = world.machine().start

    async def start_while_somebody_writes(order: Any) -> Any:
        started = await start(order)
        if not started.recovered:
            world.watches.started(1, replace(started, log_file="/new"))
        return started

    monkeypatch.setattr(world.machine(), "start", start_while_somebody_writes)
    assert await world.supervisor.tick() == BEGINNING
    await world.supervisor.tick()
    assert (world.events(), world.state().log_file) == (["interrupted", "resume_started"], "/new")
    assert len(world.machine().begun) == 2


async def test_a_job_that_a_person_started_again_is_left_to_them(world: World) -> None:
    watch = world.watch(policy=replace(RESUMING, resume_delay_s=400))
    world.machine().end(GONE)
    await world.supervisor.tick()
    world.machine().begin("job-by-hand", "train")
    await later(world, 400)
    assert world.events() == ["interrupted", "running_restored"]
    world.machine().end(ENDED, exit_code=0)
    await later(world)
    assert world.events() == ["interrupted", "running_restored", "completed"]
    assert world.machine().begun == [watch.job_id, "job-by-hand"]


async def test_what_is_old_is_forgotten(world: World) -> None:
    world.watch(policy=QUIET)
    world.machine().end(ENDED, exit_code=0)
    await world.supervisor.tick()
    world.bury()
    await later(world, 29 * 86400)
    assert len(world.watches.list()) == 1
    world.bury()
    await later(world, 2 * 86400)
    assert world.watches.list() == ()


async def test_rows_that_cannot_be_read_are_told_to_the_daemon(world: World) -> None:
    world.watch(policy=QUIET)
    world.bury()
    for file in world.folder.iterdir():
        file.unlink()
    (world.folder / "state.db").write_bytes(b"no database" * 1000)
    with pytest.raises(ConfigError, match="not a database"):
        await world.supervisor.tick()
