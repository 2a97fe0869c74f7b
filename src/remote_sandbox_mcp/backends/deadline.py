"""Waiting for something for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def within(work: Awaitable[T], seconds: float) -> T:
    """The result in time, else TimeoutError; the work is cancelled with its caller.

    Before Python 3.12, asyncio.wait_for loses a cancel that arrives together with the result: the caller goes on.
    """
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait((task,), timeout=seconds)
        if not done:
            await _end(task)
    except asyncio.CancelledError:
        await _end(task)
        raise
    if task.cancelled() or (not done and task.exception() is not None):
        raise asyncio.TimeoutError
    return task.result()


async def _end(task: asyncio.Future[T]) -> None:
    """Cancelled, and over: what it had opened is closed before its caller goes on."""
    task.cancel()
    await asyncio.wait((task,))
