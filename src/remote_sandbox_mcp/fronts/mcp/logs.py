"""The server's log: on standard error, or in a private file of bounded size."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from ...core.serving import Logging
from ...services.session import current

log = logging.getLogger(__name__)

OURS = "remote_sandbox_mcp"
# Loggers of the hub itself and of the watchdog.
HUB = tuple(f"{OURS}.{part}." for part in ("hub", "services.watchdog", "services.jobs"))
FORMAT = "remote-sandbox-mcp: %(levelname)s: %(message)s"


def begin(wanted: Logging) -> str:
    """Begin to log; returns why the wanted file cannot be used, or nothing. Never on standard output."""
    on_screen = logging.StreamHandler(sys.stderr)
    on_screen.setFormatter(logging.Formatter(FORMAT))
    handler, problem = _wanted(wanted)
    handler, problem = handler or on_screen, f"{problem}; the log is on standard error" if problem else ""
    level = logging.getLevelName(wanted.level)
    # The SDK sets up no handler of its own where it finds one.
    logging.root.addHandler(handler)
    # Libraries log what they send and receive: only their warnings are wanted.
    logging.root.setLevel(max(level, logging.WARNING))
    logging.getLogger(OURS).setLevel(level)
    return problem


class OwnLogs(logging.Handler):
    """Log of a process that serves several sessions: each session's records go to the log that it has configured.

    All other records, and those of sessions without a log, go to `common` if they are warnings.
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
    """Log settings of the sessions of one configuration."""

    def __init__(self) -> None:
        self._wanted: Logging | None = None
        self.level = logging.WARNING
        self.handler: logging.Handler | None = None

    def follow(self, wanted: Logging) -> None:
        """Use these settings from now on."""
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
    """Log of a configuration served over HTTP; records without a file are printed by its front."""

    def __init__(self, log: SessionLog, front: logging.Handler) -> None:
        front.setFormatter(logging.Formatter(FORMAT))
        self._log = log
        self._front: logging.Handler | None = front

    @property
    def level(self) -> int:
        # Calls that are cancelled because the front is gone warn that their answers cannot be sent.
        return self._log.level if self._front else max(self._log.level, logging.ERROR)

    @property
    def handler(self) -> logging.Handler | None:
        return self._log.handler or self._front

    def close(self) -> None:
        """The front is gone; its work is being cancelled."""
        self._front = None


def _wanted(wanted: Logging) -> tuple[logging.Handler | None, str]:
    """The configured log file, if any, or why it cannot be used."""
    if not wanted.file:
        return None, ""
    from ...services.watchdog.daemon import OwnLog

    path = Path(wanted.file)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handler = OwnLog(path, max(1, int(wanted.max_size_mb * (1 << 20))))
        if path.is_file():
            os.chmod(path, 0o600)
    except OSError as error:
        return None, f"unable to log into {wanted.file}: {error.strerror}"
    return handler, ""
