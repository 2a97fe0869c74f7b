"""Files of other programs that we write whole or take away."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ..core.errors import ConfigError


def put(file: Path, content: bytes) -> None:
    """Write it in one step, with the folders above it. Raises ConfigError."""
    part = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)
        os.replace(part, file)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise ConfigError(f"unable to write {file}: {error.strerror or error}") from error


def must_be_text(paths: Iterable[str]) -> None:
    """Raises ConfigError for a path that a file of text cannot name."""
    for path in paths:
        try:
            path.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"{path!a} is no text, so no service can be told of it; give it another name") from None


def take_away(file: Path) -> None:
    """Raises ConfigError where it stays."""
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"unable to remove {file}: {error.strerror or error}") from error
