"""A user's home with hubs, clients and the command line; whatever was started there has ended when a test has."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from remote_sandbox_mcp.local.processes.locks import holder
from tests.support.server import COMMAND, Entry, Wire, environment, wire
from tests.support.sshd import wait_until
from tests.support.warm import Heard, start


class Desk:
    """All that belongs to one home."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.state = home / "state"
        self.started: list[Heard] = []

    def client(
        self, *entries: Entry, local: bool = False, forks_hubs: bool = True, config_file: Path | None = None, **env: str
    ) -> AbstractContextManager[Wire]:
        return wire(self.home, *entries, local=local, env=env, forks_hubs=forks_hubs, config_file=config_file)

    def start(self, *words: str, **env: str) -> Heard:
        process = start([COMMAND, *words], environment(self.home, (), env))
        self.started.append(process)
        return process

    def __call__(self, *words: str, **env: str) -> tuple[int, str, str]:
        """The exit code of a verb, and what it said."""
        process = self.start(*words, **env)
        said, complained = process.communicate(timeout=40)
        return process.wait(), said.decode(), complained.decode()

    def status(self, **env: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("hub", "status", "--json", **env)[1])
        return found

    @property
    def hubs(self) -> list[int]:
        found = [holder(lock) for lock in (self.state / "hub").glob("*.lock")]
        return [each.pid for each in found if each]

    @property
    def hub(self) -> int:
        """The process of the only one; 0 where there is none."""
        return next(iter(self.hubs), 0)

    @property
    def watchdog(self) -> int:
        """The process that looks after watched jobs."""
        found = holder(self.state / "watchdog.lock")
        return found.pid if found else 0

    def until_gone(self, pid: int, seconds: float = 20) -> None:
        wait_until(lambda: pid not in (*self.hubs, self.watchdog), what=f"the end of {pid}", seconds=seconds)


@contextmanager
def desk_in(home: Path) -> Iterator[Desk]:
    desk = Desk(home)
    desk.state.mkdir(mode=0o700)
    try:
        yield desk
    finally:
        for process in desk.started:
            process.kill()
            process.communicate()
        for pid in {*desk.hubs, desk.watchdog} - {0, os.getpid()}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
