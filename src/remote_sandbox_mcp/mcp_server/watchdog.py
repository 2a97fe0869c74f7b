"""The watchdog as a server needs it: started with the first watch, and again where it is missed."""

from __future__ import annotations

import asyncio
import logging

from ..app import App
from ..config import paths
from ..core.errors import SandboxError

log = logging.getLogger(__name__)

# Not in the way of a client's first questions.
ADOPT_S, REVIVE_S = 1.5, 3.5


async def start_watchdog(app: App) -> str:
    """See to it that it runs; says why it does not, or nothing."""
    from ..watchdog.ensure import ensure_running

    return await ensure_running(paths.state_folder(), app.jobs.config_file, begin=app.begin_watching)


async def revive(app: App) -> None:
    """After a restart, transfers wait to be taken up, watches to be looked after, and sandboxes to be ended."""
    await asyncio.sleep(ADOPT_S)
    try:
        await app.transfers.take_up()
        await app.disposables.adopt()
        await asyncio.sleep(REVIVE_S)
        if await asyncio.to_thread(app.jobs.known.is_anything_watched) and (why := await start_watchdog(app)):
            log.warning("%s", why)
    except SandboxError as problem:
        log.warning("%s", problem)
