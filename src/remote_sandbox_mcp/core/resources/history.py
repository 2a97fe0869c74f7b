"""History of machines: one point for each minute, small enough to be kept, and who used how many GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .usage import Gpu, Point, Usage, gpu_state, thinned

# A share is one byte: 0 to STEPS, or UNKNOWN.
STEPS, UNKNOWN = 250, 255
# Names and numbers come from machines.
MOST_CARDS, MOST_OWNERS, LONGEST_NAME = 64, 32, 60
# Who holds a card that is not free, where the machine does not say it.
SOMEBODY = "unknown"


@dataclass(frozen=True)
class Owner:
    """User of a GPU, and the job it is for; empty where no job of ours has leased it."""

    user: str
    job: str = ""


@dataclass(frozen=True)
class Minute:
    """One minute of a machine: how busy it was, who used how many GPUs, and for how many seconds this counts."""

    machine: str
    point: Point
    cards: Mapping[Owner, float]
    seconds: float = 60.0


@dataclass(frozen=True, kw_only=True)
class GpuHours:
    """GPU-hours of one owner on one machine and day (YYYY-MM-DD, by this computer's clock)."""

    day: str
    machine: str
    user: str
    job: str
    hours: float


def owners(usage: Usage) -> dict[Owner, float]:
    """Find who uses how many GPUs now; users of one card share it."""
    found: dict[Owner, float] = {}
    for gpu in usage.gpus[:MOST_CARDS]:
        users = _owners_of(gpu)
        for owner in users if len(found) < MOST_OWNERS else ():
            found[owner] = found.get(owner, 0.0) + 1 / len(users)
    return found


def _owners_of(gpu: Gpu) -> set[Owner]:
    if gpu.lease:
        return {Owner(gpu.lease.user[:LONGEST_NAME] or SOMEBODY, gpu.lease.job[:LONGEST_NAME])}
    users = {Owner(process.user[:LONGEST_NAME] or SOMEBODY) for process in gpu.processes}
    return users or ({Owner(SOMEBODY)} if gpu_state(gpu) in ("busy", "held") else set())


def mean_owners(seen: Sequence[Mapping[Owner, float]]) -> dict[Owner, float]:
    """Average how many GPUs each used."""
    return {owner: sum(it.get(owner, 0.0) for it in seen) / len(seen) for owner in {one for it in seen for one in it}}


def mean_point(points: Sequence[Point]) -> Point:
    """Average some points, at the time of the last one."""
    # The last of so many stays as it is, and is the only one that is left out of their mean.
    return thinned((*points, points[-1]), 2)[0] if len(points) > 1 else points[0]


def packed(point: Point) -> bytes:
    """Pack the shares of a point, without its time."""
    _, cpu, memory, gpus = point
    return bytes(UNKNOWN if it is None else round(min(1.0, max(0.0, it)) * STEPS) for it in (cpu, memory, *gpus))


def unpacked(time: float, shares: bytes) -> Point:
    cpu, memory, *gpus = (None if it == UNKNOWN else round(it / STEPS, 3) for it in shares)
    return time, cpu, memory, tuple(gpus)


def total(rows: Iterable[GpuHours], *by: str) -> dict[tuple[str, ...], float]:
    """Add up GPU-hours by these fields, most first; days in their order."""
    sums: dict[tuple[str, ...], float] = {}
    for row in rows:
        key = tuple(str(getattr(row, name)) for name in by)
        sums[key] = sums.get(key, 0.0) + row.hours
    order = sorted(sums, key=lambda key: (key[0] if by[0] == "day" else "", -sums[key], key))
    return {key: round(sums[key], 2) for key in order}
