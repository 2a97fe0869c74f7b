"""Serving one client over standard input and output, and leaving at once when told to."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys

from ..app import App
from .server import build

FAREWELL_S = 0.15


def serve(app: App) -> None:
    """Serve until the input ends or a signal comes; the process ends here."""
    asyncio.run(_serve(app))


async def _serve(app: App) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    serving = asyncio.ensure_future(build(app).run_stdio_async())
    waiting = asyncio.ensure_future(stopped.wait())
    done, _ = await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
    failed = serving in done and serving.exception()
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(app.close(), FAREWELL_S)
    if failed:
        print(f"remote-sandbox-mcp: {failed!r}", file=sys.stderr)
    # A thread of the SDK still waits for a line of input, and would keep the interpreter from ending.
    sys.stderr.flush()
    os._exit(1 if failed else 0)
