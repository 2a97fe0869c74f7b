"""Locks between processes: the holder signs the file, and the kernel releases the lock when the process dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import ConfigError
from . import process

# A process that checks whether a lock is held takes it for an instant.
BRIEF_S = 0.2


class Lock:
    """A lock that this process holds."""

    def __init__(self, file: Path, fd: int) -> None:
        self.file = file
        self.fd = fd

    @classmethod
    def take(cls, file: Path, brief_s: float = BRIEF_S) -> Lock:
        """Take the lock, not signed yet. Raises BlockingIOError where another process holds it, ConfigError."""
        try:
            fd, deadline = os.open(file, os.O_RDWR | os.O_CREAT, 0o600), time.monotonic() + brief_s
        except OSError as error:
            raise ConfigError(f"unable to open {file}: {error.strerror}") from error
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
        """Write this process into the file. A child that inherits the lock signs it itself."""
        # The lock holds without it: on a full disk nobody learns by whom it is held, and that is all.
        with contextlib.suppress(OSError):
            process.sign(self.fd)

    def release(self) -> None:
        """Release it; a child that has inherited the lock keeps it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@dataclass(frozen=True)
class LockHolder:
    """The process that holds a lock, as it signed: its pid and start time."""

    pid: int = 0
    started: str = ""

    def is_alive(self) -> bool:
        """Whether that very process is alive: a later process with its pid has another start time."""
        return process.is_alive(self.pid, self.started)


def holder(file: Path) -> LockHolder | None:
    """The holder of a lock; None if it is free. A holder that has not signed yet has pid 0."""
    try:
        fd = os.open(file, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        pid, _, started = os.pread(fd, 100, 0).decode().strip().partition(" ")
        return LockHolder(int(pid), started) if pid.isdigit() else LockHolder()
    else:
        return None
    finally:
        os.close(fd)
