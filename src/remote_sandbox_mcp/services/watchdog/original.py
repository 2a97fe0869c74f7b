"""The watchdog of the original program (0.x): whether it runs, and ending it before ours resumes anything."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...local.processes.process import is_alive, started
from ...local.processes.programs import find_helper
from .launchd import ORIGINAL, Launchd
from .manager import make_program
from .service import until

ENDING_S = 15.0
# The original itself takes its watchdog for dead after this long without a sign of life.
SILENT_S = 180.0
# Its words, whichever way it was started.
DAEMON = re.compile(rb"remote(?:_sandbox_mcp\.server|-sandbox-mcp)\0daemon\0")


@dataclass(frozen=True)
class OriginalWatchdog:
    """File of its launchd agent, and processes with when each was started, as far as they are there."""

    agent: Path | None = None
    processes: tuple[tuple[int, str], ...] = ()

    def __str__(self) -> str:
        parts = [f"the launchd agent {ORIGINAL}"] if self.agent else []
        parts += [f"process {pid}" for pid, _ in self.processes]
        return " and ".join(parts)


NO_WATCHDOG = OriginalWatchdog()


def find(database: Path) -> OriginalWatchdog:
    """The original's watchdog over this database."""
    agent = _agent(database.parent)
    mine = [pid for pid, line in _lines() if f"--db {database}" in line or f"--db {database.resolve()}" in line]
    return OriginalWatchdog(
        agent.file if agent.is_installed() and find_helper("launchctl") else None,
        tuple((pid, birth) for pid in mine if (birth := started(pid))),
    )


async def end(found: OriginalWatchdog, database: Path) -> None:
    """Unload the agent, which would start it again, and end its processes. Raises SandboxError."""
    if found.agent:
        await _agent(database.parent).remove()
    for pid, birth in found.processes:
        if is_alive(pid, birth):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
    await until(lambda: not any(is_alive(*one) for one in found.processes), ENDING_S)


def why_not(database: Path, heartbeat: float, ended: OriginalWatchdog) -> str:
    """Explain why watches cannot be taken over: it runs still, as far as can be told. "" where it does not."""
    if (still := find(database)) != NO_WATCHDOG:
        return f"the watchdog of 0.x still runs as {still}; end it, and run this again"
    silent = time.time() - heartbeat
    # Without --db, its process does not say which database it has; or it runs on another computer with this home.
    if ended == NO_WATCHDOG and silent < SILENT_S:
        others = [str(pid) for pid, line in _lines() if "--db" not in line]
        hint = f"end it (perhaps kill {' or '.join(others)})" if others else "end it where it runs"
        return (
            f"the watchdog of 0.x gave a sign of life {max(silent, 0):.0f} s ago; {hint}, and run this again "
            f"{SILENT_S:.0f} s later"
        )
    return ""


def _agent(state: Path) -> Launchd:
    return Launchd(make_program(state, None), ORIGINAL)


def _lines() -> Iterator[tuple[int, str]]:
    """Processes of this user that run the original's watchdog, with their command lines, as far as /proc tells."""
    for name in filter(str.isdecimal, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        with suppress(OSError):
            line = Path(f"/proc/{name}/cmdline").read_bytes()
            # By words: a shell has the whole line as one of its own.
            if DAEMON.search(line) and os.stat(f"/proc/{name}").st_uid == os.geteuid():
                yield int(name), os.fsdecode(line).replace("\0", " ")
