"""Where a job would start soonest, and odd answers of Slurm's commands."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from remote_sandbox_mcp.core.sandboxes.cluster import (
    ClusterUsage,
    GpuCount,
    Partition,
    Section,
    cluster_fields,
    cluster_score,
    partition_score,
    read_cluster,
)

AT_ONCE, SHARED, TAKEN = GpuCount("a100", 8, 16, 8), GpuCount("a100", 8, 16), GpuCount("a100", 0, 16)
IDLE_GPU = Partition("gpu", idle=1, mixed=1, idle_cpus=10, cpus=20, gpus=(AT_ONCE,))
MIXED_GPU = Partition("gpu", mixed=2, idle_cpus=10, cpus=20, gpus=(SHARED,))
FULL_GPU = Partition("gpu", mixed=2, idle_cpus=10, cpus=20, gpus=(TAKEN,))
IDLE_CPU = Partition("cpu", idle=1, allocated=1, idle_cpus=10, cpus=20)
MIXED_CPU = Partition("cpu", mixed=2, idle_cpus=10, cpus=20)
FULL_CPU = Partition("cpu", allocated=2, cpus=20)


@pytest.mark.parametrize(
    ("partition", "score"),
    [
        pytest.param(IDLE_GPU, 0.95, id="a free GPU on an idle node"),
        pytest.param(MIXED_GPU, 0.75, id="a free GPU on a node in use"),
        pytest.param(replace(IDLE_GPU, waiting=9), 0.76, id="free, but others wait"),
        pytest.param(IDLE_CPU, 0.45, id="an idle node without GPUs"),
        pytest.param(MIXED_CPU, 0.35, id="free CPUs"),
        pytest.param(FULL_GPU, 0.1, id="all GPUs taken"),
        pytest.param(FULL_CPU, 0.1, id="all CPUs taken"),
        pytest.param(replace(FULL_GPU, waiting=1), 0.05, id="all taken, and others wait"),
        pytest.param(replace(IDLE_GPU, state="down"), 0.0, id="closed"),
        pytest.param(Partition("gpu", down=4, cpus=20, gpus=(TAKEN,)), 0.0, id="no node in order"),
    ],
)
def test_a_partition_is_ranked_by_how_soon_a_job_would_start(partition: Partition, score: float) -> None:
    assert partition_score(partition) == pytest.approx(score)


def test_a_cluster_is_as_good_as_its_best_partition() -> None:
    assert cluster_score(ClusterUsage((FULL_GPU, MIXED_GPU, IDLE_CPU))) == partition_score(MIXED_GPU)
    assert cluster_score(ClusterUsage()) == 0


@pytest.mark.parametrize(
    ("state", "counted"),
    [
        *((state, "idle") for state in ("idle", "idle~", "idle#", "IDLE")),
        *((state, "mixed") for state in ("mixed", "mixed~")),
        *((state, "allocated") for state in ("allocated", "allocated+", "completing", "reserved", "planned", "idle-")),
        *(
            (state, "down")
            for state in ("down", "down*", "idle*", "drained", "draining", "draining@", "maint", "idle$")
        ),
        *((state, "down") for state in ("unknown", "inval", "powered_down", "failing", "something_new", "*")),
    ],
)
def test_a_nodes_state_is_one_of_four(state: str, counted: str) -> None:
    row = f"3 0 12 main* up 1:00 {state} gpu:2 gpu:1"
    (partition,) = read_cluster("0", {"nodes": Section("0", (row,))}, True).partitions
    assert getattr(partition, counted) == 3
    idle = {"idle": 6, "mixed": 3, "allocated": 3, "down": 0}[counted]
    assert partition.gpus == (GpuCount("gpu", idle, 6, idle if counted == "idle" else 0),)


def test_used_gpus_without_a_type_are_of_the_only_type_that_the_node_has() -> None:
    row = "1 0 4 main up 1:00 mixed gpu:a100:4 gpu:-:3"
    (partition,) = read_cluster("0", {"nodes": Section("0", (row,))}, True).partitions
    assert partition.gpus == (GpuCount("a100", 1, 4),)


def test_the_limits_of_several_clusters_are_told_apart() -> None:
    rows = ("one|lab|||normal|5|||||", "two|lab|||normal|9|||||")
    limits = read_cluster("0", {"limits": Section("0", rows)}, True).limits
    assert [(limit["cluster"], limit["max_jobs"]) for limit in limits] == [("one", "5"), ("two", "9")]


def test_many_partitions_are_listed_in_part() -> None:
    partitions = tuple(replace(IDLE_CPU, name=f"p{number}") for number in range(40))
    fields = cluster_fields(ClusterUsage(partitions))
    assert fields["more_partitions"] == 10


LINES = some.lists(some.text(alphabet="0123 |:,*()gpu-ab\u202e\x1b", max_size=60), max_size=8).map(tuple)


@settings(max_examples=50)
@given(
    some.dictionaries(some.sampled_from(["nodes", "mine", "waiting", "limits", "qos"]), LINES), some.text(max_size=4)
)
def test_no_answer_makes_the_reading_fail(lines: dict[str, tuple[str, ...]], age: str) -> None:
    seen = read_cluster(age, {name: Section("0", rows) for name, rows in lines.items()}, True)
    assert 0 <= cluster_score(seen) <= 1
    assert "\x1b" not in str(cluster_fields(seen))
