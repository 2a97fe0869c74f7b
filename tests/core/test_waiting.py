"""Tables: who of the waiting list may start now, and who may pass whom."""

from __future__ import annotations

import random

import pytest

from remote_sandbox_mcp.core.jobs.cards import CardLease, CardRequest
from remote_sandbox_mcp.core.jobs.job import NextResume
from remote_sandbox_mcp.core.jobs.placement import Place
from remote_sandbox_mcp.core.jobs.waiting import GO, WAIT, Waiter, after_verdict, who_may_start
from remote_sandbox_mcp.core.resources.usage import Gpu, GpuProcess, Usage
from remote_sandbox_mcp.core.task import Outcome, TaskState

NOW = 1000.0


def machine(name: str, free: int, busy: int = 0, *, until: float = 0.0, memory: float = 81920.0) -> Place:
    """`busy` cards are another user's or, with `until`, leased by a job that ends then."""
    idle = [Gpu(number, "H100", mem_total_mb=memory, mem_used_mb=0.0) for number in range(free)]
    lease = CardLease("bob", "other", 0.0, until) if until else None
    taken = Gpu(9, "H100", mem_total_mb=memory, mem_used_mb=50_000.0, processes=(GpuProcess(1, "bob"),), lease=lease)
    return Place(name, Usage(gpus=(*idle, *[taken] * busy)))


def job(name: str, cards: int, *places: str, priority: int = 0, run_for: float = 0.0, memory: int = 0) -> Waiter:
    number = int("".join(filter(str.isdigit, name)) or 0)
    return Waiter(
        job_id=name, session=name, places=places or ("m",), cards=CardRequest(cards, memory) if cards else None,
        priority=priority, since=float(number), run_for_s=run_for,
    )  # fmt: skip


def starts(waiting: list[Waiter], *places: Place, taken: dict[str, int] | None = None) -> list[str]:
    verdict = who_may_start(waiting, places, NOW, taken)
    assert {turn.job_id for turn in verdict.turns} | verdict.reasons.keys() == {waiter.job_id for waiter in waiting}
    return [f"{turn.job_id}@{turn.place}" for turn in verdict.turns]


@pytest.mark.parametrize(
    ("waiting", "places", "expected"),
    [
        pytest.param([job("b2", 1), job("a1", 1)], [machine("m", 1)], ["a1@m"], id="first come"),
        pytest.param([job("a1", 1), job("b2", 1, priority=5)], [machine("m", 1)], ["b2@m"], id="priority first"),
        pytest.param([job("a1", 1), job("b2", 1)], [machine("m", 2)], ["a1@m", "b2@m"], id="room for two"),
        pytest.param([job("a1", 2), job("b2", 1)], [machine("m", 2)], ["a1@m"], id="cards are given once"),
        pytest.param(
            [job("a1", 4), job("b2", 1)], [machine("m", 2, 2)], [], id="a small one does not delay a large one"
        ),
        pytest.param([job("a1", 8), job("b2", 1)], [machine("m", 2, 2)], ["b2@m"], id="one that can never run there"),
        pytest.param(
            [job("a1", 4, "m"), job("b2", 1, "m", "n")],
            [machine("m", 2, 2), machine("n", 1)],
            ["b2@n"],
            id="another machine is no matter of the first one",
        ),
        pytest.param(
            [job("a1", 4, "m", "n"), job("b2", 1, "m", "n")],
            [machine("m", 2, 2), machine("n", 3, 1)],
            [],
            id="all machines that could suit the first one are kept",
        ),
        pytest.param(
            [job("a1", 1, memory=122880), job("b2", 1)], [machine("m", 1)], ["b2@m"], id="too small for the first one"
        ),
        pytest.param(
            [job("a1", 4), job("b2", 1, run_for=400.0)],
            [machine("m", 2, 2, until=NOW + 500)],
            ["b2@m"],
            id="it has ended before the first one could start",
        ),
        pytest.param(
            [job("a1", 4), job("b2", 1, run_for=600.0)], [machine("m", 2, 2, until=NOW + 500)], [], id="it has not"
        ),
        pytest.param([job("a1", 4), job("b2", 1)], [machine("m", 2, 2, until=NOW + 500)], [], id="it does not say"),
        pytest.param(
            [job("a1", 4), job("b2", 1, run_for=400.0)], [machine("m", 2, 2)], [], id="those who hold cards do not say"
        ),
        pytest.param([job("a1", 1), job("b2", 0)], [machine("m", 0, 1)], ["b2@m"], id="one without GPUs takes none"),
        pytest.param(
            [job("a1", 1, "m", "n"), job("b2", 1, "m", "n"), job("c3", 1, "m", "n")],
            [machine("m", 2), machine("n", 1)],
            ["a1@m", "b2@m", "c3@n"],
            id="the freest machine each time",
        ),
        pytest.param([job("a1", 1)], [Place("m", trouble="no answer")], [], id="nobody answers"),
        pytest.param([job("a1", 1, "gone")], [machine("m", 1)], [], id="no machine at all"),
    ],
)
def test_who_may_start(waiting: list[Waiter], places: list[Place], expected: list[str]) -> None:
    assert starts(waiting, *places) == expected


