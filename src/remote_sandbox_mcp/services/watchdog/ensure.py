"""Makes sure that a watchdog runs: a service where one is installed, else the hub, started if needed."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from ...core.errors import SandboxError
from ...local.processes.locks import holder
from ...local.waiting import within
from .daemon import LOCK_FILE, LOG_FILE
from .manager import Facts, Program, make_program

# Enough for a hub that has to be started first on a busy computer.
ASKING_S = 10.0
# In total; a hub that takes longer is assumed to be starting.
LONGEST_S = 3.0
SERVICE_S = 1.5


async def ask_hub_to_watch(config: Path | None, limit_s: float = ASKING_S) -> None:
    """Ask the hub to be the watchdog, and start a hub where there is none. Raises SandboxError.

    A late answer is no error: the hub is still starting.
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
    """The watchdog in the hub, as a Service: there is no file, so it counts as installed while it runs."""

    kind = "hub"

    def __init__(self, program: Program) -> None:
        self._program = program
        self._lock_file: Path = program.state / LOCK_FILE

    def is_installed(self) -> bool:
        return False

    async def install(self, start_now: bool) -> None:
        """Start it if wanted; nothing needs to be installed. Raises SandboxError."""
        if start_now:
            await self.start()

    async def start(self) -> None:
        """Raises SandboxError."""
        await ask_hub_to_watch(self._program.config)

    async def remove(self) -> None:
        """Remove nothing; the caller makes the process release its lock in any case."""

    async def facts(self) -> Facts:
        found = holder(self._lock_file)
        return Facts(active=found is not None, pid=found.pid if found else 0)


# Makes this process the watchdog, with the configuration of that file.
Begin = Callable[["Path | None"], Awaitable[None]]


async def ensure_running(
    state: Path, config: Path | None, environ: Mapping[str, str] = os.environ, *, begin: Begin | None = None
) -> str:
    """Start the watchdog if it does not run; returns "" or, in a sentence, why it could not be started.

    Call it after the watch was written: a watchdog that is about to end for lack of work looks at the database once
    more. Without a service, `begin` makes this process, which is the hub, the watchdog; without `begin`, the hub is
    asked to be it.
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
    """Start the service, if it is installed; returns whether it is expected to come up."""
    from .service import service_for

    service = service_for(make_program(state, config, environ))
    try:
        if service.is_installed():
            await within(service.start(), SERVICE_S)
            return True
    except (SandboxError, asyncio.TimeoutError):
        # Fall back to the hub. Should the service start after all, the lock lets only one of them in.
        pass
    return False


async def _wait(state: Path, deadline: float) -> str:
    """Wait for a service until it has signed the lock; returns why it has not, or nothing."""
    while True:
        found = holder(state / LOCK_FILE)
        if found is not None and (found.pid or time.monotonic() > deadline):
            return ""
        if time.monotonic() > deadline:
            return f"The watchdog was started, but has ended at once; {state / LOG_FILE} says why."
        await asyncio.sleep(0.02)
