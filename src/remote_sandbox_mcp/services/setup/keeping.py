"""Keeps a machine's password: in the system's keyring, else in a file for its owner alone."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from ...config import ring
from ...config.paths import APP
from ...core.errors import ConfigError
from . import files
from .journal import KEYRING, SECRET_FILE, SetupChange

FOLDER = "passwords"


@dataclass(frozen=True)
class KeptPassword:
    """Place of a password now: `reference` is what config.toml says of it."""

    reference: str
    change: SetupChange


def reference_for(name: str, config_file: Path) -> str:
    """Return where a password would be kept, before it is."""
    return _in_keyring(account_of(name)) if ring.is_there() else _in_file(file_for(name, config_file))


def keep(name: str, password: str, config_file: Path) -> KeptPassword:
    """Raises ConfigError. A keyring may ask its owner: call it in a thread."""
    account = account_of(name)
    if ring.store(account, password):
        return KeptPassword(
            _in_keyring(account), SetupChange(KEYRING, f"the password of {name} in the keyring", account=account)
        )
    if password != password.rstrip("\r\n"):
        raise ConfigError("a password that ends with a line end cannot be kept in a file.")
    path = file_for(name, config_file)
    files.write(path, f"{password}\n", files.read(path), files.OWNER_ONLY)
    return KeptPassword(_in_file(path), SetupChange(SECRET_FILE, f"the password of {name}", path=str(path)))


def account_of(name: str) -> str:
    return f"ssh-{name}"


def file_for(name: str, config_file: Path) -> Path:
    return config_file.parent / FOLDER / name


def reference_of(change: SetupChange) -> str:
    """Return the reference in config.toml to a password that was kept."""
    return _in_keyring(change.account) if change.kind == KEYRING else _in_file(Path(change.path))


def _in_keyring(account: str) -> str:
    return f"keyring:{APP}/{account}"


def _in_file(path: Path) -> str:
    home = os.path.expanduser("~")
    return f"file:~{str(path)[len(home) :]}" if str(path).startswith(f"{home}/") else f"file:{path}"


def forget(change: SetupChange) -> bool:
    """Whether the password is gone now."""
    if change.kind == KEYRING:
        return ring.delete(change.account)
    with contextlib.suppress(OSError):
        os.unlink(change.path)
        os.rmdir(os.path.dirname(change.path))
    return not os.path.lexists(change.path)
