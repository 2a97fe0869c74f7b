"""The Python API for programs without asyncio: each call waits for its end on a loop that runs in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from os import PathLike
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from . import api
from .api import Chunk, Done, How
from .core.errors import SandboxError
from .core.sandboxes.sandbox import Description

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

__all__ = ["Box", "Chunk", "Done", "Job", "Output", "SandboxError", "Sandboxes"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="remote-sandbox", daemon=True)
        self._thread.start()

    def wait(self, work: Coroutine[Any, Any, R]) -> R:
        """The result of the work; Ctrl-C cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def close(self) -> None:
        self.wait(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Twin:
    """The blocking twin of an object of the API."""

    def __init__(self, loop: _Loop, inner: Any) -> None:
        self._loop = loop
        self._inner = inner
        self.name: str = getattr(inner, "name", "")


def _waits(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[_Twin, P], R]:
    """A method that waits for the one of the API."""

    def call(self: _Twin, /, *args: P.args, **named: P.kwargs) -> R:
        return self._loop.wait(method(self._inner, *args, **named))

    call.__doc__ = method.__doc__
    return call


def _makes(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, Any]], twin: Callable[[_Loop, Any], T]
) -> Callable[Concatenate[_Twin, P], T]:
    """A method that waits for one whose result has a twin, too."""
    plain = _waits(method)

    def call(self: _Twin, /, *args: P.args, **named: P.kwargs) -> T:
        return twin(self._loop, plain(self, *args, **named))

    call.__doc__ = method.__doc__
    return call


class Job(_Twin):
    """A background job: it goes on when this program ends."""

    check = _waits(api.Job.check)
    tail = _waits(api.Job.tail)
    wait = _waits(api.Job.wait)
    stop = _waits(api.Job.stop)


class Output(_Twin):
    """The output of a command as it comes; `done` is its end, once the loop is over."""

    def __iter__(self) -> Iterator[Chunk]:
        chunks: AsyncIterator[Chunk] = aiter(self._inner)
        try:
            while chunk := self._loop.wait(_next(chunks)):
                yield chunk
        finally:
            self._loop.wait(chunks.aclose())  # type: ignore[attr-defined]

    @property
    def done(self) -> Done | None:
        return cast("Done | None", self._inner.done)


async def _next(chunks: AsyncIterator[Chunk]) -> Chunk | None:
    return await anext(chunks, None)


class Box(_Twin):
    """One sandbox."""

    run = _waits(api.Box.run)
    read = _waits(api.Box.read)
    write = _waits(api.Box.write)
    push = _waits(api.Box.push)
    pull = _waits(api.Box.pull)
    start = _makes(api.Box.start, Job)
    delete = _waits(api.Box.delete)

    @property
    def description(self) -> Description:
        return cast(Description, self._inner.description)

    def stream(self, command: str, **how: Unpack[How]) -> Output:
        return Output(self._loop, self._inner.stream(command, **how))

    def job(self, name: str) -> Job:
        """A job that was started before, by its name."""
        return Job(self._loop, self._inner.job(name))

    @contextmanager
    def forward(self, port: int, *, local_port: int = 0) -> Iterator[int]:
        """Let a port of the sandbox be reached on this computer."""
        opened = self._inner.forward(port, local_port=local_port)
        local = self._loop.wait(opened.__aenter__())
        try:
            yield local
        finally:
            self._loop.wait(opened.__aexit__(None, None, None))


class Sandboxes(_Twin):
    """The sandboxes of this user's configuration; use it as `with Sandboxes() as boxes`."""

    def __init__(self, config: str | PathLike[str] | None = None) -> None:
        super().__init__(_Loop(), api.Sandboxes(config))

    def __enter__(self) -> Self:
        self._loop.wait(self._inner.__aenter__())
        return self

    def __exit__(self, *problem: object) -> None:
        self._loop.wait(self._inner.__aexit__())
        self._loop.close()

    list = _waits(api.Sandboxes.list)
    open = _makes(api.Sandboxes.open, Box)
    most_idle = _makes(api.Sandboxes.most_idle, Box)
    create = _makes(api.Sandboxes.create, Box)
