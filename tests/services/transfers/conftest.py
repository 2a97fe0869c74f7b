"""A state folder whose processes are all gone after each test, and servers that run transfers in it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pytest

from remote_sandbox_mcp.core.sync.transfer import Order
from remote_sandbox_mcp.services.transfers.background import BackgroundTransfers
from tests.support.pace import Deadline
from tests.support.transfers_stand_in import COMMAND, CONFIGURATION


def processes(state: Path) -> list[int]:
    """Those that have the folder in their arguments: its servers."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(state).encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


class Server:
    """A stand-in server with one transfer, or one that takes up what others have left."""

    def __init__(self, state: Path, order: Order | None) -> None:
        words = [str(state), json.dumps(asdict(order)) if order else ""]
        self.process = subprocess.Popen(
            [*COMMAND, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.process.stdout
        self.said = self.process.stdout.readline().strip()
        self.pid = self.process.pid

    @property
    def task_id(self) -> str:
        """That of the transfer it has begun."""
        return self.said

    def close(self) -> float:
        """Have it leave in order; how long its transfers took to close."""
        took, _ = self.process.communicate(timeout=10)
        return float(took)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def clear(self) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            with suppress(BrokenPipeError):
                if stream:
                    stream.close()


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """Nothing may be left running in it."""
    folder = tmp_path / "state"
    folder.mkdir()
    yield folder
    deadline = Deadline(5)
    while left := processes(folder):
        if deadline.has_passed():
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            pytest.fail(f"left running: {left}")
        time.sleep(0.01)


@pytest.fixture
def play(tmp_path: Path) -> Path:
    """Where a pretended transfer leaves its trace."""
    folder = tmp_path / "play"
    folder.mkdir()
    return folder


@pytest.fixture
async def transfers(state: Path) -> AsyncIterator[BackgroundTransfers]:
    """Those of this process."""
    made = BackgroundTransfers(state, CONFIGURATION)
    yield made
    await made.close()


ServerMaker = Callable[..., Server]


@pytest.fixture
def server(state: Path) -> Iterator[ServerMaker]:
    started: list[Server] = []

    def make(order: Order | None = None) -> Server:
        started.append(Server(state, order))
        return started[-1]

    yield make
    for each in started:
        each.clear()


def turns(play: Path) -> list[tuple[int, str]]:
    """Who did what, in order."""
    trace = play / "trace"
    lines = trace.read_text().splitlines() if trace.exists() else []
    return [(int(pid), what) for pid, _, what in (line.partition(" ") for line in lines)]


def check_one_at_a_time(play: Path) -> None:
    """Fails where one process was at work while another was. One that was killed has left no end."""
    at_work = 0
    for pid, what in turns(play):
        if what == "begin":
            at_work = pid
        assert pid == at_work, turns(play)


def pieces(play: Path) -> list[str]:
    return [what for _, what in turns(play) if what.startswith("piece")]
