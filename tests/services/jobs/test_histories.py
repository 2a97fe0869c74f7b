"""Random histories: whatever happens to machines, lines, clocks and daemons, nothing is done twice or lost."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote_sandbox_mcp.core.jobs.job import JobState
from remote_sandbox_mcp.core.jobs.watch import Policy, Status
from tests.support.job_world import Died, Machine, World, unheard

POLICIES = st.builds(
    Policy,
    interval_s=st.just(300.0),
    alert_after_failures=st.integers(1, 3),
    auto_resume=st.sampled_from([True, True, True, False]),
    resume_delay_s=st.sampled_from([0.0, 200.0, 700.0]),
    max_resume_attempts=st.integers(1, 3),
    resume_command=st.just("again"),
    notify_local=st.booleans(),
    webhook_url=st.sampled_from(["", "https://x"]),
)
SESSIONS = ("train", "eval")


def restart_by_hand(machine: Machine, session: str) -> None:
    """A person starts a session again whose job is gone."""
    newest = machine.newest(session)
    if machine.strict and machine.is_mounted and newest and newest.state is JobState.GONE:
        machine.begin(f"job-by-hand-{len(machine.begun)}", session)


def end_one(machine: Machine, session: str, state: JobState) -> None:
    for job in machine.jobs.values():
        if job.session == session and job.state is JobState.RUNNING:
            job.state, job.exit_code = state, 0 if state is JobState.ENDED else None


def mount(machine: Machine, *, is_up: bool = True, is_mounted: bool = True) -> None:
    machine.is_up, machine.is_mounted = is_up, is_mounted


MISFORTUNES: dict[str, Callable[[World, Machine], None]] = {
    "train ends": lambda _, machine: end_one(machine, "train", JobState.ENDED),
    "train is killed": lambda _, machine: end_one(machine, "train", JobState.GONE),
    "train is killed again": lambda _, machine: end_one(machine, "train", JobState.GONE),
    "eval is killed": lambda _, machine: end_one(machine, "eval", JobState.GONE),
    "the machine restarts": lambda _, machine: machine.end(JobState.GONE, rebooted=True),
    "the line is cut": lambda _, machine: mount(machine, is_up=False),
    "the home folder is away": lambda _, machine: mount(machine, is_mounted=False),
    "all is well": lambda _, machine: mount(machine),
    "the clock is put back": lambda world, _: setattr(world, "now", world.now - 50_000),
    "the clock is put forward": lambda world, _: setattr(world, "now", world.now + 50_000),
    "a start is refused": lambda _, machine: machine.mishaps.append("refused"),
    "a start is lost": lambda _, machine: machine.mishaps.append("lost before"),
    "a start's answer is lost": lambda _, machine: machine.mishaps.append("lost after"),
    "nobody hears": lambda world, _: world.deaf.append(unheard(passing=True)),
    "a listener breaks": lambda world, _: world.deaf.append(unheard(passing=False)),
    "a person starts train again": lambda _, machine: restart_by_hand(machine, "train"),
    "somebody cancels": lambda world, _: setattr(world, "_cancelled", world.watches.cancel(2)),
}


@dataclass(frozen=True)
class Chapter:
    """What happens, how much later the next round comes, and at which of its steps the daemon dies, if at all."""

    misfortune: str
    wait: float
    dies_at: int


CHAPTERS = st.builds(
    Chapter,
    st.sampled_from(sorted(MISFORTUNES)),
    st.sampled_from([1.0, 10.0, 300.0, 1000.0]),
    st.just(0) | st.integers(1, 30),
)


def play_round(world: World, wait: float, dies_at: int = -1) -> None:
    """A round of a daemon, which may die in it; the next one finds only what is on the disk."""
    world.now += wait
    world.dies_at = dies_at or -1
    with suppress(Died):
        asyncio.run(world.supervisor.tick())
    if world.is_dead or dies_at:
        world.bury()


def play(world: World, policy: Policy, chapters: list[Chapter]) -> None:
    machine = world.machine()
    for session in SESSIONS:
        world.watch(session, policy=policy)
    for chapter in chapters:
        world.dies_at = -1
        MISFORTUNES[chapter.misfortune](world, machine)
        play_round(world, chapter.wait, chapter.dies_at)
    # All is well again, for long enough: what was begun comes to its end.
    mount(machine)
    machine.mishaps.clear()
    world.deaf.clear()
    for _ in range(12):
        play_round(world, 3600.0)


def check(world: World, policy: Policy) -> None:
    machine = world.machine()
    assert machine.sins == []
    assert max(Counter(machine.begun).values()) == 1
    check_announcements(world)
    for number, session in enumerate(SESSIONS, 1):
        check_watch(world, policy, number, session)


def check_announcements(world: World) -> None:
    """Each is heard once; but one that a daemon had in its hand when it died, or that nobody could hear, is not."""
    assert max(world.heard.values(), default=1) == 1
    with world.watches.database.reading() as connection:
        rows = connection.execute("SELECT event_id, channel, state FROM outbox WHERE kind = 'announce'").fetchall()
    assert {row["state"] for row in rows} <= {"done", "failed"}
    assert all(world.heard[row["event_id"], row["channel"]] for row in rows if row["state"] == "done")
    assert {(row["event_id"], row["channel"]) for row in rows} >= set(world.heard)


def check_watch(world: World, policy: Policy, number: int, session: str) -> None:
    machine, watch = world.machine(), world.state(number)
    events = world.watches.events(number, limit=1000)
    told = Counter(event.type.value for event in events)
    began = [job for job in machine.begun if machine.jobs[job].session == session and "-r" in job]
    assert len(began) <= policy.max_resume_attempts * policy.auto_resume
    # Each resume is told once; only one of a watch that was cancelled meanwhile may go untold.
    resumes = [event.payload["job_id"] for event in events if event.type.value == "resume_started"]
    assert len(resumes) == len(set(resumes))
    assert set(resumes) <= set(began)
    assert watch.status is Status.CANCELLED or set(resumes) == set(began)
    assert told["completed"] == (watch.status is Status.COMPLETED)
    assert told["exhausted"] == (watch.status is Status.EXHAUSTED)
    check_order([event.type.value for event in events])
    check_end(watch.status, machine, session, policy)


def check_order(events: list[str]) -> None:
    """An interruption is told once: before the next, the job must have run again."""
    interrupted = False
    for event in events:
        assert not (interrupted and event == "interrupted"), events
        interrupted = event == "interrupted" or (interrupted and event not in ("running_restored", "resume_started"))


def check_end(status: Status, machine: Machine, session: str, policy: Policy) -> None:
    """What became of the job is known to its watch, and what could be done about it was done."""
    newest = machine.newest(session)
    assert newest
    if newest.state is JobState.ENDED:
        assert status in (Status.COMPLETED, Status.CANCELLED, Status.EXHAUSTED)
    if newest.state is JobState.GONE and policy.auto_resume:
        assert status is not Status.ACTIVE
    if newest.state is JobState.RUNNING and "by-hand" not in newest.job_id:
        assert status is not Status.COMPLETED


@pytest.mark.parametrize("strict", [True, False], ids=["machines that check", "machines that do as they are told"])
@settings(max_examples=30, deadline=None)
@given(policy=POLICIES, chapters=st.lists(CHAPTERS, max_size=14))
def test_nothing_is_done_twice_and_nothing_is_lost(strict: bool, policy: Policy, chapters: list[Chapter]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), strict=strict)
        try:
            play(world, policy, chapters)
            check(world, policy)
        finally:
            world.bury()


STEPS = 22


@pytest.mark.parametrize("dies_at", range(1, STEPS + 1))
def test_a_daemon_may_die_at_any_step_of_a_resume(tmp_path: Path, dies_at: int) -> None:
    """Before and after each look, write, start and announcement of the round that resumes a job."""
    world = World(tmp_path)
    policy = Policy(auto_resume=True, resume_command="again", resume_delay_s=0, notify_local=False)
    watch = world.watch(policy=policy)
    world.machine().end(JobState.GONE)
    play_round(world, 300.0, dies_at)
    for _ in range(3):
        play_round(world, 300.0)
    assert world.events() == ["interrupted", "resume_started"]
    assert world.machine().begun == [watch.job_id, f"{watch.job_id}-r1"]
    check_announcements(world)
    # Only what the daemon had in its hand is lost with it.
    assert sum(world.heard.values()) >= 1
    world.bury()


def test_these_are_all_the_steps(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.watch(policy=Policy(auto_resume=True, resume_command="again", resume_delay_s=0, notify_local=False))
    world.machine().end(JobState.GONE)
    world.now += 300
    world.dies_at = 1000
    asyncio.run(world.supervisor.tick())
    assert 1000 - world.dies_at == STEPS
    world.bury()
