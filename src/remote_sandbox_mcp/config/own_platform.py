"""The OpenSandbox server that `platform up` has started: where its files are, and its address while it runs."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path

from ..core.disposable import Platform
from . import paths
from .secrets import resolve_secret

SOURCE = "platform up"
FOLDER = "platform"
LOCK_FILE, KEY_FILE, URL_FILE = "lock", "key", "url"


def running_platform(environ: Mapping[str, str] = os.environ) -> Platform | None:
    """The server that runs, or nothing. Looks at two files and asks nobody."""
    folder = paths.state_path(environ) / FOLDER
    try:
        if not _is_held(folder / LOCK_FILE):
            return None
        url = (folder / URL_FILE).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return Platform(server_url=url, api_key=resolve_secret(f"file:{folder / KEY_FILE}", environ)) if url else None


def _is_held(lock: Path) -> bool:
    """The server was born with the lock, and the kernel lets go of it when it dies. Raises OSError."""
    fd = os.open(lock, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
