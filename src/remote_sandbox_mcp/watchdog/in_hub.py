"""The watchdog where no service manager runs: the hub, as long as something is watched."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ..core.errors import SandboxError
from ..tasks.locks import holder
from .daemon import LOCK_FILE
from .kinds import Facts
from .program import Program

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
