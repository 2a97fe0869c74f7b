"""When two servers have the same configuration, and when they do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from remote_sandbox_mcp.config.load import identity_of, load

GPU = {"name": "gpu1", "host": "gpu.example.org", "user": "ann", "password": "hush"}


def identity(file: Path | None = None, *entries: dict[str, object], **variables: str) -> str:
    return identity_of(load(file, {"REMOTE_SANDBOX_LIST": json.dumps(entries), **variables}))


@pytest.mark.parametrize(
    "change",
    [{"name": "gpu2"}, {"host": "other.example.org"}, {"port": 2222}, {"user": "bob"}],
    ids=lambda change: next(iter(change)),
)
def test_another_machine_in_the_environment_is_another_configuration(change: dict[str, object]) -> None:
    assert identity(None, GPU) != identity(None, {**GPU, **change})
    assert identity(None, GPU) != identity()


@pytest.mark.parametrize("variable", ["OPENSANDBOX_SERVER", "REMOTE_SANDBOX_ALLOWED_ROOTS"])
def test_so_is_another_platform_or_other_folders(variable: str) -> None:
    one = {"OPENSANDBOX_SERVER": "http://127.0.0.1:8080", "REMOTE_SANDBOX_ALLOWED_ROOTS": "/data"}[variable]
    assert identity(**{variable: one}) != identity()
    assert identity(**{variable: one}) == identity(**{variable: one})


def test_another_password_is_not() -> None:
    assert identity(None, GPU) == identity(None, {**GPU, "password": "another"})


def test_what_stands_in_the_file_may_change_and_its_path_may_not(tmp_path: Path) -> None:
    file, link, other = tmp_path / "config.toml", tmp_path / "link.toml", tmp_path / "other.toml"
    for each in (file, other):
        each.write_text("")
    link.symlink_to(file)
    before = identity(file)
    file.write_text('[machines.gpu1]\nhost = "gpu.example.org"\nuser = "ann"\n')
    assert identity(file) == before == identity(link)
    assert identity(other) != before
