"""Work side by side: all of it is done, or, when a part fails, none of it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Together:
    """Tasks that belong together. Leaving waits for all; the first failure cancels the others and is raised."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failure: BaseException | None = None

    def start(self, work: Coroutine[Any, Any, Any], then: Callable[[], None] = lambda: None) -> None:
        """Begin it. `then` is called when it has ended, however it did: work cancelled before it began does nothing."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(lambda _: then())
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None and self._failure is None:
            self._failure = task.exception()
            self._cancel()

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    def check(self) -> None:
        """Raise what has failed, if something has."""
        if self._failure is not None:
            raise self._failure

    async def __aenter__(self) -> Together:
        return self

    async def __aexit__(self, kind: Any, problem: BaseException | None, trace: Any) -> None:
        if problem is not None:
            self._cancel()
        stop: asyncio.CancelledError | None = None
        while self._tasks:
            try:
                await asyncio.wait(self._tasks)
            except asyncio.CancelledError as cancelled:
                # Not before the others have ended, who would go on without us.
                stop = cancelled
                self._cancel()
        if stop is not None:
            raise stop
        if problem is None:
            self.check()
