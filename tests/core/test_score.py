from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_sandbox_mcp.core.resources.usage import Cpu, Disk, Gpu, GpuProcess, Memory, Usage, gpu_state, idle_score

SOMEBODY = GpuProcess(4242, "alice", "python", 1000)


def cpu(load: float, cpus: int = 64) -> Cpu:
    return Cpu(load, load, load, count=cpus, online=cpus)


def memory(available_pct: float, total_gb: float = 512) -> Memory:
    return Memory(total_gb * 1024, total_gb * 1024 * available_pct / 100)


def gpu(used_pct: float = 0, util: float | None = 0, held: bool = False, total: float = 80000, mode: str = "") -> Gpu:
    return Gpu(
        0,
        "H100",
        util_pct=util,
        mem_total_mb=total,
        mem_used_mb=total * used_pct / 100,
        compute_mode=mode,
        processes=(SOMEBODY,) if held else (),
    )


FREE = gpu()
BUSY = gpu(95, 100, held=True)
FULL = gpu(98, 0, held=True)
DISK = Disk("/home", 1000, 500, 500)


def machine(
    *gpus: Gpu, load: float = 0, available: float = 100, disk: Disk = DISK, error: str = "", total_gb: float = 512
) -> Usage:
    return Usage(cpu(load), memory(available, total_gb), gpus, (disk,), error)


STATES = [
    pytest.param(FREE, "free", id="free"),
    pytest.param(gpu(8, 3), "free", id="a desktop on it"),
    pytest.param(FULL, "held", id="full and idle"),
    pytest.param(gpu(50), "held", id="memory without a process, as in containers"),
    pytest.param(gpu(0, 90), "busy", id="computing"),
    pytest.param(gpu(mode="Prohibited"), "busy", id="closed to all"),
    pytest.param(gpu(held=True, mode="Exclusive_Process"), "busy", id="closed to all but its process"),
    pytest.param(Gpu(0, "GB10", util_pct=0), "free", id="memory that the card does not report"),
    pytest.param(Gpu(0, "A100", mig=True), "unknown", id="nothing known"),
]


@pytest.mark.parametrize(("gpu", "state"), STATES)
def test_a_gpu_is_free_held_busy_or_unknown(gpu: Gpu, state: str) -> None:
    assert gpu_state(gpu) == state


EXACT = [
    pytest.param(machine(FREE), 1.0, id="idle GPU machine"),
    pytest.param(machine(*[FREE] * 8), 1.0, id="eight free"),
    pytest.param(machine(FREE, *[gpu(100, 100, True)] * 7), 0.8425, id="one of eight free"),
    pytest.param(machine(*[gpu(100, 100, True)] * 8), 0.1, id="eight busy, idle host"),
    pytest.param(machine(*[gpu(100, 100, True)] * 8, load=64, available=50), 0.0125, id="all busy"),
    pytest.param(machine(), 1.0, id="idle, no GPU"),
    pytest.param(machine(error="driver"), 0.5, id="idle, broken driver"),
    pytest.param(machine(load=64, available=0, total_gb=16), 0.0, id="busy, no GPU"),
    pytest.param(Usage(), 0.5, id="nothing known"),
]


@pytest.mark.parametrize(("usage", "expected"), EXACT)
def test_scores_of_typical_machines(usage: Usage, expected: float) -> None:
    assert idle_score(usage) == pytest.approx(expected, abs=0.001)


RANKED = [
    pytest.param(machine(FREE, load=32), machine(FULL), id="free GPU over one full in memory at 0 %"),
    pytest.param(machine(FREE), machine(gpu(1, 0, held=True)), id="free GPU over one that somebody holds at 0 %"),
    pytest.param(machine(FREE), machine(gpu(20, 0)), id="free GPU over one held by a process that we cannot see"),
    pytest.param(machine(gpu(1, 0, True)), machine(gpu(50, 0, True)), id="held a little over held a lot"),
    pytest.param(machine(FREE, *[BUSY] * 7), machine(*[BUSY] * 8), id="one free of eight over none"),
    pytest.param(machine(*[FREE] * 8), machine(FREE, *[BUSY] * 7), id="eight free over one free"),
    pytest.param(machine(FREE, *[BUSY] * 7), machine(*[gpu(30, 20)] * 8), id="one free over eight half used"),
    pytest.param(machine(), machine(*[BUSY] * 8), id="idle without GPUs over all GPUs busy"),
    pytest.param(machine(), machine(error="driver mismatch"), id="no GPU over broken GPUs"),
    pytest.param(machine(FREE, load=4), machine(FREE, load=60), id="idle CPU decides between free GPUs"),
    pytest.param(machine(FREE, available=90), machine(FREE, available=15), id="memory decides between free GPUs"),
    pytest.param(machine(FREE), machine(FREE, load=256), id="overloaded CPU"),
    pytest.param(machine(*[gpu(40, 40)] * 8), machine(*[FREE] * 8, load=640), id="ten times overloaded CPU"),
    pytest.param(machine(gpu(50)), machine(FREE, available=1), id="memory nearly gone"),
    pytest.param(
        machine(FREE, available=8, total_gb=2048),
        machine(FREE, available=8, total_gb=64),
        id="8 % of 2 TB are not gone",
    ),
    pytest.param(machine(FREE), machine(FREE, disk=Disk("/home", 1000, 999, 1)), id="full disk"),
    pytest.param(machine(load=8), machine(load=32), id="CPU load without GPUs"),
    pytest.param(machine(available=80), machine(available=30), id="memory without GPUs"),
    pytest.param(machine(gpu(util=None)), machine(gpu(60, None)), id="MIG: memory alone"),
    pytest.param(machine(FREE), machine(gpu(mode="Prohibited")), id="prohibited"),
    pytest.param(
        machine(gpu(1, 0, True)), machine(gpu(1, 0, True, mode="Exclusive_Process")), id="exclusive and taken"
    ),
    pytest.param(machine(*[FREE] * 4), machine(BUSY, FULL, gpu(total=4000)), id="a free display card is no GPU"),
]


