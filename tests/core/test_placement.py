"""Tables: which card is free, which machine is the best, and what is said of those that are not."""

from __future__ import annotations

import pytest

from remote_sandbox_mcp.core.errors import BadArgument
from remote_sandbox_mcp.core.jobs.cards import CardLease, CardRequest
from remote_sandbox_mcp.core.jobs.placement import (
    Place,
    could_ever,
    place_of,
    ranked,
    read_request,
    reasons,
    why_busy,
    why_not,
)
from remote_sandbox_mcp.core.resources.usage import Cpu, Gpu, GpuProcess, Usage
from remote_sandbox_mcp.core.sandboxes.cluster import ClusterUsage, GpuCount, Partition

GB = 1024


def card(**fields: object) -> Gpu:
    return Gpu(**{"index": 0, "name": "H100", "mem_total_mb": 80 * GB, "mem_used_mb": 3.0, **fields})  # type: ignore[arg-type]


def used(*users: str) -> Gpu:
    return card(mem_used_mb=60_000.0, processes=tuple(GpuProcess(1, user, "python", 59_000.0) for user in users))


def leased(user: str, job: str = "", until: float = 0.0) -> Gpu:
    return card(lease=CardLease(user, job, 0.0, until))


def machine(name: str, *gpus: Gpu, load: float = 0.0) -> Place:
    return Place(name, Usage(cpu=Cpu(load, load, load, 8, 8), gpus=gpus))


@pytest.mark.parametrize(
    ("gpu", "memory_mb", "word"),
    [
        pytest.param(card(), 0, "", id="idle"),
        pytest.param(card(mem_used_mb=400.0), 0, "", id="the driver's own memory"),
        pytest.param(card(mem_used_mb=5000.0), 0, "used", id="held by somebody in another container"),
        pytest.param(card(mem_total_mb=4 * GB, mem_used_mb=900.0), 0, "used", id="much of a small card"),
        pytest.param(used("bob"), 0, "used", id="a process"),
        pytest.param(card(processes=(GpuProcess(1),), mem_used_mb=None), 0, "used", id="a process of nobody known"),
        pytest.param(leased("alice"), 0, "leased", id="leased, and nothing runs on it yet"),
        pytest.param(card(compute_mode="Prohibited"), 0, "closed", id="closed"),
        pytest.param(card(), 40 * GB, "", id="large enough"),
        pytest.param(card(mem_total_mb=24_564.0), 24 * GB, "", id="as large as its name says"),
        pytest.param(card(mem_total_mb=24_564.0), 40 * GB, "small", id="too small"),
        pytest.param(card(mem_total_mb=None, mem_used_mb=None), 0, "", id="memory shared with the host"),
        pytest.param(card(mem_total_mb=None, mem_used_mb=None), 8 * GB, "small", id="memory that nobody knows"),
    ],
)
def test_a_card_is_free_when_nobody_holds_it_and_it_is_large_enough(gpu: Gpu, memory_mb: int, word: str) -> None:
    assert why_busy(gpu, memory_mb) == word


CLUSTER = ClusterUsage(
    partitions=(
        Partition("gpu", gpus=(GpuCount("a100", 6, 8), GpuCount("h100", 1, 8))),
        Partition("closed", state="down", gpus=(GpuCount("a100", 64, 64),)),
    )
)


@pytest.mark.parametrize(
    ("places", "request_", "names"),
    [
        pytest.param([machine("a", card()), machine("b", card(), card())], CardRequest(1), ["b", "a"], id="most cards"),
        pytest.param([machine("a", card()), machine("b", card(), card())], CardRequest(2), ["b"], id="enough cards"),
        pytest.param(
            [machine("a", card(mem_total_mb=24 * GB)), machine("b", card())], CardRequest(1), ["b", "a"], id="memory"
        ),
        pytest.param(
            [machine("a", card(mem_total_mb=24 * GB)), machine("b", card())], CardRequest(1, 40 * GB), ["b"], id="asked"
        ),
        pytest.param([machine("a", card(), load=7), machine("b", card())], CardRequest(1), ["b", "a"], id="then load"),
        pytest.param([machine("a", load=7), machine("b", load=1)], None, ["b", "a"], id="without GPUs: the most idle"),
        pytest.param([Place("a"), machine("b", card())], None, ["b"], id="one that does not answer"),
        pytest.param(
            [Place("slurm", Usage(cluster=CLUSTER)), machine("a", card())], CardRequest(1), ["a", "slurm"], id="cluster"
        ),
        pytest.param([Place("slurm", Usage(cluster=CLUSTER))], CardRequest(8), [], id="a full cluster"),
    ],
)
def test_the_best_machine_comes_first(places: list[Place], request_: CardRequest | None, names: list[str]) -> None:
    assert [place.name for place in ranked(places, request_)] == names


