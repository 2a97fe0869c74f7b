"""Daemons on a state folder of their own; whatever a test started has ended when it has."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.core.jobs.watch import Watch
from remote_sandbox_mcp.local.processes.locks import holder
from remote_sandbox_mcp.local.store.database import STATE_FILE, Database
from remote_sandbox_mcp.local.store.watches import Watches
from remote_sandbox_mcp.services.watchdog.daemon import LOCK_FILE, LOG_FILE
from tests.support.sshd import wait_until
from tests.support.watchdog_stand_in import QUICK

COMMAND = (sys.executable, str(Path(__file__).parents[2] / "support" / "watchdog_stand_in.py"))
WATCH = Watch(sandbox="gpu1", session="train")


class Post:
    """A state folder, and the stand-ins that watch over it."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.started: list[subprocess.Popen[str]] = []
        self.database = Database(state / STATE_FILE)
        self.watches = Watches(self.database)

    def start(self, *words: str, **pace: float) -> subprocess.Popen[str]:
        command = [*COMMAND, str(self.state), json.dumps(QUICK | pace), *words]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=os.getcwd()
        )
        self.started.append(process)
        return process

    def watch(self, *words: str, **pace: float) -> subprocess.Popen[str]:
        """One that has made its first round."""
        before = self.count("tick")
        process = self.start(*words, **pace)
        self.until("tick", before + 1)
        return process

    def tell(self, name: str, text: str = "") -> None:
        (self.state / name).write_text(text)

    def trace(self) -> list[str]:
        with suppress(FileNotFoundError):
            return [line.split()[1] for line in (self.state / "trace").read_text().splitlines()]
        return []

    def count(self, what: str) -> int:
        return self.trace().count(what)

    def until(self, what: str, times: int) -> None:
        wait_until(lambda: self.count(what) >= times, what=f"{times} times {what}, not {self.trace()}\n{self.log}")

    @property
    def log(self) -> str:
        file = self.state / LOG_FILE
        return file.read_text() if file.exists() else ""

    @property
    def pid(self) -> int:
        found = holder(self.state / LOCK_FILE)
        return found.pid if found else 0

    def beat_since(self, moment: float) -> bool:
        found = self.watches.last_beat()
        return found is not None and found.at >= moment

    def close(self) -> None:
        self.database.close()
        for process in self.started:
            process.kill()
            process.communicate()


@pytest.fixture
def post(clean_environment: Path) -> Iterator[Post]:
    state = clean_environment / "remote-sandbox-mcp"
    state.mkdir(mode=0o700)
    post = Post(state)
    yield post
    post.close()
    # One that is nobody's child is known by its signature.
    if pid := post.pid:
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not post.pid, what="the daemon to be gone")


def ended(process: subprocess.Popen[str]) -> tuple[int, str, float]:
    """How it ended, what it said, and how long that took."""
    begun = time.monotonic()
    said, _ = process.communicate(timeout=10)
    return process.returncode, said, time.monotonic() - begun


def variables(pid: int) -> dict[str, str]:
    """The environment that a process was given."""
    lines = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    pairs: Any = (line.split("=", 1) for line in lines if line)
    return dict(pairs)
