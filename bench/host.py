"""The machine that measures: what it is, and how much else it has to do."""

from __future__ import annotations

import os
import platform
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

BUSY_SHARE = 0.15
CALM_SHARE = 0.05
BUSY_LOAD_PER_CORE = 0.5
_LOOK_S = 1.5
# A memory has settled when it has not changed for so long.
_SETTLED_S = 4


@dataclass(frozen=True)
class Host:
    """What a reader needs to judge the numbers."""

    cores: int
    kernel: str
    python: str

    @classmethod
    def here(cls) -> Host:
        return cls(os.cpu_count() or 1, platform.release(), platform.python_version())

    def is_loaded(self, load: float) -> bool:
        return load > BUSY_LOAD_PER_CORE * self.cores

    def __str__(self) -> str:
        return f"{self.cores} cores, Linux {self.kernel}, Python {self.python}"


def load_average() -> float:
    """Of the last minute, rounded as everybody shows it."""
    return round(os.getloadavg()[0], 2)


def busy_share() -> float:
    """How much of all cores is in use at this moment; before a subject begins, that is others' work."""
    busy, total = _ticks()
    time.sleep(_LOOK_S)
    busy_now, total_now = _ticks()
    return (busy_now - busy) / max(1, total_now - total)


def wait_for_calm(patience_s: float) -> float:
    """Wait until others leave the machine alone for a while, or patience ends; how busy they keep it then."""
    deadline = time.monotonic() + patience_s
    while (share := busy_share()) > CALM_SHARE and time.monotonic() < deadline:
        pass
    return share


def cpu_seconds(pid: int) -> float:
    """What all threads of a process have worked so far."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def rewind_peak(pid: int) -> int:
    """What a process holds now, in kB, with its peak set back to that where we may."""
    with suppress(PermissionError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    return _memory(pid, "VmRSS")


def resident(pid: int) -> int:
    """What a process holds now, in kB; nothing where it has ended."""
    return _memory(pid, "VmRSS")


def settled(pid: int) -> int:
    """What a hub holds, in kB, once it has loaded all its modules and given back what it does not need."""
    seen = [resident(pid)]
    while len(seen) <= _SETTLED_S or seen[-1] != seen[-1 - _SETTLED_S]:
        time.sleep(1)
        seen.append(resident(pid))
    return seen[-1]


def held(pid: int) -> int:
    """The memory of a process in kB, with its share of what it has in common with others."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except FileNotFoundError:
        return 0
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))


def peak(pid: int) -> int:
    """The most that a process has held, in kB; nothing where it has ended."""
    return _memory(pid, "VmHWM")


def _memory(pid: int, field: str) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith(f"{field}:")), 0)


def _ticks() -> tuple[int, int]:
    numbers = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = numbers[3] + numbers[4]
    return sum(numbers) - idle, sum(numbers)
