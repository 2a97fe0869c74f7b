"""The loop's decisions, with clocks and changes that a test sets."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.local.processes.locks import Lock, holder
from remote_sandbox_mcp.services.watchdog.daemon import Intervals, Rounds, Supervision
from remote_sandbox_mcp.services.watchdog.service import until

QUICK = Intervals(changes_s=0.01, settings_s=0.05, shortest_rest_s=0.001, idle_s=0.02)


class Scene:
    """A database and work that a test directs."""

    def __init__(self, folder: Path) -> None:
        self.lock = Lock.take(folder / "lock")
        self.lock.sign()
        self.now = 1000
        self.ticks = 0
        self.due: Any = math.inf

    def beat(self) -> None: ...

    def version(self) -> object:
        return self.now

    async def tick(self) -> float:
        self.ticks += 1
        return float(self.due)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Supervision]:
        yield self

    def rounds(self, *, until_idle: bool = False, pace: Intervals = QUICK) -> Rounds:
        return Rounds(self.lock, self.open, lambda: 0, self, pace, until_idle)

    async def until(self, ticks: int, rounds: Rounds) -> None:
        """Go round until there were so many."""
        work = asyncio.ensure_future(rounds.run())
        assert await until(lambda: self.ticks >= ticks, 5)
        work.cancel()
        await asyncio.wait([work])


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.lock.release()


@pytest.mark.parametrize("jump", [-86400, 86400], ids=["back", "forward"])
async def test_a_clock_that_jumps_does_not_stop_it(scene: Scene, monkeypatch: pytest.MonkeyPatch, jump: int) -> None:
    true = time.time
    scene.due = true() + 0.02
    rounds = scene.rounds()
    await scene.until(2, rounds)
    monkeypatch.setattr(time, "time", lambda: true() + jump)
    await scene.until(5, rounds)


async def test_work_that_is_always_due_leaves_time_to_breathe(scene: Scene) -> None:
    scene.due, begun = 0, time.monotonic()
    await scene.until(6, scene.rounds(pace=Intervals(shortest_rest_s=0.05)))
    assert time.monotonic() - begun > 5 * 0.05


async def test_the_more_a_round_computes_the_longer_it_rests(scene: Scene) -> None:
    scene.due = 0

    async def tick() -> float:
        scene.ticks += 1
        until = time.process_time() + 0.005
        while time.process_time() < until:
            pass
        return 0.0

    scene.tick = tick  # type: ignore[method-assign]
    begun = time.monotonic()
    await scene.until(3, scene.rounds(pace=Intervals(shortest_rest_s=0.01, changes_s=0.01, longest_rest_s=0.3)))
    assert time.monotonic() - begun > 2 * 0.3
    begun, scene.ticks = time.monotonic(), 0
    await scene.until(3, scene.rounds(pace=Intervals(shortest_rest_s=0.01, changes_s=0.01, rest_times=4.0)))
    assert time.monotonic() - begun > 2 * 4 * 0.005


async def test_a_change_ends_the_rest_after_much_work(scene: Scene) -> None:
    scene.due = 0
    rounds = scene.rounds(pace=Intervals(shortest_rest_s=0.01, changes_s=0.01, rest_times=1e9, longest_rest_s=60))
    work = asyncio.ensure_future(rounds.run())
    for ticks in (1, 2, 3):
        assert await until(lambda ticks=ticks: scene.ticks >= ticks, 5)  # type: ignore[misc]
        scene.now += 1
    work.cancel()
    await asyncio.wait([work])


async def test_where_it_ends_for_want_of_work_nobody_else_is_kept_out(scene: Scene) -> None:
    await asyncio.wait_for(scene.rounds(until_idle=True).run(), 5)
    assert holder(scene.lock.file) is None


async def test_a_watch_that_is_added_while_it_ends_is_looked_after(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who added it saw the lock held, and went away content."""
    release, before = scene.lock.release, scene.ticks

    def released() -> None:
        scene.now, scene.due = 1001, time.time() + 60
        release()

    monkeypatch.setattr(scene.lock, "release", released)
    rounds = scene.rounds(until_idle=True)
    work = asyncio.ensure_future(rounds.run())
    assert await until(lambda: scene.now > 1000, 5)
    known = scene.ticks
    assert await until(lambda: scene.ticks > known, 5)
    assert holder(scene.lock.file) is not None
    assert not work.done()
    assert before < known
    work.cancel()
    await asyncio.wait([work])
    rounds._lock.release()


async def test_but_not_where_another_has_begun_meanwhile(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    release, others = scene.lock.release, []

    def released() -> None:
        scene.now += 1
        release()
        others.append(Lock.take(scene.lock.file))

    monkeypatch.setattr(scene.lock, "release", released)
    await asyncio.wait_for(scene.rounds(until_idle=True).run(), 5)
    others[0].release()
