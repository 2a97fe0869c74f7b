"""Keeps a machine's password or its key's passphrase: in the system's keyring; a password else in an owner's file."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from ...config import keyring_store
from ...config.paths import APP
from ...core.errors import ConfigError
from . import files
from .journal import KEYRING, SECRET_FILE, SetupChange

FOLDER, PASSPHRASES = "passwords", "passphrases"
# Keys of config.toml for secrets that setup asks for.
PASSWORD, PASSPHRASE = "password", "key_passphrase"
NO_KEYRING = "the keyring does not take the passphrase of its key; give the key to your agent instead: ssh-add"


@dataclass(frozen=True)
class MachineSecret:
    """A password or the passphrase of a key, under its key of config.toml."""

    key: str
    text: str = field(repr=False)


def reference_for(name: str, key: str, config_file: Path) -> str:
    """Return where a secret would be kept, before it is."""
    is_there = keyring_store.is_there()
    return _in_keyring(account_of(name, key)) if is_there else _in_file(file_for(name, config_file, key))


def keep(name: str, secret: MachineSecret, config_file: Path, *, is_written: bool = False) -> SetupChange:
    """Return the change, of which `reference_of` tells what config.toml says. Raises ConfigError.

    A keyring may ask its owner: call it in a thread. `is_written`: it is in a file already, as plain text, so that a
    passphrase may be, too.
    """
    account, password = account_of(name, secret.key), secret.text
    if keyring_store.store(account, password):
        what = "the password" if secret.key == PASSWORD else "the passphrase of the key"
        return SetupChange(KEYRING, f"{what} of {name} in the keyring", account=account)
    if secret.key == PASSPHRASE and not is_written:
        raise ConfigError(f"unable to configure {name}: {NO_KEYRING}.")
    if password != password.rstrip("\r\n"):
        raise ConfigError("a password that ends with a line end cannot be kept in a file.")
    path = file_for(name, config_file, secret.key)
    files.write(path, f"{password}\n", files.read(path), files.OWNER_ONLY)
    return SetupChange(SECRET_FILE, f"the {secret.key} of {name}", path=str(path))


def account_of(name: str, key: str = PASSWORD) -> str:
    return f"{'ssh' if key == PASSWORD else 'key'}-{name}"


def file_for(name: str, config_file: Path, key: str = PASSWORD) -> Path:
    return config_file.parent / (FOLDER if key == PASSWORD else PASSPHRASES) / name


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
        return keyring_store.delete(change.account)
    with contextlib.suppress(OSError):
        os.unlink(change.path)
        os.rmdir(os.path.dirname(change.path))
    return not os.path.lexists(change.path)
