"""What tells one configuration from another: its file, and what the environment adds to it."""

from __future__ import annotations

import hashlib
import json
import os

from . import paths
from .schema import Configuration

# Settings that decide where code runs and which files it gets, where a variable sets them.
_DECISIVE = {"opensandbox.server_url": ("platform", "server_url"), "server.allowed_roots": ("allowed_roots",)}


def identity_of(configuration: Configuration) -> str:
    """The same for every server that reads the same file and is told the same by its variables. Holds no secret.

    What is written in the file does not count: who adds a machine there still has the same sandboxes.
    """
    file = os.path.realpath(configuration.file or paths.config_file())
    said = [*_machines(configuration), *_settings(configuration)]
    return hashlib.sha256(json.dumps([file, sorted(said)]).encode("utf-8", "backslashreplace")).hexdigest()[:32]


def _machines(configuration: Configuration) -> list[list[str]]:
    """Those that the environment names."""
    named = [it for it in configuration.machines if _is_variable(configuration.sources.get(f"machines.{it.name}", ""))]
    return [["machine", it.name, it.host, str(it.port), it.login.user] for it in named]


def _settings(configuration: Configuration) -> list[list[str]]:
    said = []
    for key, attributes in _DECISIVE.items():
        if _is_variable(configuration.sources.get(key, "")):
            value: object = configuration.settings
            for attribute in attributes:
                value = getattr(value, attribute)
            said.append([key, str(value)])
    return said


def _is_variable(source: str) -> bool:
    return source.startswith(("REMOTE_", "OPENSANDBOX_", "OPEN_SANDBOX_"))
