"""MCP progress for as long as a call lasts."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from mcp.server.mcpserver import Context

from ..core.client import current_call
from ..core.progress import Beat, Progress
from ..core.text import visible

# Between two messages, and before the same message is sent again as a sign of life.
PAUSE_S, SAME_S = 0.5, 5.0


class Reporting:
    """Sends progress without making anybody wait: the newest message, at most two a second, none after the end."""

    def __init__(self, ctx: Context[None, Any]) -> None:
        self._ctx = ctx
        self._newest: tuple[float, float | None, str] | None = None
        self._sending: asyncio.Task[None] | None = None
        self._is_over = False
        self._sent_at = float("-inf")
        self._sent: tuple[float, str] = (float("-inf"), "")

    async def __aenter__(self) -> Reporting:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_over = True
        if self._sending:
            self._sending.cancel()

    def send(self, progress: float, total: float | None, message: str) -> None:
        """`total` is given only where it is known: a client makes a percentage of it."""
        # Work that outlasts its call may go on saying how it goes.
        if self._is_over or (message == self._sent[1] and time.monotonic() < self._sent_at + SAME_S):
            return
        self._newest = progress, total, message
        if self._sending is None or self._sending.done():
            self._sending = asyncio.ensure_future(self._send_newest())
            self._sending.add_done_callback(_note)

    async def _send_newest(self) -> None:
        while self._newest:
            if (left := self._sent_at + PAUSE_S - time.monotonic()) > 0:
                await asyncio.sleep(left)
            (progress, total, message), self._newest = self._newest, None
            # The protocol wants it to grow with each message, also where the work stands still.
            progress = max(progress, self._sent[0] + 0.001)
            self._sent_at, self._sent = time.monotonic(), (progress, message)
            await self._ctx.report_progress(progress, total, visible(message))


def _note(sending: asyncio.Task[None]) -> None:
    """A client that is gone hears of no progress; the call itself finds out."""
    if not sending.cancelled():
        sending.exception()


def beats(reporting: Reporting) -> Progress:
    """Seconds and the last line printed; how long a command will take nobody knows, so that there is no total."""

    call = current_call()
    # A command that another process of ours has started is seen from the moment at which this one looks at it.
    before_s = call.waited_s if call else 0.0

    def send(beat: Beat, /) -> None:
        reporting.send(before_s + beat.seconds, None, beat.line or "nothing printed yet")

    return send
