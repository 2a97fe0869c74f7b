"""What the server writes down of itself: on standard error, or in a file of the owner's that does not grow for ever."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from ..core.serving import Logging
from ..session import current

log = logging.getLogger(__name__)

OURS = "remote_sandbox_mcp"
# What the hub itself says of its life, and of what it watches.
HUB = tuple(f"{OURS}.{part}." for part in ("hub", "watchdog", "jobs"))
FORMAT = "remote-sandbox-mcp: %(levelname)s: %(message)s"


def begin(wanted: Logging) -> str:
    """Log from now on; why not into the file that is wanted, or nothing. Never on standard output."""
    on_screen = logging.StreamHandler(sys.stderr)
    on_screen.setFormatter(logging.Formatter(FORMAT))
    handler, problem = _wanted(wanted)
    handler, problem = handler or on_screen, f"{problem}; the log is on standard error" if problem else ""
    level = logging.getLevelName(wanted.level)
    # Who finds a handler here, as the SDK does, sets up none of its own.
    logging.root.addHandler(handler)
    # Libraries say what they send and receive: only their troubles are wanted.
    logging.root.setLevel(max(level, logging.WARNING))
    logging.getLogger(OURS).setLevel(level)
    return problem


class OwnLogs(logging.Handler):
    """The log of a process that serves several sessions: what is said in the name of one goes where that one wants it.

    All else, and what is said in the name of those who want nothing else, goes to `common`, if it is a trouble.
    """

    def __init__(self, common: logging.Handler) -> None:
        super().__init__()
        self._common = common

    def emit(self, record: logging.LogRecord) -> None:
        found = current().log
        wanted = found if isinstance(found, (SessionLog, FrontLog)) else None
        level = wanted.level if wanted else logging.WARNING
        is_ours = record.name.startswith(OURS)
        if record.levelno >= (level if is_ours else max(level, logging.WARNING)) or record.name.startswith(HUB):
            own = wanted.handler if wanted else None
            (own or self._common).handle(record)


class SessionLog:
    """Where the sessions of one configuration want their log, and how much of it."""

    def __init__(self) -> None:
        self._wanted: Logging | None = None
        self.level = logging.WARNING
        self.handler: logging.Handler | None = None

    def follow(self, wanted: Logging) -> None:
        """Log like this from now on."""
        if wanted == self._wanted:
            return
        self.close()
        self._wanted, self.level = wanted, logging.getLevelName(wanted.level)
        self.handler, problem = _wanted(wanted)
        ours = logging.getLogger(OURS)
        ours.setLevel(min(ours.level, self.level))
        if problem:
            log.warning("%s; the log is that of the hub", problem)

    def close(self) -> None:
        if self.handler:
            self.handler.close()
        self.handler = None


class FrontLog:
    """That of a configuration; what goes into no file of it is printed by the front for which HTTP is served."""

    def __init__(self, log: SessionLog, front: logging.Handler) -> None:
        front.setFormatter(logging.Formatter(FORMAT))
        self._log = log
        self._front: logging.Handler | None = front

    @property
    def level(self) -> int:
        # Calls that are given up warn of answers that nobody reads.
        return self._log.level if self._front else max(self._log.level, logging.ERROR)

    @property
    def handler(self) -> logging.Handler | None:
        return self._log.handler or self._front

    def close(self) -> None:
        """The front is gone; work that was begun for it is being given up."""
        self._front = None


def _wanted(wanted: Logging) -> tuple[logging.Handler | None, str]:
    """The file that is wanted, if one is, or why it cannot be had."""
    if not wanted.file:
        return None, ""
    try:
        return _file(Path(wanted.file), wanted.max_size_mb), ""
    except OSError as error:
        return None, f"unable to log into {wanted.file}: {error.strerror}"


def _file(path: Path, max_size_mb: float) -> logging.Handler:
    """Raises OSError."""
    from ..watchdog.daemon import OwnLog

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handler = OwnLog(path, max(1, int(max_size_mb * (1 << 20))))
    if path.is_file():
        os.chmod(path, 0o600)
    return handler
