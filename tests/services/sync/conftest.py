"""Syncs whose both ends are lanes of this machine; one pool of lanes for each test."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from remote_sandbox_mcp.backends import here
from remote_sandbox_mcp.backends.link.lane import OutpostLane
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from remote_sandbox_mcp.core.sync.transfer import Headway, Lane, Order, Outcome, Place
from remote_sandbox_mcp.services.sync.engine import Synchronization
from remote_sandbox_mcp.services.sync.service import Syncs
from tests.support.server import until
from tests.support.warm import LANE_NURSERY


class Chunks(dict[bytes, bytes]):
    """What is remembered of large files."""

    def put(self, key: bytes, blob: bytes) -> None:
        self[key] = blob


class HereLane:
    """A sandbox that has lanes and nothing else."""

    def __init__(self, opener: Callable[[], Any]) -> None:
        self.open_lane = opener


class Pool:
    """The syncs of a test, all its lanes, and what was asked of them. The far end is named "x"."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = folder / "source"
        self.target = folder / "target"
        self.chunks = Chunks()
        self._openings: list[asyncio.Task[OutpostLane]] = []
        self.asked: Counter[str] = Counter()
        self.headways: list[Headway] = []
        # Called for every request to a lane, with its verb.
        self.asking: Callable[[str, OutpostLane], None] = lambda verb, lane: None
        # Called for every frame that a lane says.
        self.heard: Callable[[OutpostLane], None] = lambda lane: None
        self.syncs = Syncs(self._open_sandbox, self.open_lane, self.chunks)

    async def _open_sandbox(self, name: str) -> Sandbox:
        return cast(Sandbox, HereLane(self.open_lane))

    async def open_lane(self) -> Lane:
        # A caller who is cancelled meanwhile leaves it to us.
        lane = await asyncio.shield(self._opened())
        begin, dispatch = lane.begin, lane._dispatch

        def counted(order: Any, *args: Any, **more: Any) -> Any:
            self.asked[order["verb"]] += 1
            self.asking(order["verb"], lane)
            return begin(order, *args, **more)

        async def listened(kind: int, number: int, body: bytes) -> None:
            self.heard(lane)
            await dispatch(kind, number, body)

        lane.begin, lane._dispatch = counted, listened  # type: ignore[method-assign]
        return lane

    def _opened(self) -> asyncio.Task[OutpostLane]:
        opening = asyncio.ensure_future(here.open_lane())
        self._openings.append(opening)
        return opening

    @property
    def lanes(self) -> list[OutpostLane]:
        return [opening.result() for opening in self._openings if opening.done()]

    async def close(self) -> None:
        await self.syncs.close()
        opened = await asyncio.gather(*self._openings)
        await asyncio.gather(*(lane.close() for lane in opened))

    def order(self, source: object = None, target: object = None, **more: Any) -> Order:
        """From `source` on this machine to `target` on the other; the default excludes are off unless asked for."""
        ends = {"source": Place("", str(source or self.source)), "target": Place("x", str(target or self.target))}
        return Order(**(ends | {"default_excludes": False, "confirmed": True} | more))

    def begin(self, **more: Any) -> Synchronization:
        return self.syncs.begin(self.order(**more))

    async def sync(self, source: object = None, target: object = None, **more: Any) -> Outcome:
        return await self.syncs.run(self.order(source, target, **more), self.listen)

    def listen(self, headway: Headway) -> None:
        self.headways.append(headway)

    @property
    def processes(self) -> list[int]:
        """The lanes' processes that still are."""
        pids = [lane._line._process.pid for lane in self.lanes]  # type: ignore[attr-defined]
        return [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


@pytest.fixture(autouse=True)
def usual_start(monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    """Lanes of this machine are forked from a process that has their program loaded; gives what starts them else."""
    return LANE_NURSERY.fork_lanes(monkeypatch)


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Pool]:
    pool = Pool(tmp_path)
    yield pool
    await pool.close()
    # One that was cut off is told to end, and not waited for.
    await until(lambda: not pool.processes, "the lanes' processes to end")
