"""Many things at once: an answer takes a round trip, so that one after the other they would take for ever."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator
from typing import Any, TypeVar

# So many entries are on their way.
AT_ONCE = 64

T = TypeVar("T")


class Load:
    """Bytes that are held in memory; who brings more waits while there are too many."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._held = 0
        self._light = asyncio.Event()
        self._light.set()

    def add(self, size: int) -> None:
        """A negative size takes off."""
        self._held += size
        self._light.set() if self._held <= self._limit else self._light.clear()

    async def room(self) -> None:
        while self._held > self._limit:
            await self._light.wait()

    def lift(self) -> None:
        """Nobody waits any more."""
        self._limit = float("inf")
        self._light.set()

    @contextlib.contextmanager
    def held(self, size: int) -> Iterator[None]:
        self.add(size)
        try:
            yield
        finally:
            self.add(-size)


async def each(items: Iterable[T], work: Callable[[T], Awaitable[None]], at_once: int = AT_ONCE) -> None:
    """Do all of it, so many at once; the first failure ends it."""
    todo = iter(items)

    async def go_on() -> None:
        for item in todo:
            await work(item)

    first = list(itertools.islice(todo, at_once))
    todo = itertools.chain(first, todo)
    await together([go_on() for _ in first])


async def together(works: Collection[Coroutine[Any, Any, T]]) -> list[T]:
    """All at once; where one fails, the others have ended before that is told."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        await end(tasks)
        raise


async def end(tasks: Collection[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def for_all(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Work for any number of callers; a failure that none of them waits for any more is not an error in the log."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


async def outcome(task: asyncio.Task[T]) -> T:
    """For one of them: it goes on without a caller who is cancelled."""
    await asyncio.wait((task,))
    return task.result()
