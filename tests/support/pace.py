"""How long something may take on a machine that does other work at the same time."""

from __future__ import annotations

import os
import time
from pathlib import Path


def at_most(seconds: float) -> float:
    """So long on an idle machine; longer by as many times as there are processes that want the same core."""
    running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    return seconds * max(1.0, max(running, os.getloadavg()[0]) / (os.cpu_count() or 1))


class Deadline:
    """When to give up waiting: after so long on an idle machine, and later on one that does other work."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._begun = time.monotonic()

    def has_passed(self) -> bool:
        waited = time.monotonic() - self._begun
        return waited > self._seconds and waited > at_most(self._seconds)
