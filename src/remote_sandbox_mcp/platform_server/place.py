"""Where the platform keeps its things: one folder of the state folder, for its owner alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..config.own_platform import FOLDER, KEY_FILE, LOCK_FILE, URL_FILE
from ..core.errors import ConfigError


@dataclass(frozen=True)
class Place:
    """The files of one platform."""

    folder: Path

    @classmethod
    def of(cls, state: Path) -> Place:
        return cls(state / FOLDER)

    def make(self) -> None:
        """Raises ConfigError."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"unable to make the folder {self.folder}: {error.strerror}.") from error

    @property
    def lock(self) -> Path:
        return self.folder / LOCK_FILE

    @property
    def key(self) -> Path:
        return self.folder / KEY_FILE

    @property
    def url(self) -> Path:
        return self.folder / URL_FILE

    @property
    def settings(self) -> Path:
        return self.folder / "server.toml"

    @property
    def database(self) -> Path:
        return self.folder / "sandboxes.db"

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def access_log(self) -> Path:
        return self.folder / "access.log"

    @property
    def printed(self) -> Path:
        """What the server says before it has a log, such as why it does not start."""
        return self.folder / "printed.log"

    def known_url(self) -> str:
        """Where the server is, or was when it last ran."""
        try:
            return self.url.read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return ""
