"""Limits of a disposable sandbox: checks them, enforces them, and describes for the caller how they are enforced."""

from __future__ import annotations

import os
import platform
import resource
from dataclasses import dataclass, replace

from ...core.errors import BadArgument, Unsupported
from ...core.sandboxes.disposable import Limits
from . import cgroups, disk, memory, processes
from .bwrap import Footing
from .cgroups import Group
from .disk import DiskUse
from .landlock import not_held
from .walls import Bounds

PROCESSES = 512
MEMORY_MB = 4096
DISK_MB = 10_240
SHM_MB = 512
RUNS_MB = 64
LEAST_MEMORY_MB = 32
LEAST_PROCESSES = 16
LEAST_CPU = 0.01
# Only 1 keeps the kernel from starting the host's crash handler; 0 does not.
NO_CORE = 1


@dataclass(frozen=True)
class Held:
    """Limits in force, with the text of `told`, and how they are enforced."""

    limits: Limits
    bounds: Bounds


def check(limits: Limits) -> None:
    """Raises BadArgument, Unsupported."""
    if limits.gpus:
        raise Unsupported("an embedded sandbox has no GPU; use an SSH machine, or a platform that has GPUs")
    for name, value, least in (
        ("memory_mb", limits.memory_mb, LEAST_MEMORY_MB),
        ("processes", limits.processes, LEAST_PROCESSES),
        ("cpu", limits.cpu, LEAST_CPU),
        ("disk_mb", limits.disk_mb, 1),
    ):
        if value and value < least:
            raise BadArgument(f"{name} is {value:g}, but a sandbox needs at least {least:g}")


def most_on_disk(limits: Limits) -> DiskUse:
    return DiskUse(limits.disk_mb, disk.most_files(limits.disk_mb))


def too_much(used: DiskUse, limits: Limits) -> str:
    """Return a sentence with the limit that is exceeded, and by how much."""
    most = most_on_disk(limits)
    if used.megabytes > most.megabytes:
        return f"{used.megabytes} MB in its home and /tmp, more than the {most.megabytes} MB that it may"
    return f"{used.files} files in its home and /tmp, more than the {most.files} that it may"


def hold(asked: Limits, group: Group, footing: Footing, *, is_disk_real: bool, shm_mb: int = 0) -> Held:
    """Enforce the limits, by a control group where there is one; `is_disk_real`: its files have a size of their own."""
    rlimits = {resource.RLIMIT_CORE: NO_CORE}
    wanted = replace(asked, processes=asked.processes or PROCESSES, disk_mb=asked.disk_mb or DISK_MB)
    memory_mb, memory_note = _memory(asked, group, rlimits)
    notes = (
        *filter(None, (not_held(footing),)),
        memory_note,
        _processes(wanted.processes, group, rlimits, footing),
        *_cpu(asked.cpu, group),
        _disk(wanted, rlimits, is_real=is_disk_real),
    )
    # Files there count as memory, and ending processes does not free them.
    shm_mb = shm_mb or min(SHM_MB, memory_mb // 4 or SHM_MB)
    watched_mb = memory_mb if resource.RLIMIT_DATA in rlimits else 0
    return Held(replace(wanted, memory_mb=memory_mb, told=notes), Bounds(rlimits, group.joins, shm_mb, watched_mb))


def _memory(asked: Limits, group: Group, rlimits: dict[int, int]) -> tuple[int, str]:
    wanted = asked.memory_mb or MEMORY_MB
    if cgroups.limit_memory(group, wanted):
        return wanted, f"memory: {wanted} MB for all processes together, held by a control group"
    wanted = asked.memory_mb or memory.machine_mb() // 2
    # Not RLIMIT_AS: Node, Java and Go reserve much more address space than they use, and would not start.
    rlimits[resource.RLIMIT_DATA] = wanted << 20
    return wanted, (
        f"memory: {wanted} MB for each process, held by an rlimit, and for all together, watched: once over, the "
        "largest process is ended; this server may not make control groups, which would hold it exactly"
    )


def _processes(wanted: int, group: Group, rlimits: dict[int, int], footing: Footing) -> str:
    if cgroups.limit_processes(group, wanted):
        return f"processes: {wanted}, held by a control group"
    rlimits[resource.RLIMIT_NPROC] = wanted
    # With a user of their own, all sandboxes are what an rlimit counts the processes of.
    shares_user = bool(footing.step_down)
    counted = "counted over all sandboxes of this server" if shares_user else "counted in its user namespace"
    has_namespace = not footing.landlock and processes.are_counted_by_namespace(platform.release())
    if not shares_user and not has_namespace:
        rlimits[resource.RLIMIT_NPROC] += processes.threads_of(os.geteuid())
        counted = "counted with those that its user had already, because all of a user's are counted"
    return f"processes: {wanted}, held by an rlimit and {counted}"


def _cpu(asked: float, group: Group) -> tuple[str, ...]:
    if not asked:
        return ()
    if cgroups.limit_cpu(group, asked):
        return (f"cpu: {asked:g} cores, held by a control group",)
    return ("cpu: not limited, because this server may not make control groups for cpu",)


def _disk(wanted: Limits, rlimits: dict[int, int], *, is_real: bool) -> str:
    if is_real:
        return (
            f"disk: {wanted.disk_mb} MB for its home and /tmp together, held by a file system in memory, which counts "
            "as its memory and does not survive a restart of this machine"
        )
    # Limits a single file; many files are noticed as soon as the host's disk has lost as much space.
    rlimits[resource.RLIMIT_FSIZE] = wanted.disk_mb << 20
    most = most_on_disk(wanted)
    return (
        f"disk: {most.megabytes} MB and {most.files} files for its home and /tmp together, watched: once over, its "
        "processes are ended and commands refused"
    )
