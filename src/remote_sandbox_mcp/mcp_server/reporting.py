"""MCP progress for as long as a call lasts."""

from __future__ import annotations

import asyncio
from typing import Any

from mcp.server.mcpserver import Context


class Reporting:
    """Sends progress in the order of saying, without making anybody wait; what is unsent at the end is dropped."""

    def __init__(self, ctx: Context[None, Any]) -> None:
        self._ctx = ctx
        self._sending: set[asyncio.Task[None]] = set()
        self._is_over = False

    async def __aenter__(self) -> Reporting:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_over = True
        for task in self._sending:
            task.cancel()

    def send(self, progress: float, total: float | None, message: str) -> None:
        # Work that outlasts its call may go on saying how it goes.
        if self._is_over:
            return
        task = asyncio.ensure_future(self._ctx.report_progress(progress, total, message))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
