"""MCP progress notifications during a call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from contextvars import ContextVar
from typing import Any, TypeVar

from mcp.server.mcpserver import Context

from ...core.client import current_call
from ...core.progress import Beat, Progress
from ...core.texts.text import visible
from .results import redacted

# Pause between two messages, and before the same message is repeated as a sign of life.
PAUSE_S, SAME_S = 0.5, 5.0
# How often a message says that silent work goes on.
SIGN_S = 3.0

T = TypeVar("T")

# Seconds that the current call has spent on something else before its own work began.
spent_s: ContextVar[float] = ContextVar("spent_s", default=0.0)


class Reporting:
    """Sends progress in the background: the newest message, at most two per second, none after the end."""

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
        """`total` is given only where it is known, because clients compute a percentage."""
        # Work that outlasts its call may go on reporting.
        if self._is_over or (message == self._sent[1] and time.monotonic() < self._sent_at + SAME_S):
            return
        self._newest = progress, total, message
        if self._sending is None or self._sending.done():
            self._sending = asyncio.ensure_future(self._send_newest())
            self._sending.add_done_callback(_note)

    def add(self, progress: float, total: float | None, line: str) -> None:
        """Send a message together with one that was not sent yet: both go in one."""
        unsent = f"{self._newest[2]}\n" if self._newest else ""
        self.send(progress, total, unsent + line)

    @property
    def has_unsent(self) -> bool:
        return self._newest is not None

    async def _send_newest(self) -> None:
        while self._newest:
            if (left := self._sent_at + PAUSE_S - time.monotonic()) > 0:
                await asyncio.sleep(left)
            (progress, total, message), self._newest = self._newest, None
            # The protocol requires it to grow with each message, even where the work stands still.
            progress = max(progress, self._sent[0] + 0.001)
            self._sent_at, self._sent = time.monotonic(), (progress, message)
            await self._ctx.report_progress(progress, total, visible(redacted(message)))


def _note(sending: asyncio.Task[None]) -> None:
    """Read the exception of a failed send, so that asyncio does not log it: the call itself notices a lost client."""
    if not sending.cancelled():
        sending.exception()


async def with_signs_of_life(work: Awaitable[T], what: str, reporting: Reporting) -> T:
    """Run work that reports no progress itself, and report meanwhile that it goes on."""
    begun, task = time.monotonic(), asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait((task,), timeout=SIGN_S))[0]:
            seconds = time.monotonic() - begun
            reporting.send(
                seconds, None, f"{what}, for {seconds:.0f} s now; an image that is not there is fetched first"
            )
        return task.result()
    finally:
        task.cancel()


def beats(reporting: Reporting) -> Progress:
    """Seconds and the last printed line; without a total, because a command's duration is unknown."""

    call = current_call()
    # For a command that an earlier process started, time is counted from there.
    before_s = (call.waited_s if call else 0.0) + spent_s.get()

    def send(beat: Beat, /) -> None:
        reporting.send(before_s + beat.seconds, None, beat.line or "nothing printed yet")

    return send
