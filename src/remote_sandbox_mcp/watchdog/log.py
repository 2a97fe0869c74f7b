"""A log: a file of the owner's that never grows beyond a few megabytes and holds nothing harmful."""

from __future__ import annotations

import logging
import os
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from ..core.output import harmless

LOG_FILE = "watchdog.log"
LARGEST, KEPT = 1 << 20, 2
OURS = "remote_sandbox_mcp"


class OwnLog(RotatingFileHandler):
    """Never fails: a full disk ends no process."""

    def __init__(self, file: Path, largest: int = LARGEST) -> None:
        super().__init__(file, maxBytes=largest, backupCount=KEPT, encoding="utf-8")
        self.setFormatter(Harmless("%(asctime)s %(levelname)s %(message)s"))

    def _open(self) -> TextIOWrapper:
        return open(open_log(Path(self.baseFilename)), "a", encoding="utf-8")

    def doRollover(self) -> None:
        """What is printed follows: a file that is only kept for a while must not be written to for ever."""
        printed = [fd for fd in (1, 2) if self.stream and _same(fd, self.stream.fileno())]
        super().doRollover()
        for fd in printed:
            if self.stream:
                os.dup2(self.stream.fileno(), fd)

    def handleError(self, record: logging.LogRecord) -> None:
        """There is nowhere else to tell it."""


class Harmless(logging.Formatter):
    """Words of machines and of files, made safe to look at."""

    def format(self, record: logging.LogRecord) -> str:
        return harmless(super().format(record).encode("utf-8", "surrogatepass"))


def open_log(file: Path) -> int:
    """A descriptor that appends to it. Raises OSError."""
    return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def _same(fd: int, other: int) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.fstat(other))
    except OSError:
        return False
