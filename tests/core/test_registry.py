"""From which registry an image comes, and with which login it is fetched."""

from __future__ import annotations

import pytest

from remote_sandbox_mcp.core.sandboxes.disposable import RegistryLogin, canonical_host, host_of, login_for
from remote_sandbox_mcp.core.sandboxes.secret import Secret

LOGINS = {host: RegistryLogin(f"user of {host}", Secret("x")) for host in ("docker.io", "ghcr.io", "localhost:5000")}


@pytest.mark.parametrize(
    ("image", "host"),
    [
        ("python", "docker.io"),
        ("python:3.12", "docker.io"),
        ("team/app:1", "docker.io"),
        ("team/app/part", "docker.io"),
        ("docker.io/library/python", "docker.io"),
        ("index.docker.io/team/app", "docker.io"),
        ("ghcr.io/team/app@sha256:" + "0" * 64, "ghcr.io"),
        ("registry.example.org/app", "registry.example.org"),
        ("registry.example.org:5000/team/app:1", "registry.example.org:5000"),
        ("127.0.0.1:5000/app", "127.0.0.1:5000"),
        ("[::1]:5000/app", "[::1]:5000"),
        ("localhost/app", "localhost"),
        ("localhost:5000/app", "localhost:5000"),
        ("registry:5000/app", "registry:5000"),
        ("Registry/app", "registry"),
        ("localhost", "docker.io"),
        ("example.org", "docker.io"),
        ("", "docker.io"),
    ],
)
def test_host_and_name_of_an_image_are_split_as_docker_does(image: str, host: str) -> None:
    assert host_of(image) == host


@pytest.mark.parametrize(
    ("image", "user"),
    [
        ("python", "user of docker.io"),
        ("ghcr.io/team/app", "user of ghcr.io"),
        ("GHCR.io/team/app", "user of ghcr.io"),
        ("localhost:5000/app", "user of localhost:5000"),
        ("localhost:5001/app", None),
        ("localhost/app", None),
        ("ghcr.io.example.org/team/app", None),
        ("evil/ghcr.io/app", "user of docker.io"),
    ],
)
def test_a_login_goes_to_its_own_registry_alone(image: str, user: str | None) -> None:
    login = login_for(image, LOGINS)
    assert (login.user if login else None) == user


@pytest.mark.parametrize("host", ["docker.io", "Index.Docker.io", "registry-1.docker.io"])
def test_all_names_of_docker_hub_become_one(host: str) -> None:
    assert canonical_host(host) == "docker.io"
