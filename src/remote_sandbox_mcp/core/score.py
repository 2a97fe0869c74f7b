"""How idle a machine is, as one number that ranks machines as a person would."""

from __future__ import annotations

from collections.abc import Sequence

from .usage import Cpu, Disk, Gpu, Memory, Usage

# What an unknown part counts for: neither a reason to come nor a reason to stay away.
_UNKNOWN = 0.5


def idle_score(usage: Usage) -> float:
    """0 is busy, 1 is idle: score = worth * health, rounded to three digits.

    worth, of a machine with GPUs     0.9 * gpus + 0.1 * host
    worth, of a machine without       0.5 * host, or 0.25 * host where its GPUs are out of order (`gpu_error`)

    gpus    0.8 * the freest GPU + 0.2 * the mean of all. Most jobs need one GPU: eight GPUs with one free are far
            better than eight busy ones, and a little worse than eight free. Cards with less than an eighth of the
            largest one's memory only drive a screen and do not count.
    a GPU   is as free as the scarcer of its memory and its compute: min(1 - memory used, 1 - utilisation), so a GPU
            full of somebody's model is busy at 0 % utilisation. It is halved where somebody holds it: a process is
            listed, or, as containers list none, more than a tenth of the memory is used. One that admits nobody
            (compute mode Prohibited, or Exclusive_Process with a process) is not free at all.
    host    the mean of the scarcer and of the average of idle CPU (1 - load per online CPU, the mean of 1 and 5
            minutes) and available memory (not free memory: page cache is no load).
    health  the product of what makes any machine a bad place: CPUs overloaded (1 / load per CPU above 1), memory
            nearly gone (below 10 % and below 16 GB), a disk nearly full (below 5 % and below 20 GB; at worst 0.3).

    Why an idle machine without GPUs reaches 0.5: the user ranks GPU servers. A free GPU (0.7 and more) is what most
    work waits for, so it comes first. But a server whose GPUs are all taken (0.1 at most) serves nobody, and the
    idle machine at least compiles, downloads and evaluates, so it comes in between. One whose driver is broken is
    still a computer, and a doubtful one.

    The score never rises when a load, a utilisation, a used memory or a process is added, nor falls when memory or
    disk space becomes free.
    """
    return round(_worth(usage) * _health(usage), 3)


def _worth(usage: Usage) -> float:
    host = _host(usage.cpu, usage.memory)
    counted = _counted(usage.gpus)
    if counted:
        return 0.9 * _gpus(counted) + 0.1 * host
    return (0.25 if usage.gpu_error else 0.5) * host


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
    return (min(idle, available) + (idle + available) / 2) / 2


def _counted(gpus: Sequence[Gpu]) -> list[Gpu]:
    largest = max((gpu.mem_total_mb or 0 for gpu in gpus), default=0)
    return [gpu for gpu in gpus if gpu.mem_total_mb is None or gpu.mem_total_mb >= largest / 8]


def _gpus(gpus: Sequence[Gpu]) -> float:
    free = [_free(gpu) for gpu in gpus]
    return 0.8 * max(free) + 0.2 * sum(free) / len(free)


def _free(gpu: Gpu) -> float:
    used = [pct / 100 for pct in (gpu.mem_used_pct, gpu.util_pct) if pct is not None]
    free = 1 - min(1.0, max(used)) if used else _UNKNOWN
    if _closed(gpu):
        return 0.0
    return free / 2 if _held(gpu) else free


def _closed(gpu: Gpu) -> bool:
    return gpu.compute_mode == "Prohibited" or (gpu.compute_mode.startswith("Exclusive") and bool(gpu.processes))


def _held(gpu: Gpu) -> bool:
    return bool(gpu.processes) or (gpu.mem_used_pct or 0) > 10


def _health(usage: Usage) -> float:
    load = _load(usage.cpu) or 0.0
    disks = min((_disk_health(disk) for disk in usage.disks), default=1.0)
    return 1 / max(1.0, load) * _memory_health(usage.memory) * disks


def _memory_health(memory: Memory | None) -> float:
    if memory is None:
        return 1.0
    return max(_share(memory.available_mb, memory.total_mb * 0.1), _share(memory.available_mb, 16 * 1024))


def _disk_health(disk: Disk) -> float:
    if disk.total_gb < 1:
        # The read-only image under an immutable system is always full.
        return 1.0
    writable = disk.used_gb + disk.free_gb
    return 0.3 + 0.7 * max(_share(disk.free_gb, writable * 0.05), _share(disk.free_gb, 20))