def test_cards_that_were_given_away_since_a_machine_was_measured_count() -> None:
    assert starts([job("a1", 1)], machine("m", 1), taken={"m": 1}) == []


def test_each_that_waits_is_told_why() -> None:
    waiting = [job("big1", 4), job("b2", 1), job("c3", 1), job("d4", 1, "n")]
    reasons = who_may_start(waiting, [machine("m", 2, 2), Place("n", trouble="no answer")], NOW).reasons
    assert reasons == {
        "big1": "m: 2 of 4 used by bob; 2 free",
        "b2": "m: its free GPUs are kept for big1, which is ahead",
        "c3": "m: its free GPUs are kept for big1, which is ahead",
        "d4": "n: no answer",
    }
    after = who_may_start([job("a1", 1), job("b2", 1)], [machine("m", 1)], NOW).reasons
    assert after == {"b2": "m: its free GPUs go to jobs that are ahead"}


@pytest.mark.parametrize("seed", range(30))
def test_nobody_starts_later_because_of_those_behind(seed: int) -> None:
    """Whoever may start with all others behind it also may, on the same machine, without them."""
    chance = random.Random(seed)
    places = [machine(f"m{n}", chance.randint(0, 4), chance.randint(0, 4)) for n in range(3)]
    names = [place.name for place in places]
    waiting = [
        job(f"j{n}", chance.randint(0, 5), *chance.sample(names, chance.randint(1, 3)), priority=chance.randint(0, 2))
        for n in range(12)
    ]
    turns = starts(waiting, *places)
    ordered = sorted(waiting, key=lambda waiter: (-waiter.priority, waiter.since))
    for count in range(1, len(ordered)):
        ahead = {waiter.job_id for waiter in ordered[:count]}
        assert starts(ordered[:count], *places) == [turn for turn in turns if turn.split("@")[0] in ahead]
    for place in places:
        asked = [waiter.cards.count for waiter in waiting if waiter.cards and f"{waiter.job_id}@{place.name}" in turns]
        free = sum(not gpu.processes for gpu in place.usage.gpus) if place.usage else 0
        assert sum(asked) <= free


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (Outcome(TaskState.SUCCEEDED, 0), GO),
        (Outcome(TaskState.RUNNING), WAIT),
        (Outcome(TaskState.PENDING), WAIT),
        (Outcome(TaskState.UNKNOWN), WAIT),
        (Outcome(TaskState.INTERRUPTED, resume=NextResume(0.0, 1, 3)), WAIT),
        (Outcome(TaskState.FAILED, 3), "it was to start after prep, which failed with exit code 3"),
        (Outcome(TaskState.STOPPED), "it was to start after prep, which was stopped"),
        (
            Outcome(TaskState.INTERRUPTED, reason="its machine was restarted"),
            "it was to start after prep, which was interrupted: its machine was restarted",
        ),
    ],
)
def test_a_job_starts_only_after_the_good_end_of_another(outcome: Outcome, verdict: str) -> None:
    assert after_verdict("prep", outcome) == verdict
