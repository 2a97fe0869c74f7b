"""Sees to it that a watchdog runs, from any process, quickly, and however many do so at once."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from ..core.errors import SandboxError
from ..tasks.locks import holder
from .daemon import LOCK_FILE
from .log import LOG_FILE

# In all; a daemon that has been started and takes longer is believed to be on its way.
LONGEST_S = 3.0
SERVICE_S = 1.5

# Has this process do the watchdog's work, under the configuration of that file.
Begin = Callable[["Path | None"], Awaitable[None]]


async def ensure_running(
    state: Path, config: Path | None, environ: Mapping[str, str] = os.environ, *, begin: Begin | None = None
) -> str:
    """Empty where the watchdog runs or was started; else, in a sentence, why it does not. To be called after what it
    shall look after has been written: one that is about to end for want of work looks once more.

    `begin`: where there is no service, this process does the work; else one that is started for it.
    """
    deadline = time.monotonic() + LONGEST_S
    try:
        if is_running(state):
            return ""
        is_born = await _start(state, config, environ, begin)
        return await _wait(state, is_born, deadline)
    except (SandboxError, OSError) as problem:
        return f"The watchdog could not be started: {problem}"


def is_running(state: Path) -> bool:
    """Whether a daemon holds the lock, or is being born with it. The kernel lets go of it when one dies."""
    return holder(state / LOCK_FILE) is not None


async def _start(state: Path, config: Path | None, environ: Mapping[str, str], begin: Begin | None) -> bool:
    """By its service where there is one that starts, else here or as a process of nobody's, which has the lock from
    then on; returns whether it does. Raises SandboxError, OSError."""
    from .detached import Detached
    from .program import make_program
    from .service import service_for

    program = make_program(state, config, environ)
    service = service_for(program)
    if service.is_installed():
        try:
            await asyncio.wait_for(service.start(), SERVICE_S)
            return False
        except (SandboxError, asyncio.TimeoutError):
            # Somebody must look after the watches; should the service start after all, the lock lets one in.
            pass
    await (begin(config) if begin else Detached(program).start())
    return True


async def _wait(state: Path, is_born: bool, deadline: float) -> str:
    """For a daemon that has signed; one that had the lock and has it no more is gone."""
    while True:
        found = holder(state / LOCK_FILE)
        if found is not None and (found.pid or time.monotonic() > deadline):
            return ""
        if found is None and (is_born or time.monotonic() > deadline):
            return f"The watchdog was started, but has ended at once; {state / LOG_FILE} says why."
        await asyncio.sleep(0.02)
