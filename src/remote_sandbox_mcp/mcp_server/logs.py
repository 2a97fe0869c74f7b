"""What the server writes down of itself: on standard error, or in a file of the owner's that does not grow for ever."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from ..core.serving import Logging

OURS = "remote_sandbox_mcp"
FORMAT = "remote-sandbox-mcp: %(levelname)s: %(message)s"


def begin(wanted: Logging) -> str:
    """Log from now on; why not into the file that is wanted, or nothing. Never on standard output."""
    problem = ""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(FORMAT))
    if wanted.file:
        try:
            handler = _file(Path(wanted.file), wanted.max_size_mb)
        except OSError as error:
            problem = f"unable to log into {wanted.file}: {error.strerror}; the log is on standard error"
    level = logging.getLevelName(wanted.level)
    # Who finds a handler here, as the SDK does, sets up none of its own.
    logging.root.addHandler(handler)
    # Libraries say what they send and receive: only their troubles are wanted.
    logging.root.setLevel(max(level, logging.WARNING))
    logging.getLogger(OURS).setLevel(level)
    return problem


def _file(path: Path, max_size_mb: float) -> logging.Handler:
    """Raises OSError."""
    from ..watchdog.log import OwnLog

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handler = OwnLog(path, max(1, int(max_size_mb * (1 << 20))))
    if path.is_file():
        os.chmod(path, 0o600)
    return handler
