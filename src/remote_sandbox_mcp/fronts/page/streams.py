"""Streams of events, and WebSockets: each ends with its browser, its pass or the service, or by itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any

from ...local.waiting import within
from ...views.live.service import TOPICS, Live
from .http import EVERYWHERE, NOT_KEPT, PageRefusal, Receive, Send, to_json

log = logging.getLogger(__name__)

# Something is sent at least so often, so that both sides notice that the other has gone.
HEARTBEAT_S = 10.0
HEARTBEAT = b":\n\n"
MOST_STREAMS = 100
EVENTS, PLAIN, BYTES = b"text/event-stream", b"text/plain; charset=utf-8", b"application/octet-stream"
# For the end of a stream that is cut short.
LAST_WORD_S = 0.1

# Waits until the pass of a stream's browser is over.
UntilOver = Callable[[], Awaitable[None]]


def event(name: str, data: object) -> bytes:
    # A line break in a text is an escape in JSON, so that data is always one line.
    return b"event: %s\ndata: %s\n\n" % (name.encode(), to_json(data))


async def changes(live: Live) -> AsyncGenerator[bytes, None]:
    """All topics, whole at first. A browser that does not read holds this up, and gets merged changes later."""
    with live.looking(TOPICS) as looker:
        while True:
            try:
                found = await within(looker.changes(), HEARTBEAT_S)
            except asyncio.TimeoutError:
                yield HEARTBEAT
                continue
            for change in found:
                yield event("change", change.fields())


class EventStreams:
    """The streams that are open now."""

    def __init__(self) -> None:
        self._ended = asyncio.Event()
        self._count = 0

    def end(self) -> None:
        """End all of them, and those that come later at once."""
        self._ended.set()

    async def run(
        self,
        source: AsyncGenerator[bytes, None],
        over: UntilOver,
        receive: Receive,
        send: Send,
        kind: bytes = EVENTS,
    ) -> None:
        """Send what the source gives until the browser goes, its pass is over, or the service ends.

        Raises PageRefusal for one too many.
        """
        try:
            is_cut = await self.carry(_pump(source, send, kind), over, receive)
        except PageRefusal:
            await source.aclose()
            raise
        if is_cut:
            # A browser that does not read has no room for it, and its connection is closed in any case.
            with suppress(asyncio.TimeoutError):
                await within(send({"type": "http.response.body", "body": b""}), LAST_WORD_S)

    async def carry(self, work: Coroutine[Any, Any, None], over: UntilOver, receive: Receive | None = None) -> bool:
        """Do this until its browser's pass is over or the service ends, and with `receive` until the browser goes.

        Returns whether it was cut short, or failed. Raises PageRefusal for one too many.
        """
        if self._count >= MOST_STREAMS:
            work.close()
            raise PageRefusal(503, "too many streams are open; close some pages")
        self._count += 1
        working = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(_gone(receive)) if receive else working
        tasks = (working, gone, asyncio.ensure_future(over()), asyncio.ensure_future(self._ended.wait()))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._count -= 1
            is_cut, problem = not working.done() and not gone.done(), working.exception() if working.done() else None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if problem is not None:
            log.error("a stream of the page failed", exc_info=problem)
        return is_cut or problem is not None


async def _pump(source: AsyncGenerator[bytes, None], send: Send, kind: bytes) -> None:
    headers = [*EVERYWHERE, NOT_KEPT, (b"content-type", kind), (b"x-accel-buffering", b"no")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    async with aclosing(source) as parts:
        async for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
