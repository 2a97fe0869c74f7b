"""From which registry an image comes, by Docker's own rule, and with which login."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .secret import Secret

HUB = "docker.io"
# What Docker Hub is called as well.
_ALSO_HUB = ("index.docker.io", "registry-1.docker.io")


@dataclass(frozen=True)
class RegistryLogin:
    """With what images are fetched from one registry."""

    user: str
    password: Secret


def login_for(image: str, logins: Mapping[str, RegistryLogin]) -> RegistryLogin | None:
    """The login, of those by host, that is meant for an image."""
    return logins.get(host_of(image))


def host_of(image: str) -> str:
    """The host, with its port, of the registry that has an image; Docker Hub's where the name has none."""
    first, slash, _ = image.partition("/")
    # `team/app` is a name on the hub: a host has a dot, a port, a capital letter, or is this machine.
    is_host = bool(slash) and ("." in first or ":" in first or first == "localhost" or first != first.lower())
    return canonical_host(first) if is_host else HUB


def canonical_host(host: str) -> str:
    """The one name of a registry, however it is written."""
    lower = host.lower()
    return HUB if lower in _ALSO_HUB else lower
