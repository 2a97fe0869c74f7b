"""The agent that the platform's makers published is found where one is named; otherwise ours serves."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import platform
from tests.support.engine import Engine, EngineProblem
from tests.support.root import WHY_NOT, can_be_root

pytestmark = [
    pytest.mark.xdist_group("platform"),
    pytest.mark.timeout(120),
    pytest.mark.skipif(not can_be_root(), reason=WHY_NOT),
]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        yield engine


def saved_image(tar: Path, name: str) -> Path:
    """As `docker save` writes it: an image with one file."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as files:
        add(files, "execd", b"#!/bin/sh\n")
    content = layer.getvalue()
    root = {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(content).hexdigest()}"]}
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(tar, mode="w") as files:
        add(files, "config.json", json.dumps({"architecture": "amd64", "os": "linux", "rootfs": root}).encode())
        add(files, "layer.tar", content)
        add(files, "manifest.json", json.dumps(manifest).encode())
    return tar


def add(files: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    files.addfile(entry, io.BytesIO(content))


@pytest.fixture(autouse=True)
def nothing_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that holds no image yet."""
    monkeypatch.delenv(platform.EXECD_VARIABLE, raising=False)
    monkeypatch.setattr(platform, "CACHE", tmp_path)
    return tmp_path


def test_an_official_agent_is_found_where_one_is_named(
    engine: Engine, nothing_kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert platform.official_execd(engine) == ""
    monkeypatch.setenv(platform.EXECD_VARIABLE, "platform.invalid/execd:v9")
    with pytest.raises(EngineProblem):
        platform.official_execd(engine)
    saved = saved_image(tmp_path / "saved", "example.org/execd:v1")
    monkeypatch.setenv(platform.EXECD_VARIABLE, str(saved))
    assert platform.official_execd(engine) == "example.org/execd:v1"
    monkeypatch.delenv(platform.EXECD_VARIABLE)
    saved_image(nothing_kept / "execd-1.0.19.tar", "opensandbox/execd:v1.0.19")
    assert platform.official_execd(engine) == "opensandbox/execd:v1.0.19"
