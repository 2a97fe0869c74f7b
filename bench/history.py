"""What the history of machines costs: 100 simulated machines with 8 GPUs each over 90 days, on a real database.

python -m bench.history [--machines N] [--days N]
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from pathlib import Path

from remote_sandbox_mcp.core.resources.history import Minute, mean_owners, mean_point, owners
from remote_sandbox_mcp.core.resources.usage import Gpu, GpuProcess, Usage, point_of
from remote_sandbox_mcp.local.store.database import Database
from remote_sandbox_mcp.local.store.machines import MachineRows

GPUS, PEOPLE, FULL_DAYS = 8, 6, 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machines", type=int, default=100)
    parser.add_argument("--days", type=int, default=90)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "state.db"
        rows = MachineRows(Database(file))
        now = float(int(time.time()) // 3600 * 3600)
        begun, cpu = time.monotonic(), 0.0
        # The first days are written as they are after they were thinned; the last two minute by minute, as in life.
        for hour in range(-24 * options.days, 0):
            if is_new := hour >= -24 * FULL_DAYS:
                cpu = cpu or time.process_time()
            for part in range(0, 60, 1 if is_new else 15):
                at = now + 3600 * hour + 60 * part
                rows.write([_minute(f"gpu{n:03}.example.org", at, n) for n in range(options.machines)])
            if is_new or hour % 24 == 0:
                rows.tidy(now + 3600 * (hour + 1))
        spent = time.process_time() - cpu
        rows.database.close()
        size = os.stat(file).st_size / 1e6
        share = 100 * spent / (86400 * FULL_DAYS)
        print(f"{options.machines} machines, {options.days} days: {size:.1f} MB, {share:.3f} % of a core for writing")
        print(f"(simulated in {time.monotonic() - begun:.0f} s)")
        for name, after, machine in (
            ("the last hour of all machines", 3600, ""),
            ("90 days of a machine", 90 * 86400, "gpu001.example.org"),
        ):
            begun = time.monotonic()
            found = rows.points(now - after, machine)
            took = 1000 * (time.monotonic() - begun)
            print(f"{name}: {sum(map(len, found.values()))} points in {took:.0f} ms")
        begun = time.monotonic()
        found_hours = rows.hours(now - 7 * 86400)
        print(f"GPU-hours of a week: {len(found_hours)} rows in {1000 * (time.monotonic() - begun):.0f} ms")


def _minute(machine: str, at: float, number: int) -> Minute:
    usage = _usage(int(at // 7200) + number)
    return Minute(machine, mean_point([point_of(usage, at)]), mean_owners([owners(usage)]))


def _usage(seed: int, cache: dict[int, Usage] = {}) -> Usage:  # noqa: B006
    """A machine whose users change every two hours."""
    seed %= 997
    if seed not in cache:
        chance = random.Random(seed)
        gpus = tuple(
            Gpu(
                n, "H200", util_pct=chance.random() * 100, processes=(GpuProcess(1, f"user{chance.randrange(PEOPLE)}"),)
            )
            for n in range(GPUS)
        )
        cache[seed] = Usage(gpus=gpus)
    return cache[seed]


if __name__ == "__main__":
    main()
