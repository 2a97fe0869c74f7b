"""Starts the watchdog for a server: with the first watch, and again after a restart."""

from __future__ import annotations

import asyncio
import logging

from ...app import App
from ...core.errors import SandboxError

log = logging.getLogger(__name__)

# Delayed, so as not to slow a client's first questions.
ADOPT_S, REVIVE_S = 1.5, 3.5


async def revive(app: App) -> None:
    """After a restart: continue transfers, adopt disposable sandboxes, start the watchdog if something is watched."""
    await asyncio.sleep(ADOPT_S)
    try:
        await app.transfers.take_up()
        await app.disposables.adopt()
        await asyncio.sleep(REVIVE_S)
        if await asyncio.to_thread(app.jobs.registry.is_anything_watched) and (why := await app.ensure_watchdog()):
            log.warning("%s", why)
    except SandboxError as problem:
        log.warning("%s", problem)
