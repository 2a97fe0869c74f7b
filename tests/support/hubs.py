"""The hub of a server under test: found, stopped and killed as it happens to users."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from remote_sandbox_mcp.services.hub_contact.place import HubPlace
from tests.support.server import Wire
from tests.support.sshd import wait_until
from tests.support.warm import start_hub


def hub_folder(home: Path) -> Path:
    return home / "state" / "hub"


def hub_pids(home: Path) -> list[int]:
    """The hubs of a state folder that live."""
    signed = (file.read_text().split() for file in hub_folder(home).glob("*.lock"))
    return [int(words[0]) for words in signed if words and is_alive(int(words[0]))]


def hub_pid(home: Path) -> int:
    """The one hub."""
    wait_until(lambda: hub_pids(home), what="the hub", seconds=20)
    (pid,) = hub_pids(home)
    return pid


def kill_hub(home: Path, number: signal.Signals = signal.SIGKILL) -> int:
    """End it, and wait until it has gone."""
    pid = hub_pid(home)
    os.kill(pid, number)
    wait_until(lambda: not is_alive(pid), what="the hub to go")
    return pid


def replace_hub(
    line: Wire, number: signal.Signals = signal.SIGKILL, meanwhile: Callable[[], object] = lambda: None
) -> int:
    """End it, and have another in its place before its front has noticed, as a front of another client would.

    That one is forked and takes a tenth of the time; tests of how a front starts another use `kill_hub`. What a client
    does `meanwhile` its front finds when it goes on.
    """
    front = line.process.pid
    os.kill(front, signal.SIGSTOP)
    try:
        pid = kill_hub(line.home, number)
        wait_until(lambda: not listens(line), what="the hub to listen no longer")
        meanwhile()
        start_hub(line.env)
    finally:
        os.kill(front, signal.SIGCONT)
    return pid


def listens(line: Wire) -> bool:
    """Threads of a killed hub may hold its socket open when the process itself is gone."""
    with suppress(OSError):
        HubPlace(line.env).connect().close()
        return True
    return False


def is_alive(pid: int) -> bool:
    with suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX"
    return False
