"""The server's settings: reached from this machine alone, with a key; sandboxes see only folders that are named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from .place import Place

HOST = "127.0.0.1"
LARGEST_LOG, KEPT_LOGS = 5 << 20, 2


@dataclass(frozen=True)
class Images:
    """What the server puts into each sandbox, and beside one whose network is restricted."""

    execd: str = "opensandbox/execd:v1.1.0"
    egress: str = "opensandbox/egress:v1.1.7"


def render(place: Place, port: int, key: str, images: Images, folders: Sequence[str] = ()) -> str:
    """The settings file; `folders` are those of this machine that may be mounted into sandboxes.

    Every value is written as JSON, which TOML reads as the same.
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
        # Ports of sandboxes are open to whoever reaches them: they are published to this machine alone.
        "docker": {"network_mode": "bridge", "publish_host": HOST, "no_new_privileges": True},
        "ingress": {"mode": "direct"},
        # By name alone a restriction could be passed by address.
        "egress": {"image": images.egress, "mode": "dns+nft"},
        # Where containers run in a virtual machine, only their published ports can be reached.
        "proxy": {"resolve_internal": False},
        "storage": {"allowed_host_paths": list(folders)},
        "store": {"type": "sqlite", "path": str(place.database)},
    }
    return "\n".join(f"[{name}]\n{_lines(values)}" for name, values in sections.items())


def _lines(values: dict[str, object]) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
