"""Waiting with a limit, and work that nobody waits for."""

from __future__ import annotations

import asyncio
import logging

import pytest

from remote_sandbox_mcp.core.errors import Unreachable
from remote_sandbox_mcp.local.waiting import Chores, within


async def after(seconds: float, result: str = "done") -> str:
    await asyncio.sleep(seconds)
    return result


async def test_the_result_comes_in_time() -> None:
    assert await within(after(0), 10) == "done"
    assert await within(after(0), None) == "done"


async def test_what_takes_too_long_is_over_before_its_caller_goes_on() -> None:
    closed = []

    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            closed.append("what it had opened")

    with pytest.raises(asyncio.TimeoutError):
        await within(slow(), 0.01)
    assert closed


async def test_a_cancel_that_comes_together_with_the_result_is_not_lost() -> None:
    ready = asyncio.get_running_loop().create_future()
    caller = asyncio.ensure_future(within(ready, 10))
    await asyncio.sleep(0)
    ready.set_result("done")
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller


async def test_a_failure_that_nobody_waits_for_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(problem: Exception) -> None:
        raise problem

    chores = Chores("work on gpu1")
    with caplog.at_level(logging.WARNING):
        chores.start(fail(Unreachable("gpu1 is gone")))
        chores.start(fail(ValueError("a defect")))
        await chores.settle(10)
    assert not len(chores)
    told = {record.getMessage(): bool(record.exc_info) for record in caplog.records}
    assert told == {"work on gpu1 failed: gpu1 is gone": False, "work on gpu1 failed: a defect": True}


async def test_what_has_not_ended_in_time_is_cancelled() -> None:
    chores = Chores("work")
    quick, slow = chores.start(after(0)), chores.start(after(60))
    await chores.settle(0.05)
    assert (quick.result(), slow.cancelled(), len(chores)) == ("done", True, 0)


async def test_a_chore_may_end_all_others() -> None:
    chores = Chores("work")
    other = chores.start(after(60))
    await chores.start(chores.close())
    assert other.cancelled()
