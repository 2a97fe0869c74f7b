"""Memory of a sandbox that no control group holds: a watch over what its processes take together."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from ...far.outpost.family import strike
from . import processes

log = logging.getLogger(__name__)

# Between two looks at the host's free memory, and between two counts of the sandbox's processes in any case.
POLL_EVERY_S, CHECK_S = 0.25, 5.0
# Memory that nothing but its process can give back: files are read again from the disk.
OWN = ("RssAnon", "RssShmem", "VmSwap")
# The same, where each process counts its share of what it has in common with others.
SHARE = ("Pss_Anon", "Pss_Shmem", "SwapPss")


def machine_mb() -> int:
    """The memory of this computer."""
    return (os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) >> 20


def available_mb() -> int:
    return _sum(Path("/proc/meminfo"), ("MemAvailable", "SwapFree")) >> 10


def _sum(file: Path, names: Iterable[str]) -> int:
    """The sum of those lines, in KB; 0 where the file cannot be read."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return 0
    values = dict(line.split(":", 1) for line in lines if ":" in line)
    return sum(int(values[name].split()[0]) for name in names if name in values)


def used_kb(home: Path, most_mb: int) -> dict[int, int]:
    """Measure each process of the sandbox; exactly only where the rough count is over the limit."""
    pids = processes.family(processes.bubblewraps(home))
    rough = {pid: _sum(Path(f"/proc/{pid}/status"), OWN) for pid in pids}
    if not is_too_much(rough, most_mb):
        return rough
    # A process may hide its own share, and then has all of it counted.
    return {pid: _sum(Path(f"/proc/{pid}/smaps_rollup"), SHARE) or rough[pid] for pid in pids}


def is_too_much(used: Mapping[int, int], most_mb: int) -> bool:
    return sum(used.values()) >> 10 > most_mb


def end_largest(used: dict[int, int], most_mb: int) -> int:
    """End processes, the largest first, until the others are within the limit; returns how many."""
    ended = 0
    while is_too_much(used, most_mb):
        largest = max(used, key=lambda pid: used[pid])
        strike((largest,), signal.SIGKILL)
        del used[largest]
        ended += 1
    return ended


class MemoryWatch:
    """Ends the largest process of a sandbox while all of them together take more than `most_mb`."""

    def __init__(self, name: str, home: Path, most_mb: int, is_active: Callable[[], bool]) -> None:
        self._name = name
        self._home = home
        self._most_mb = most_mb
        self._is_active = is_active
        # When it was counted, what was used, and what the host had left then.
        self._last = (0.0, 0, 0)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(POLL_EVERY_S)
            if self._is_active() and self._is_due():
                await asyncio.to_thread(self.check)

    def _is_due(self) -> bool:
        """Whether to count: at a steady pace, and sooner when the host lost enough to pass the limit."""
        at, used, available = self._last
        return time.monotonic() - at > CHECK_S or used + available - available_mb() > self._most_mb

    def check(self) -> None:
        available, used = available_mb(), used_kb(self._home, self._most_mb)
        if ended := end_largest(used, self._most_mb):
            log.warning("%s took more than its %d MB of memory: %d processes ended", self._name, self._most_mb, ended)
        self._last = time.monotonic(), sum(used.values()) >> 10, available
