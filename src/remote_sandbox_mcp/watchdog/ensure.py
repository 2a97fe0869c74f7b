"""Sees to it that a watchdog runs: asks the hub to be it, starting one where there is none."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from ..core.errors import SandboxError
from ..processes.locks import holder
from ..waiting import within
from .daemon import LOCK_FILE, LOG_FILE
from .manager import Facts, Program

# For a hub that has to be started first, on a machine that is busy.
ASKING_S = 10.0


async def ask_hub_to_watch(config: Path | None, limit_s: float = ASKING_S) -> None:
    """Have the hub look after what is watched, and start it where there is none. Raises SandboxError.

    Nothing is raised where it does not answer in time: it is on its way.
    """
    from ..hub_contact.asking import call_hub, whole
    from ..hub_contact.place import NoHub

    try:
        answer = await asyncio.to_thread(call_hub, "watch", limit_s, config=whole(config))
    except TimeoutError:
        return
    except (OSError, NoHub, ValueError) as problem:
        raise SandboxError(f"no hub can be asked: {getattr(problem, 'strerror', None) or problem}") from None
    if trouble := answer.get("trouble"):
        raise SandboxError(str(trouble))


class InHub:
    """There is no file anywhere: it is installed as long as it runs."""

    kind = "hub"

    def __init__(self, program: Program) -> None:
        self._program = program
        self._lock_file: Path = program.state / LOCK_FILE

    def is_installed(self) -> bool:
        return False

    async def install(self, start_now: bool) -> None:
        """Start it if wanted; there is nothing else that could be done. Raises SandboxError."""
        if start_now:
            await self.start()

    async def start(self) -> None:
        """Raises SandboxError."""
        await ask_hub_to_watch(self._program.config)

    async def remove(self) -> None:
        """Whoever removes a service has its process release the lock in any case."""

    async def facts(self) -> Facts:
        found = holder(self._lock_file)
        return Facts(active=found is not None, pid=found.pid if found else 0)


# In all; a hub that takes longer is believed to be on its way.
LONGEST_S = 3.0
SERVICE_S = 1.5

# Has this process do the watchdog's work, under the configuration of that file.
Begin = Callable[["Path | None"], Awaitable[None]]


async def ensure_running(
    state: Path, config: Path | None, environ: Mapping[str, str] = os.environ, *, begin: Begin | None = None
) -> str:
    """Empty where the watchdog runs or was started; else, in a sentence, why it does not. To be called after what it
    shall look after has been written: one that is about to end for want of work looks once more.

    `begin`: where there is no service, this process does the work, which is the hub; else the hub is asked to.
    """
    deadline = time.monotonic() + LONGEST_S
    try:
        if is_running(state):
            return ""
        if not await _start_service(state, config, environ):
            await (begin(config) if begin else ask_hub_to_watch(config, LONGEST_S))
            return ""
        return await _wait(state, deadline)
    except (SandboxError, OSError) as problem:
        return f"The watchdog could not be started: {problem}"


def is_running(state: Path) -> bool:
    """Whether a process holds the lock. The kernel lets go of it when that one dies."""
    return holder(state / LOCK_FILE) is not None


async def _start_service(state: Path, config: Path | None, environ: Mapping[str, str]) -> bool:
    """Start it as a service, where that is installed; returns whether it may come so."""
    from .manager import make_program
    from .service import service_for

    service = service_for(make_program(state, config, environ))
    try:
        if service.is_installed():
            await within(service.start(), SERVICE_S)
            return True
    except (SandboxError, asyncio.TimeoutError):
        # Somebody must look after the watches; should the service start after all, the lock lets one in.
        pass
    return False


async def _wait(state: Path, deadline: float) -> str:
    """For a service that has signed the lock."""
    while True:
        found = holder(state / LOCK_FILE)
        if found is not None and (found.pid or time.monotonic() > deadline):
            return ""
        if time.monotonic() > deadline:
            return f"The watchdog was started, but has ended at once; {state / LOG_FILE} says why."
        await asyncio.sleep(0.02)
