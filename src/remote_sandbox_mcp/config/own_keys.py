"""Keys of our own: made once, kept in files that their owner alone can read."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ..core.errors import ConfigError

KEY_BYTES = 32


def key_in(file: Path) -> str:
    """The key that a file keeps; it is made where there is none. Of several who make it at once, one does.

    Raises ConfigError.
    """
    try:
        if not file.exists():
            _make(file)
        if file.stat().st_mode & 0o077:
            raise ConfigError(f"{file} may be read by other users, so its key is no secret; delete it, for a new one.")
        key = file.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not plain text"
        raise ConfigError(f"unable to keep a key in {file}: {why}.") from error
    if not key:
        raise ConfigError(f"{file} holds no key; delete it, for a new one.")
    return key


def _make(file: Path) -> None:
    import secrets

    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    try:
        with open(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="ascii") as opened:
            opened.write(f"{secrets.token_urlsafe(KEY_BYTES)}\n")
        # Nobody sees half of a key, and the first who has one puts it there.
        with suppress(FileExistsError):
            os.link(fresh, file)
    finally:
        fresh.unlink(missing_ok=True)
