"""Waiting with a time limit, and tasks that run in the background."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import Any, TypeVar

from ..core.errors import SandboxError

log = logging.getLogger(__name__)
T = TypeVar("T")
F = TypeVar("F", bound="asyncio.Future[Any]")


async def within(work: Awaitable[T], seconds: float | None) -> T:
    """The result in time, else TimeoutError; the work is cancelled with its caller. None is no limit.

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


async def within_moving(work: Awaitable[T], seconds: Callable[[], float]) -> T:
    """Await work within a limit, counted from now, that may grow while the work goes on."""
    task, begun = asyncio.ensure_future(work), time.monotonic()
    try:
        while not task.done() and (left := begun + seconds() - time.monotonic()) > 0:
            await asyncio.wait((task,), timeout=left)
    except asyncio.CancelledError:
        await _end(task)
        raise
    return await within(task, 0)


async def _end(task: asyncio.Future[T]) -> None:
    """Cancelled, and over: what it had opened is closed before its caller goes on."""
    task.cancel()
    await asyncio.wait((task,))


def unlogged(future: F) -> F:
    """Read the exception at its end: asyncio would log one that no caller waits for any more."""
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future


@contextlib.contextmanager
def undone_by(undo: Callable[[], object]) -> Iterator[None]:
    """Undo what was begun before the block, if that fails or is cancelled."""
    try:
        yield
    except BaseException:
        undo()
        raise


class Chores:
    """Background tasks. The event loop keeps only weak references to tasks, so these are kept here until they end.

    What fails is logged, as `what`: one of our errors in its sentence, anything else with its stack. Failures that
    are `expected` are not: somebody else tells them, or they mean nothing.
    """

    def __init__(self, what: str, expected: tuple[type[Exception], ...] = ()) -> None:
        self._what = what
        self._expected = expected
        self._tasks: set[asyncio.Future[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[asyncio.Future[Any]]:
        return iter(tuple(self._tasks))

    def start(self, work: Awaitable[T]) -> asyncio.Future[T]:
        """Begin it. It may be awaited, too: behind asyncio.shield, a caller who goes away does not end it."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        problem = None if task.cancelled() else task.exception()
        if problem is not None and not isinstance(problem, self._expected):
            cause = None if isinstance(problem, SandboxError) else problem
            log.warning("%s failed: %s", self._what, problem or repr(problem), exc_info=cause)

    def cancel(self) -> None:
        """Tell all of them to end."""
        for task in self:
            task.cancel()

    async def settle(self, seconds: float) -> None:
        """Wait for those that run; what has not ended by then is cancelled."""
        if running := self._others():
            _, late = await asyncio.wait(running, timeout=seconds)
            await end_all(late)

    async def close(self) -> None:
        """End all of them, now."""
        await end_all(self._others())

    def _others(self) -> set[asyncio.Future[Any]]:
        """Without the one that asks: it cannot wait for itself."""
        return {task for task in self._tasks if task is not asyncio.current_task()}


async def end_all(tasks: Collection[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
