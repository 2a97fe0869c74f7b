"""The changes that setup has made, in setup.json of the state folder, so that they can be undone."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...core.errors import ConfigError
from . import files

FILE = "setup.json"
# Kinds of changes: a TOML or JSON file, an entry made by Claude Code's own command, a secret in the keyring or a file.
TOML, JSON, CLAUDE, KEYRING, SECRET_FILE = "toml", "json", "claude", "keyring", "secret_file"
# A file that was removed; `value` is its text, with references in the place of secrets.
REMOVED = "removed"


@dataclass(frozen=True)
class SetupChange:
    """One change. `backup` is the file as it was, empty where setup made it; `digest` is of what setup wrote.

    `entry` is the place of our entry in a JSON document, `value` what it says; `hunks` are the changed lines of a TOML
    file; `account` names a secret of the keyring.
    """

    kind: str
    what: str
    path: str = ""
    backup: str = ""
    digest: str = ""
    entry: tuple[str, ...] = ()
    value: str = ""
    hunks: tuple[tuple[str, str], ...] = ()
    account: str = ""


class SetupJournal:
    """Changes in the order in which they were made."""

    def __init__(self, state_folder: Path, name: str = FILE) -> None:
        self._file = state_folder / name

    def changes(self) -> list[SetupChange]:
        """Raises ConfigError."""
        text = files.read(self._file)
        try:
            raw = json.loads(text) if text else []
            return [_change(one) for one in raw]
        except (ValueError, TypeError, KeyError):
            raise ConfigError(f"{self._file} cannot be read, so nothing can be undone by it; remove it.") from None

    def add(self, change: SetupChange) -> None:
        self.keep([*self.changes(), change])

    def keep(self, changes: list[SetupChange]) -> None:
        """Raises ConfigError."""
        before = files.read(self._file)
        if changes:
            text = json.dumps([asdict(change) for change in changes], indent=2) + "\n"
            files.write(self._file, text, before, files.OWNER_ONLY)
        elif before is not None:
            self._file.unlink(missing_ok=True)


def _change(raw: dict[str, Any]) -> SetupChange:
    return SetupChange(**{**raw, "entry": tuple(raw["entry"]), "hunks": tuple((old, new) for old, new in raw["hunks"])})
