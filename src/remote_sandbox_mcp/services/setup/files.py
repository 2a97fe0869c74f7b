"""Files that setup changes: links followed, a backup beside each, replaced whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from pathlib import Path

from ...core.errors import ConfigError

# A configuration file of a client is some kilobytes; Claude Code's own may be some megabytes.
MOST_BYTES = 32 << 20
OWNER_ONLY = 0o600


def locate(path: Path) -> Path:
    """The file that a path leads to, links followed, whether or not it is there. Raises ConfigError."""
    whole = Path(os.path.abspath(os.path.expanduser(path)))
    target = Path(os.path.realpath(whole))
    if whole.is_symlink() and not target.exists():
        raise ConfigError(f"{whole} is a link to {target}, which is not there; remove the link, or make the file.")
    if target.exists():
        _check(whole, target)
    return target


def _check(whole: Path, target: Path) -> None:
    found = target.stat()
    shown = f"{whole} (a link to {target})" if target != whole else f"{target}"
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{shown} is not an ordinary file, so it is left alone.")
    if found.st_uid != os.geteuid():
        raise ConfigError(f"{shown} belongs to another user, so it is left alone.")


def read(path: Path) -> str | None:
    """The text of a file; None where there is none. Raises ConfigError."""
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ConfigError(f"{path} is larger than any configuration file, so it is left alone.")
        return data.decode("utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"unable to read {path}: {error.strerror}; check its permissions.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text, so it is left alone.") from None


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def keep_backup(path: Path, text: str) -> Path:
    """A copy beside the file, for its owner alone. Raises ConfigError."""
    backup = backup_name(path, "setup")
    write(backup, text, None, OWNER_ONLY)
    return backup


def backup_name(path: Path, verb: str) -> Path:
    """An unused name beside the file that says when it was made, and before what. Raises ConfigError."""
    timestamp = time.strftime("%Y%m%d-%H%M%S")
    for number in range(100):
        backup = path.with_name(f"{path.name}.before-{verb}-{timestamp}{f'-{number}' if number else ''}")
        if not os.path.lexists(backup):
            return backup
    raise ConfigError(f"unable to keep a backup of {path}: there are too many already.")


def write(path: Path, text: str, before: str | None, mode: int | None = None) -> None:
    """Replace the whole file, which must still have the text `before`; None: it must not be there.

    Its permissions stay as they are unless `mode` says otherwise; a new file is its owner's alone. Raises ConfigError.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = stat.S_IMODE(path.stat().st_mode) if mode is None and before is not None else mode or OWNER_ONLY
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()
        with open(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, OWNER_ONLY), "wb") as file:
            file.write(text.encode("utf-8"))
            os.fchmod(file.fileno(), kept)
            file.flush()
            os.fsync(file.fileno())
        if read(path) != before:
            raise ConfigError(f"{path} was changed by another program in this moment, so it is left alone; run again.")
        os.replace(fresh, path)
    except OSError as error:
        raise ConfigError(f"unable to write {path}: {error.strerror}.") from None
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink()
