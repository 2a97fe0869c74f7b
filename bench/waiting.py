"""What the waiting list costs the hub: 1,000 jobs that wait for 100 machines in memory. `python -m bench.waiting`."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.support.fakes.jobs import FakeCard
from tests.support.fakes.sandbox import FakeSandbox

from remote_sandbox_mcp.config.schema import Settings
from remote_sandbox_mcp.core.jobs.cards import CardRequest
from remote_sandbox_mcp.core.jobs.watch import WatchOrder
from remote_sandbox_mcp.services.fleet import Fleet, Member
from remote_sandbox_mcp.services.jobs.service import JobService, Wanted, Which

# A busy hub writes to the state file all the time, and each time the loop looks whether it concerns the list.
WOKEN_S = 2.0


def machine(fake: FakeSandbox) -> Member:
    name = fake.description.name
    fake.jobs.cards = [FakeCard(f"GPU-{name}-{number}", used_by="bob") for number in range(8)]

    async def opener() -> Any:
        return fake

    return Member(name, lambda: fake.description, opener)


async def measure(jobs: int, machines: int, seconds: float) -> None:
    names = [f"gpu{number}" for number in range(machines)]
    fakes = [FakeSandbox(name=name) for name in names]
    service, chance = JobService(Fleet(map(machine, fakes)), Settings(), None), random.Random(7)
    begun, used = time.monotonic(), time.process_time()
    for number in range(jobs):
        places = chance.choice([("any",), tuple(chance.sample(names, min(5, machines)))])
        cards = CardRequest(chance.choice([1, 1, 2, 4, 8]), chance.choice([0, 0, 40960]))
        wanted = Wanted(
            command=f"train {number}", session=f"job{number}", places=places, cards=cards, watch=WatchOrder(),
            priority=chance.randint(0, 3),
        )  # fmt: skip
        assert (await service.start(wanted)).pending
    took, used = time.monotonic() - begun, time.process_time() - used
    print(f"{jobs} starts that found no place: {1000 * used / jobs:.1f} ms of CPU each, {took:.1f} s in all")
    for ends in (False, True):
        begun, used, ticks = time.monotonic(), time.process_time(), 0
        while time.monotonic() < begun + seconds:
            if ends and not ticks % 2:
                await end_one(service, chance.choice(fakes), ticks)
            await service.waiting.tick("")
            ticks += 1
            await asyncio.sleep(WOKEN_S)
        took, used = time.monotonic() - begun, time.process_time() - used
        what = f"{jobs} jobs wait for {machines} machines" + f", a job ends every {2 * WOKEN_S:g} s" * ends
        print(f"{what}, woken {ticks} times in {took:.0f} s: {used / took:.2%} of a core")
    await service.close()


async def end_one(service: JobService, fake: FakeSandbox, number: int) -> None:
    """Let a job end of which the list hears, so that it looks at that machine, and at all who wait, at once."""
    begun = await service.start(Wanted(command="evaluate", session=f"short{number}", sandbox=fake.description.name))
    fake.jobs.end(begun.started.job_id)
    await service.check(Which(session=begun.started.session))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--machines", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=95.0)
    options = parser.parse_args()
    with TemporaryDirectory() as home:
        os.environ["REMOTE_SANDBOX_MCP_HOME"] = str(Path(home))
        asyncio.run(measure(options.jobs, options.machines, options.seconds))


if __name__ == "__main__":
    main()
