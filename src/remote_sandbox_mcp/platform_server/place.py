"""The platform's folder and its settings file: loopback only, with a key, volumes by name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..config.services import FOLDER, KEY_FILE, LOCK_FILE, URL_FILE
from ..core.errors import ConfigError

HOST = "127.0.0.1"
LARGEST_LOG, KEPT_LOGS = 5 << 20, 2


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
        """File with what the server prints before it has a log, such as why it does not start."""
        return self.folder / "printed.log"

    def known_url(self) -> str:
        """The server's address, now or when it last ran."""
        try:
            return self.url.read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return ""


@dataclass(frozen=True)
class Images:
    """Images that the server uses inside each sandbox, and beside one with a restricted network."""

    execd: str = "opensandbox/execd:v1.1.0"
    egress: str = "opensandbox/egress:v1.1.7"


def render(place: Place, port: int, key: str, images: Images, folders: Sequence[str] = ()) -> str:
    """The settings file; `folders` are those of this machine that may be mounted into sandboxes.

    Every value is written as JSON, which is also valid TOML.
    """
    sections: dict[str, dict[str, object]] = {
        "server": {"host": HOST, "port": port, "api_key": key},
        "log": {
            "level": "INFO",
            "file_enabled": True,
            "file_path": str(place.log),
            "access_file_path": str(place.access_log),
            "file_max_bytes": LARGEST_LOG,
            "file_backup_count": KEPT_LOGS,
        },
        "runtime": {"type": "docker", "execd_image": images.execd},
        # Published on this computer only: a sandbox's ports have no login of their own.
        "docker": {"network_mode": "bridge", "publish_host": HOST, "no_new_privileges": True},
        "ingress": {"mode": "direct"},
        # A filter by name alone could be bypassed by using addresses.
        "egress": {"image": images.egress, "mode": "dns+nft"},
        # Where containers run in a virtual machine, only their published ports can be reached.
        "proxy": {"resolve_internal": False},
        "storage": {"allowed_host_paths": list(folders)},
        "store": {"type": "sqlite", "path": str(place.database)},
    }
    return "\n".join(f"[{name}]\n{_lines(values)}" for name, values in sections.items())


def _lines(values: dict[str, object]) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
