"""Needs of the platform on this machine: the server's command, a Docker engine, a folder with its settings file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ...config.problems import parse_toml
from ...config.services import FOLDER, KEY_FILE, LOCK_FILE, URL_FILE
from ...core.errors import ConfigError
from ...core.permission import is_loopback
from ...core.texts.text import last_line
from ...local.processes.programs import find_chosen

HOST = "127.0.0.1"
LARGEST_LOG, KEPT_LOGS = 5 << 20, 2


class PlatformFolder:
    """The files of one platform. `printed` has what the server says before it has a log: why it does not start."""

    def __init__(self, state: Path) -> None:
        self.folder = folder = state / FOLDER
        self.lock, self.key, self.url = folder / LOCK_FILE, folder / KEY_FILE, folder / URL_FILE
        self.settings, self.database = folder / "server.toml", folder / "sandboxes.db"
        self.log, self.access_log, self.printed = folder / "server.log", folder / "access.log", folder / "printed.log"

    def make(self) -> None:
        """Raises ConfigError."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"unable to make the folder {self.folder}: {error.strerror}.") from error

    def recorded_url(self) -> str:
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


def render(place: PlatformFolder, port: int, key: str, images: Images, folders: Sequence[str] = ()) -> str:
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


COMMAND = "opensandbox-server"
VERSIONS = f"{COMMAND}>=1.1,<2"
CALL_S = 20.0
# Other variables may hold secrets, or change what the server does.
KEPT = frozenset(("HOME", "PATH", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"))
KEPT_PREFIXES = ("XDG_", "DOCKER_", "UV_")


def server_words(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The command that starts the server. Raises ConfigError where there is none."""
    beside = Path(sys.executable).with_name(COMMAND)
    if os.access(beside, os.X_OK):
        return (str(beside),)
    if found := find_chosen(COMMAND, environ.get("PATH")):
        return (found,)
    if found := find_chosen("uvx", environ.get("PATH")):
        return (found, "--from", VERSIONS, COMMAND)
    raise ConfigError(
        f"the command {COMMAND} is not installed; run: uv tool install {COMMAND} (or: pip install {COMMAND})."
    )


def engine_environ(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables for the server, with the engine that the docker command uses. Raises ConfigError."""
    kept = {name: value for name, value in environ.items() if name in KEPT or name.startswith(KEPT_PREFIXES)}
    _docker(kept, "version", "--format", "{{.Server.Version}}")
    # The server knows nothing of docker contexts, with which people choose between engines.
    address = kept.get("DOCKER_HOST") or _docker(kept, "context", "inspect", "--format", "{{.Endpoints.docker.Host}}")
    if not (address.startswith("unix://") or is_loopback(urlsplit(address).hostname or "")):
        raise ConfigError(
            f"the Docker engine is on another machine ({address}), where ports of sandboxes could not be reached; "
            "choose one on this machine (docker context use default), or run opensandbox-server over there."
        )
    return kept | {"DOCKER_HOST": address}


def _docker(environ: Mapping[str, str], *words: str) -> str:
    """Output of the docker command. Raises ConfigError."""
    if not (program := find_chosen("docker", environ.get("PATH"))):
        raise ConfigError("the command docker is not installed; install Docker Engine or Docker Desktop, then repeat.")
    try:
        done = subprocess.run(
            [program, *words], env=dict(environ), stdin=subprocess.DEVNULL, capture_output=True,
            timeout=CALL_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        why = f"no answer in {CALL_S:g} s" if isinstance(error, subprocess.TimeoutExpired) else error.strerror
        raise ConfigError(f"the Docker engine does not answer: {why}; start it, then repeat.") from error
    if done.returncode:
        why = last_line(done.stderr).rstrip(".?") or f"docker ended with {done.returncode}"
        raise ConfigError(f"the Docker engine does not answer: {why}; start it, then repeat.")
    return done.stdout.decode("utf-8", "replace").strip()


def matching_images(words: tuple[str, ...], environ: Mapping[str, str], limit_s: float) -> Images:
    """Images that match this version of the server; only its own example configuration names them."""
    with tempfile.TemporaryDirectory() as folder:
        example = Path(folder) / "example.toml"
        try:
            subprocess.run(
                [*words, "init-config", str(example), "--example", "docker"], env=dict(environ), cwd=folder,
                stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s, check=True,
            )  # fmt: skip
            named = parse_toml(example.read_text(encoding="utf-8"))
            return Images(str(named["runtime"]["execd_image"]), str(named["egress"]["image"]))
        except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
            return Images()
