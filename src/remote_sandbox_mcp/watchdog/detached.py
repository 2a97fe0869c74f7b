"""The watchdog as a process of nobody's, where no service manager runs."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

from ..config.paths import HOME
from ..core.errors import ConfigError
from ..tasks.locks import Lock, holder
from .daemon import LOCK_FILE, AlreadyWatched
from .kinds import Facts
from .log import LOG_FILE, open_log
from .program import Program, needed

# The shell is gone at once, so that nobody has to wait for the daemon's end and no terminal can become its own.
LEAVE_BEHIND = ("/bin/sh", "-c", '"$@" &', "sh")


def spawn(program: Program) -> None:
    """Start the daemon. It is born with the lock, so of two who try one does. Raises AlreadyWatched, ConfigError."""
    try:
        lock = Lock.take(program.state / LOCK_FILE)
    except BlockingIOError:
        raise AlreadyWatched("another process holds the lock") from None
    # What names the folder may do so relative to one that the daemon is not in.
    environ = needed(program.environ) | {HOME: str(program.state)}
    words = (*LEAVE_BEHIND, *program.words, "--until-idle", "--lock", str(lock.fd))
    try:
        with open(open_log(program.state / LOG_FILE), "ab") as log:
            subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ,
                cwd="/", start_new_session=True, pass_fds=(lock.fd,), check=True,
            )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"unable to start a process: {getattr(error, 'strerror', None) or error}") from error
    finally:
        lock.release()


class Detached:
    """A process with no file anywhere: it is installed as long as it runs."""

    kind = "detached"

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
        try:
            await asyncio.to_thread(spawn, self._program)
        except AlreadyWatched:
            pass

    async def remove(self) -> None:
        """Whoever removes a service ends its process in any case."""

    async def facts(self) -> Facts:
        found = holder(self._lock_file)
        return Facts(active=found is not None, pid=found.pid if found else 0)