@pytest.mark.parametrize(
    ("place", "request_", "sentence"),
    [
        (
            machine("gpu1", *[used("bob")] * 5, used("chen"), *[leased("alice", "train-7")] * 2),
            CardRequest(1),
            "gpu1: 6 of 8 used by bob, chen; 2 leased by alice until train-7 ends",
        ),
        (machine("gpu1", used(), card()), CardRequest(2), "gpu1: 1 of 2 used; 1 free"),
        (
            machine("gpu1", leased("alice"), card()),
            CardRequest(2),
            "gpu1: 1 of 2 leased by alice until the job ends; 1 free",
        ),
        (machine("gpu1", card()), CardRequest(2), "gpu1: it has 1 GPU, not 2"),
        (
            machine("gpu1", *[card(mem_total_mb=24 * GB)] * 4),
            CardRequest(1, 40 * GB),
            "gpu1: it has 0 GPUs with 40 GB, not 1",
        ),
        (
            machine("gpu1", used("bob"), card(mem_total_mb=8 * GB)),
            CardRequest(1, 40 * GB),
            "gpu1: 1 of 2 used by bob; 1 too small",
        ),
        (machine("cpu1"), CardRequest(1), "cpu1: it has no GPU"),
        (
            Place("cpu1", Usage(gpu_error="nvidia-smi did not answer")),
            CardRequest(1),
            "cpu1: nvidia-smi did not answer",
        ),
        (Place("gpu9", trouble="no answer"), None, "gpu9: no answer"),
        (Place("slurm", Usage(cluster=CLUSTER)), CardRequest(8), "slurm: its queue has 7 GPUs free in one partition"),
        (machine("gpu1", card()), CardRequest(1), ""),
        (machine("cpu1"), None, ""),
    ],
)
def test_one_sentence_says_why_a_machine_does_not_fit(
    place: Place, request_: CardRequest | None, sentence: str
) -> None:
    assert why_not(place, request_) == sentence


def test_a_lease_says_until_when_its_owner_wants_the_card() -> None:
    assert "leased by alice until train ends, by plan until " in why_not(
        machine("gpu1", leased("alice", "train", 1_800_000_000.0)), CardRequest(1)
    )


def test_a_busy_machine_may_suit_later_and_a_small_one_never() -> None:
    assert could_ever(machine("a", used("bob"), leased("alice")), CardRequest(2))
    assert not could_ever(machine("a", used("bob")), CardRequest(2))
    assert not could_ever(Place("a"), CardRequest(1))


def test_not_more_machines_are_named_than_can_be_read() -> None:
    text = reasons([f"gpu{number}: it has no GPU" for number in range(100)])
    assert text.endswith("gpu7: it has no GPU. And 92 more machines")


@pytest.mark.parametrize(
    ("gpus", "memory", "said"),
    [(-1, "", "between 0 and 64"), (65, "", "between 0 and 64"), (0, "40g", "say how many"), (1, "much", "512m or 2g")],
)
def test_a_request_that_makes_no_sense_is_refused(gpus: int, memory: str, said: str) -> None:
    with pytest.raises(BadArgument, match=said):
        read_request(gpus, memory)


def test_names_may_be_a_list_or_a_text() -> None:
    assert place_of("gpu1,gpu2") == place_of(" gpu1, gpu2,gpu1") == ("", ("gpu1", "gpu2"))
    assert place_of("gpu1, any") == ("", ("any",))


def test_the_machine_leases_by_the_same_numbers() -> None:
    """Else a job would wait for ever for a card that looks free from here."""
    from remote_sandbox_mcp.core.jobs import placement
    from remote_sandbox_mcp.far.jobs import cards
    from remote_sandbox_mcp.far.program import read_program

    assert (cards.HELD_MB, cards.SLACK_MB) == (placement.DRIVER_MB, placement.SLACK_MB)
    script = read_program("shell/cards.sh")
    assert "-gt 512 ]" in script
    assert "rs_total + 1024" in script
