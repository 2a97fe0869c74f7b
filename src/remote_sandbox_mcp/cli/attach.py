"""`jobs attach`: this terminal shows a job's tmux session, until it is detached or over."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

from . import terminal

if TYPE_CHECKING:
    from ..jobs.attach import Attached, Window


def window() -> Window:
    from ..jobs.attach import Window

    rows, columns = terminal.size()
    return Window(rows, columns, os.environ.get("TERM") or "xterm")


async def sit(attached: Attached) -> int:
    """Pass on keys, sizes and what is shown; returns the exit code."""
    keys: asyncio.Queue[bytes] = asyncio.Queue()
    try:
        with terminal.taken_over(whole_screen=False):
            async with (
                terminal.ended_by_signals() as caught,
                terminal.heard(keys.put_nowait, lambda: attached.resize(window())),
            ):
                typing = asyncio.ensure_future(_type(attached, keys))
                try:
                    await _watch(attached)
                except asyncio.CancelledError:
                    if not caught:
                        raise
                    return 128 + caught[0]
                finally:
                    typing.cancel()
                    await asyncio.gather(typing, return_exceptions=True)
    finally:
        with contextlib.suppress(asyncio.CancelledError):
            await attached.close()
    return 0


async def _watch(attached: Attached) -> None:
    while data := await attached.read():
        terminal.show(data)


async def _type(attached: Attached, keys: asyncio.Queue[bytes]) -> None:
    while data := await keys.get():
        await attached.type(data)
    # The terminal is gone.
    await attached.close()
