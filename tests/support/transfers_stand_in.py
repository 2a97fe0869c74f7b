"""A server that stands in for ours, with a runner that pretends: it appends lines to a file.

transfers_stand_in.py STATE ORDER     begins, prints the id, and closes when its input ends; without an order, takes up
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from remote_sandbox_mcp.core.errors import LoginRefused, Unreachable
from remote_sandbox_mcp.core.sandboxes.files import Problem
from remote_sandbox_mcp.core.sync.transfer import Headway, Listener, Order, Outcome, Place
from remote_sandbox_mcp.services.transfers.background import BackgroundTransfers

COMMAND = (sys.executable, str(Path(__file__)))
CONFIGURATION = "the one in use"
PIECE_S = 0.02


def pretend(folder: Path, *how: str, pieces: int = 5) -> Order:
    """An order for `act`, which does so many pieces as `how` says."""
    return Order(source=Place("", str(folder)), target=Place("gpu1", "/data"), excludes=(str(pieces), *how))


async def act(order: Order, listener: Listener) -> Outcome:
    """Append what is missing to `trace`, piece by piece; each turn begins and ends with a line."""
    trace, how = Path(order.source.path) / "trace", order.excludes[1:]
    _add(trace, "begin")
    try:
        listener(Headway("scanning"))
        _obey(how, trace)
        await _stay(how)
        done = trace.read_text().count("piece")
        for number in range(done, int(order.excludes[0])):
            await asyncio.sleep(PIECE_S)
            _add(trace, f"piece {number}")
            listener(Headway("sending", number + 1, int(order.excludes[0]), path=f"piece {number}"))
    finally:
        if "slow to stop" in how:
            await asyncio.sleep(0.3)
        _add(trace, "end")
    problems = (Problem("odd\nname", "permission denied"),)
    return Outcome(synced_type="directory", sent_files=5, bytes=2_000_000, problems=problems, problem_count=1)


def _add(trace: Path, line: str) -> None:
    with trace.open("a") as file:
        file.write(f"{os.getpid()} {line}\n")


def _obey(how: tuple[str, ...], trace: Path) -> None:
    turns = trace.read_text().count("begin")
    if "unreachable at first" in how and turns <= 4:
        raise Unreachable("unable to reach gpu1: no route")
    if "refused" in how:
        raise LoginRefused("gpu1 refused the login")
    if "defect" in how:
        raise ValueError("a defect")


async def _stay(how: tuple[str, ...]) -> None:
    while "forever" in how or "deaf" in how:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if "deaf" not in how:
                raise


async def serve(state: str, order: str) -> None:
    transfers = BackgroundTransfers(Path(state), CONFIGURATION)
    if order:
        begun = await transfers.begin(Order.from_json(json.loads(order)), act, wait_s=0)
        print(begun.id, flush=True)
    else:
        await transfers.take_up(act)
        print("taken up" if transfers.running else "nothing", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    closing = time.monotonic()
    await transfers.close()
    print(time.monotonic() - closing, flush=True)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
