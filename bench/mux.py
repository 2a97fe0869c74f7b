"""OpenSSH's own multiplexing: a master in the foreground, and clients that run a command over it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.support.sshd import HOST, Sshd, wait_until

from .problems import BenchError

NOWHERE = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]


@dataclass(frozen=True)
class Mux:
    """A machine with a master connection."""

    sshd: Sshd
    control: Path

    def run(self, command: str) -> None:
        spawn_and_wait(self.sshd.client(command, "-S", str(self.control)))


@contextmanager
def mux(sshd: Sshd, folder: Path, port: int = 0) -> Iterator[Mux]:
    """A master for the machine; `port` is that of a line to it."""
    control = folder / f"mux-{port or sshd.port}"
    # Through a line the machine is known by the name that it has without one.
    there = replace(sshd, port=port or sshd.port)
    alias = ("-o", f"HostKeyAlias=[{HOST}]:{sshd.port}")
    argv = there.client("", "-N", "-M", "-S", str(control), *alias)[:-1]
    nowhere = subprocess.DEVNULL
    # It tells of every session that sshd refuses, which is no news.
    with subprocess.Popen(argv, stdin=nowhere, stdout=nowhere, stderr=nowhere) as master:
        try:
            wait_until(lambda: control.exists() or master.poll() is not None, what="the master connection")
            yield Mux(there, control)
        finally:
            master.terminate()


def fresh(sshd: Sshd, command: str) -> None:
    """The command over a connection of its own."""
    spawn_and_wait(sshd.client(command))


def spawn_and_wait(argv: list[str]) -> None:
    """The least that a process can cost: no pipes, no buffers. Raises BenchError where it fails."""
    pid = os.posix_spawnp(argv[0], argv, os.environ, file_actions=NOWHERE)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status:
        raise BenchError(f"{argv[0]} ended with {status}: {' '.join(argv)}")
