"""What the platform needs of this machine: the server's command and a Docker engine that answers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.errors import ConfigError
from ..core.permission import is_loopback
from ..core.text import last_line
from .place import Images

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
    if found := shutil.which(COMMAND, path=environ.get("PATH")):
        return (found,)
    if found := shutil.which("uvx", path=environ.get("PATH")):
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
    if not _is_here(address):
        raise ConfigError(
            f"the Docker engine is on another machine ({address}), where ports of sandboxes could not be reached; "
            "choose one on this machine (docker context use default), or run opensandbox-server over there."
        )
    return kept | {"DOCKER_HOST": address}


def _is_here(address: str) -> bool:
    from urllib.parse import urlsplit

    return address.startswith("unix://") or is_loopback(urlsplit(address).hostname or "")


def _docker(environ: Mapping[str, str], *words: str) -> str:
    """Output of the docker command. Raises ConfigError."""
    program = shutil.which("docker", path=environ.get("PATH"))
    if program is None:
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
            named = _parse(example.read_text(encoding="utf-8"))
            return Images(str(named["runtime"]["execd_image"]), str(named["egress"]["image"]))
        except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
            return Images()


def _parse(text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)
