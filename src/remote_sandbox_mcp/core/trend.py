"""How busy a machine was over the last hour, as points of shares between 0 and 1."""

from __future__ import annotations

from collections.abc import Sequence

from .cluster import ClusterUsage
from .usage import Cpu, Gpu, Memory, Usage

Share = float | None
# When, then the shares of CPUs, memory, and each GPU; None is unknown.
Point = tuple[float, Share, Share, tuple[Share, ...]]

LONGEST_S = 3600.0
MOST_POINTS = 240


def point_of(usage: Usage, at: float) -> Point:
    """One point of a machine's trend; of a cluster, that of its largest partition, because the work is done there."""
    if usage.cluster:
        return _cluster_point(usage.cluster, at)
    return at, _cpu(usage.cpu), _memory(usage.memory), tuple(map(_gpu, usage.gpus))


def recent(points: Sequence[Point], now: float, longest_s: float = LONGEST_S) -> tuple[Point, ...]:
    """Those of the last hour."""
    return tuple(point for point in points if point[0] > now - longest_s)


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> tuple[Point, ...]:
    """At most so many points over the same time: neighbours become their mean, and the last point stays as it is."""
    if len(points) <= most:
        return tuple(points)
    *earlier, last = points
    begin, span = earlier[0][0], (earlier[-1][0] - earlier[0][0]) or 1.0
    groups: dict[int, list[Point]] = {}
    for point in earlier:
        groups.setdefault(min(most - 2, int((most - 1) * (point[0] - begin) / span)), []).append(point)
    return (*(_mean_point(groups[number]) for number in sorted(groups)), last)


def _mean_point(group: Sequence[Point]) -> Point:
    # A GPU may have been added or lost on the way: then those of the last point count.
    width = len(group[-1][3])
    gpus = tuple(_mean([point[3][number] for point in group if len(point[3]) > number]) for number in range(width))
    return group[-1][0], _mean([point[1] for point in group]), _mean([point[2] for point in group]), gpus


def _mean(shares: Sequence[Share]) -> Share:
    known = [share for share in shares if share is not None]
    return round(sum(known) / len(known), 3) if known else None


def _share(part: float, whole: float) -> Share:
    return round(min(1.0, max(0.0, part / whole)), 3) if whole > 0 else None


def _cluster_point(cluster: ClusterUsage, at: float) -> Point:
    largest = max(cluster.partitions, key=lambda partition: partition.cpus, default=None)
    if largest is None:
        return at, None, None, ()
    gpus = tuple(_share(count.total - count.idle, count.total) for count in largest.gpus)
    return at, _share(largest.cpus - largest.idle_cpus, largest.cpus), None, gpus


def _cpu(cpu: Cpu | None) -> Share:
    # The load is the whole machine's, so a container's smaller share of CPUs must not divide it.
    cpus = cpu and (cpu.online or cpu.count)
    return _share(cpu.load_1m, cpus) if cpu and cpus else None


def _memory(memory: Memory | None) -> Share:
    return _share(memory.used_mb, memory.total_mb) if memory else None


def _gpu(gpu: Gpu) -> Share:
    return None if gpu.util_pct is None else _share(gpu.util_pct, 100)
