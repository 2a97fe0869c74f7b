"""Locks between processes: the holder signs, and the kernel lets go of what a process held when it dies."""

from __future__ import annotations

import fcntl
import os
import time
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import ConfigError
from . import process

# Somebody who looks whether a lock is held holds it for an instant.
GLANCE_S = 0.2


class Lock:
    """A lock that this process holds."""

    def __init__(self, file: Path, fd: int) -> None:
        self.file = file
        self.fd = fd

    @classmethod
    def take(cls, file: Path) -> Lock:
        """The lock, not signed yet. Raises BlockingIOError where another process holds it, or ConfigError."""
        fd, deadline = _open(file), time.monotonic() + GLANCE_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.ftruncate(fd, 0)
                return cls(file, fd)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(fd)
                    raise
                time.sleep(0.005)

    def sign(self) -> None:
        """Say that this process is the one; who is to inherit the lock signs it."""
        process.sign(self.fd)

    def release(self) -> None:
        """Let go; a child that has inherited the lock keeps it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@dataclass(frozen=True)
class Holder:
    """A process that holds a lock, as it has signed: its number and when it began."""

    pid: int = 0
    started: str = ""

    def is_alive(self) -> bool:
        """Whether that very process still is: another with its number began at another time."""
        return bool(self.pid and self.started and process.started(self.pid) == self.started)


def holder(file: Path) -> Holder | None:
    """Who holds the lock, or nothing where nobody does; one that has not signed yet has no number."""
    try:
        fd = os.open(file, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        pid, _, started = os.pread(fd, 100, 0).decode().strip().partition(" ")
        return Holder(int(pid), started) if pid.isdigit() else Holder()
    else:
        return None
    finally:
        os.close(fd)


def _open(file: Path) -> int:
    try:
        return os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigError(f"unable to open {file}: {error.strerror}") from error