@pytest.mark.parametrize(("better", "worse"), RANKED)
def test_machines_rank_as_a_person_would(better: Usage, worse: Usage) -> None:
    assert idle_score(better) > idle_score(worse)


SAME = [
    pytest.param(
        machine(FREE),
        replace(machine(FREE), disks=(DISK, Disk("/", 0.01, 0.01, 0))),
        id="the image of an immutable system is always full",
    ),
    pytest.param(
        machine(load=16),
        replace(machine(), cpu=Cpu(16, 16, 16, count=4, online=64)),
        id="a container's share of CPUs does not divide the machine's load",
    ),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_some_changes_do_not_affect_the_score(one: Usage, other: Usage) -> None:
    assert idle_score(one) == idle_score(other)


amounts = st.floats(0, 1e6, allow_nan=False)
percents = st.none() | st.floats(0, 100)
cpus = st.builds(
    Cpu, amounts, amounts, amounts, count=st.none() | st.integers(1, 512), online=st.none() | st.integers(1, 512)
)
memories = st.builds(Memory, st.floats(1, 1e7), amounts)
modes = st.sampled_from(["", "Default", "Prohibited", "Exclusive_Process"])
gpus = st.builds(
    Gpu,
    st.integers(0, 15),
    st.just("H100"),
    util_pct=percents,
    mem_total_mb=st.none() | st.floats(0, 2e5),
    mem_used_mb=st.none() | st.floats(0, 2e5),
    compute_mode=modes,
    processes=st.lists(st.just(SOMEBODY), max_size=2).map(tuple),
)
disks = st.builds(Disk, st.just("/"), amounts, amounts, amounts)
usages = st.builds(
    Usage,
    cpu=st.none() | cpus,
    memory=st.none() | memories,
    gpus=st.lists(gpus, max_size=4).map(tuple),
    disks=st.lists(disks, max_size=2).map(tuple),
    gpu_error=st.sampled_from(["", "broken"]),
)
more = st.floats(0, 1e6)


def with_first_gpu(usage: Usage, first: Gpu) -> Usage:
    return replace(usage, gpus=(first, *usage.gpus))


@given(usages)
def test_the_score_is_between_0_and_1_in_three_digits(usage: Usage) -> None:
    score = idle_score(usage)
    assert 0 <= score <= 1
    assert score == round(score, 3)


@given(usages, cpus, more, st.sampled_from(["load_1m", "load_5m"]))
def test_more_load_never_raises_the_score(usage: Usage, cpu: Cpu, extra: float, name: str) -> None:
    loaded = replace(cpu, **{name: getattr(cpu, name) + extra})
    assert idle_score(replace(usage, cpu=loaded)) <= idle_score(replace(usage, cpu=cpu))


@given(usages, memories, more)
def test_more_available_memory_never_lowers_the_score(usage: Usage, memory: Memory, extra: float) -> None:
    freed = replace(memory, available_mb=memory.available_mb + extra)
    assert idle_score(replace(usage, memory=freed)) >= idle_score(replace(usage, memory=memory))


@given(usages, disks, more)
def test_more_disk_space_never_lowers_the_score(usage: Usage, disk: Disk, freed: float) -> None:
    freed = min(freed, disk.used_gb)
    emptier = replace(disk, used_gb=disk.used_gb - freed, free_gb=disk.free_gb + freed)
    assert idle_score(replace(usage, disks=(emptier,))) >= idle_score(replace(usage, disks=(disk,)))


@given(usages, gpus, st.floats(0, 100), st.floats(0, 100))
def test_more_utilisation_never_raises_the_score(usage: Usage, first: Gpu, one: float, other: float) -> None:
    calm, busy = (replace(first, util_pct=util) for util in sorted((one, other)))
    assert idle_score(with_first_gpu(usage, busy)) <= idle_score(with_first_gpu(usage, calm))


@given(usages, gpus, st.floats(0, 2e5), st.floats(0, 2e5))
def test_more_used_gpu_memory_never_raises_the_score(usage: Usage, first: Gpu, one: float, other: float) -> None:
    empty, full = (replace(first, mem_used_mb=used) for used in sorted((one, other)))
    assert idle_score(with_first_gpu(usage, full)) <= idle_score(with_first_gpu(usage, empty))


@given(usages, gpus)
def test_another_process_never_raises_the_score(usage: Usage, first: Gpu) -> None:
    joined = replace(first, processes=(*first.processes, SOMEBODY))
    assert idle_score(with_first_gpu(usage, joined)) <= idle_score(with_first_gpu(usage, first))
