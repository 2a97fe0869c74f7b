"""Load of a machine, as values: the score by which idle machines are ranked, and its trend over the last hour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..jobs.cards import CardLease
from ..sandboxes.cluster import ClusterUsage, cluster_fields, cluster_score, time_text

_LISTED_PROCESSES = 8
_LISTED_PROBLEMS = 3
# Value of an unknown part: neither for nor against the machine.
_UNKNOWN = 0.5
# A card that drives a screen, or that was just looked at, shows a few percent.
_COMPUTING_PCT = 5


@dataclass(frozen=True)
class Cpu:
    """Load averages; the CPUs that we may use (affinity, cgroup quota); the CPUs that the load is spread over.

    `used_pct` is the share of their time in which all CPUs of the machine computed a moment ago; None where the machine
    does not say.
    """

    load_1m: float
    load_5m: float
    load_15m: float
    count: int | None = None
    online: int | None = None
    used_pct: float | None = None

    @property
    def shown_pct(self) -> float | None:
        """The use or, where it is not known, the load on each CPU; never more than 100."""
        # The load is the whole machine's, so a container's smaller share of CPUs must not divide it.
        cpus = self.online or self.count
        if self.used_pct is not None or not cpus:
            return self.used_pct
        return min(100.0, round(100 * self.load_1m / cpus, 1))


@dataclass(frozen=True)
class Memory:
    """Memory in all and for a new process: page cache that can be dropped is available, not used."""

    total_mb: float
    available_mb: float

    @property
    def used_mb(self) -> float:
        return max(0.0, self.total_mb - self.available_mb)


@dataclass(frozen=True)
class GpuProcess:
    """A process that computes on a GPU. An empty user or name is unknown (another container, a hidden /proc)."""

    pid: int
    user: str = ""
    name: str = ""
    mem_mb: float | None = None
    elapsed_s: int | None = None


@dataclass(frozen=True)
class Gpu:
    """One GPU. None stands for what the driver does not report: utilization under MIG, memory shared with the host."""

    index: int
    name: str
    uuid: str = ""
    util_pct: float | None = None
    mem_total_mb: float | None = None
    mem_used_mb: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    compute_mode: str = ""
    mig: bool = False
    processes: tuple[GpuProcess, ...] = ()
    # Held by a job of ours, of whichever user of the machine.
    lease: CardLease | None = None
    # The UUID of the card of which it is a slice.
    card: str = ""

    @property
    def mem_used_pct(self) -> float | None:
        if self.mem_used_mb is None or not self.mem_total_mb:
            return None
        return min(100.0, 100.0 * self.mem_used_mb / self.mem_total_mb)


@dataclass(frozen=True)
class Disk:
    """A file system, by its mount point. Used and free need not add up to the total: root keeps a reserve."""

    path: str
    total_gb: float
    used_gb: float
    free_gb: float

    @property
    def used_pct(self) -> float:
        writable = self.used_gb + self.free_gb
        return 100.0 * self.used_gb / writable if writable > 0 else 100.0


@dataclass(frozen=True)
class Usage:
    """One look at a machine. The disk of the home folder comes first, that of / after it where it is another.

    The login node of a cluster has a `cluster`; all else is of this node alone, where no work is done.
    """

    cpu: Cpu | None = None
    memory: Memory | None = None
    gpus: tuple[Gpu, ...] = ()
    disks: tuple[Disk, ...] = ()
    gpu_error: str = ""
    clock: float | None = None
    problems: tuple[str, ...] = ()
    cluster: ClusterUsage | None = None


def as_resources(usage: Usage, score: float) -> dict[str, object]:
    """The `resources` of a sandbox in list_sandboxes; what is unknown or empty is left out, except `gpu`."""
    home, *others = usage.disks or (None,)
    # Only a root disk that is nearly full is worth a line; the home's disk is always shown.
    full = [disk for disk in others if disk and disk.used_pct >= 90]
    gpus = {"gpu": [gpu_fields(gpu) for gpu in usage.gpus]}
    return gpus | _filled(
        cluster=cluster_fields(usage.cluster) if usage.cluster else {},
        measured_on="the login node" if usage.cluster else "",
        cpu=_cpu_fields(usage.cpu),
        memory=_memory_fields(usage.memory),
        disk=_disk_fields(home),
        root_disk=_disk_fields(full[0] if full else None),
        gpu_error=usage.gpu_error,
        problems=list(usage.problems[:_LISTED_PROBLEMS]),
        idle_score=score,
    )


def _filled(**fields: object) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None and value not in ("", [], {})}


def _short(number: float | None) -> float | int | None:
    if number is None:
        return None
    return int(number) if number == int(number) else round(number, 1)


def _cpu_fields(cpu: Cpu | None) -> dict[str, object]:
    if cpu is None:
        return {}
    # In a container, fewer CPUs may be usable than the machine has.
    machine = cpu.online if cpu.online != cpu.count else None
    return _filled(
        used_pct=_short(cpu.used_pct), load_1m=cpu.load_1m, load_5m=cpu.load_5m, load_15m=cpu.load_15m,
        count=cpu.count, machine_count=machine,
    )  # fmt: skip


def _memory_fields(memory: Memory | None) -> dict[str, object]:
    if memory is None:
        return {}
    return _filled(
        total_mb=round(memory.total_mb),
        used_mb=round(memory.used_mb),
        # "free" as users expect it: memory that a new process could get.
        free_mb=round(memory.available_mb),
        used_pct=_short(100 * memory.used_mb / memory.total_mb),
    )


def _disk_fields(disk: Disk | None) -> dict[str, object]:
    if disk is None:
        return {}
    return _filled(
        path=disk.path, total_gb=_short(disk.total_gb), free_gb=_short(disk.free_gb), used_pct=_short(disk.used_pct)
    )


def gpu_fields(gpu: Gpu) -> dict[str, object]:
    lease = (
        {}
        if gpu.lease is None
        else _filled(
            user=gpu.lease.user, job=gpu.lease.job, since=time_text(gpu.lease.since), until=time_text(gpu.lease.until)
        )
    )
    return _filled(
        index=gpu.index,
        name=gpu.name,
        state=gpu_state(gpu),
        util_pct=_short(gpu.util_pct),
        mem_used_mb=None if gpu.mem_used_mb is None else round(gpu.mem_used_mb),
        mem_total_mb=None if gpu.mem_total_mb is None else round(gpu.mem_total_mb),
        mem_used_pct=_short(gpu.mem_used_pct),
        temperature_c=_short(gpu.temperature_c),
        power_w=_short(gpu.power_w),
        mig=gpu.mig or None,
        compute_mode="" if gpu.compute_mode == "Default" else gpu.compute_mode,
        lease=lease,
        processes=[_process_fields(process) for process in gpu.processes[:_LISTED_PROCESSES]],
        more_processes=max(0, len(gpu.processes) - _LISTED_PROCESSES) or None,
    )


def _process_fields(process: GpuProcess) -> dict[str, object]:
    return _filled(
        pid=process.pid,
        user=process.user,
        mem_mb=None if process.mem_mb is None else round(process.mem_mb),
        name=process.name,
        elapsed=_duration(process.elapsed_s),
    )


def _duration(seconds: int | None) -> str:
    """The two largest units: 3d 4h, 5h 6m, 7m 8s."""
    if seconds is None:
        return ""
    parts = (("d", seconds // 86400), ("h", seconds // 3600 % 24), ("m", seconds // 60 % 60), ("s", seconds % 60))
    first = next((n for n, (_, amount) in enumerate(parts) if amount), 3)
    return " ".join(f"{amount}{unit}" for unit, amount in parts[first : first + 2] if amount) or "0s"


def idle_score(usage: Usage) -> float:
    """0 is busy, 1 is idle: score = worth * health, rounded to three digits.

    worth, of a machine with GPUs     0.9 * gpus + 0.1 * host
    worth, of a machine without       host, or 0.5 * host where its GPUs are out of order (`gpu_error`)

    gpus    0.8 * the freest GPU + 0.2 * the mean of all. Most jobs need one GPU: eight GPUs with one free are far
            better than eight busy ones, and a little worse than eight free. Cards with less than an eighth of the
            largest one's memory only drive a screen and do not count.
    a GPU   is as free as the scarcer of its memory and its compute: min(1 - memory used, 1 - utilisation), so a GPU
            full of somebody's model is busy at 0 % utilisation. It is halved where somebody holds it: it is leased,
            a process is listed, or, as containers list none, more than a tenth of the memory is used. One that admits
            nobody (compute mode Prohibited, or Exclusive_Process with a process) is not free at all.
    host    the mean of the scarcer and of the average of idle CPU (1 - load per online CPU, the mean of 1 and 5
            minutes) and available memory (not free memory: page cache is no load).
    health  the product of what makes any machine a bad place: CPUs overloaded (1 / load per CPU above 1), memory
            nearly gone (below 10 % and below 16 GB), a disk nearly full (below 5 % and below 20 GB; at worst 0.3).

    An idle machine without GPUs reaches 1, as users of CPU servers expect: who needs a GPU reads `gpu`, which is empty
    there. A server whose GPUs are all taken has 0.1 at most, and one whose driver is broken is a doubtful computer.

    A cluster has the score of the partition where a job would start soonest (cluster.partition_score): nothing is done
    on its login node, so how busy that one is does not matter.

    The score never rises when a load, a utilisation, a used memory or a process is added, nor falls when memory or
    disk space becomes free.
    """
    if usage.cluster:
        return cluster_score(usage.cluster)
    return round(_worth(usage) * _health(usage), 3)


def _worth(usage: Usage) -> float:
    host = _host(usage.cpu, usage.memory)
    largest = max((gpu.mem_total_mb or 0 for gpu in usage.gpus), default=0)
    counted = [gpu for gpu in usage.gpus if gpu.mem_total_mb is None or gpu.mem_total_mb >= largest / 8]
    if counted:
        return 0.9 * _gpus(counted) + 0.1 * host
    return (0.5 if usage.gpu_error else 1) * host


def _share(part: float, whole: float) -> float:
    return min(1.0, max(0.0, part / whole)) if whole > 0 else 0.0


def _load(cpu: Cpu | None) -> float | None:
    """Load per CPU. The load is the whole machine's, so a container's smaller share of CPUs must not divide it."""
    cpus = cpu and (cpu.online or cpu.count)
    return (cpu.load_1m + cpu.load_5m) / 2 / cpus if cpu and cpus else None


def _host(cpu: Cpu | None, memory: Memory | None) -> float:
    load = _load(cpu)
    idle = _UNKNOWN if load is None else max(0.0, 1 - load)
    available = _share(memory.available_mb, memory.total_mb) if memory else _UNKNOWN
    # Half the scarcer of the two, half their average: one exhausted resource makes a machine useless for most work.
    return (min(idle, available) + (idle + available) / 2) / 2


def _gpus(gpus: Sequence[Gpu]) -> float:
    free = [_free(gpu) for gpu in gpus]
    return 0.8 * max(free) + 0.2 * sum(free) / len(free)


def _free(gpu: Gpu) -> float:
    used = [pct / 100 for pct in (gpu.mem_used_pct, gpu.util_pct) if pct is not None]
    free = 1 - min(1.0, max(used)) if used else _UNKNOWN
    if _closed(gpu):
        return 0.0
    return free / 2 if _held(gpu) else free


def gpu_state(gpu: Gpu) -> str:
    """One word for a person: free; held (by a lease, a process, a model in memory) but not computing; busy; unknown."""
    if _closed(gpu) or (gpu.util_pct or 0) > _COMPUTING_PCT:
        return "busy"
    if _held(gpu):
        return "held"
    return "unknown" if gpu.util_pct is None and gpu.mem_used_mb is None else "free"


def _closed(gpu: Gpu) -> bool:
    return gpu.compute_mode == "Prohibited" or (gpu.compute_mode.startswith("Exclusive") and bool(gpu.processes))


def _held(gpu: Gpu) -> bool:
    # A driver and a desktop take a few percent; a tenth means that somebody works there.
    return bool(gpu.lease or gpu.processes) or (gpu.mem_used_pct or 0) > 10


def _health(usage: Usage) -> float:
    load = _load(usage.cpu) or 0.0
    disks = min((_disk_health(disk) for disk in usage.disks), default=1.0)
    return 1 / max(1.0, load) * _memory_health(usage.memory) * disks


def _memory_health(memory: Memory | None) -> float:
    if memory is None:
        return 1.0
    # Absolute or relative, whichever is kinder: 16 GB are enough, also on a machine with a terabyte.
    return max(_share(memory.available_mb, memory.total_mb * 0.1), _share(memory.available_mb, 16 * 1024))


def _disk_health(disk: Disk) -> float:
    if disk.total_gb < 1:
        # The read-only image under an immutable system is always full.
        return 1.0
    writable = disk.used_gb + disk.free_gb
    return 0.3 + 0.7 * max(_share(disk.free_gb, writable * 0.05), _share(disk.free_gb, 20))


# Its trend

Share = float | None
# When, then the shares of CPUs, memory, and each GPU; None is unknown.
Point = tuple[float, Share, Share, tuple[Share, ...]]

TREND_S = 3600.0
MOST_POINTS = 240


def point_of(usage: Usage, at: float) -> Point:
    """One point of a machine's trend; of a cluster, that of its largest partition, because the work is done there."""
    if usage.cluster:
        return _cluster_point(usage.cluster, at)
    return at, _cpu_share(usage.cpu), _memory_share(usage.memory), tuple(map(_gpu_share, usage.gpus))


def recent(points: Sequence[Point], now: float, longest_s: float = TREND_S) -> tuple[Point, ...]:
    """Select the points of the last hour."""
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
    measured = [share for share in shares if share is not None]
    return round(sum(measured) / len(measured), 3) if measured else None


def _measured_share(part: float, whole: float) -> Share:
    return round(min(1.0, max(0.0, part / whole)), 3) if whole > 0 else None


def _cluster_point(cluster: ClusterUsage, at: float) -> Point:
    largest = max(cluster.partitions, key=lambda partition: partition.cpus, default=None)
    if largest is None:
        return at, None, None, ()
    gpus = tuple(_measured_share(count.total - count.idle, count.total) for count in largest.gpus)
    return at, _measured_share(largest.cpus - largest.idle_cpus, largest.cpus), None, gpus


def _cpu_share(cpu: Cpu | None) -> Share:
    used = cpu.shown_pct if cpu else None
    return None if used is None else _measured_share(used, 100)


def _memory_share(memory: Memory | None) -> Share:
    return _measured_share(memory.used_mb, memory.total_mb) if memory else None


def _gpu_share(gpu: Gpu) -> Share:
    return None if gpu.util_pct is None else _measured_share(gpu.util_pct, 100)
