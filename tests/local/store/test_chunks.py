"""The cache of chunks: bounded, the least recently used go first, and trouble with it is nobody's trouble."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote_sandbox_mcp.local.store import chunks as module
from remote_sandbox_mcp.local.store.chunks import Chunks

A, B, C = (bytes([number]) * 32 for number in range(3))


@pytest.fixture
def chunks(tmp_path: Path) -> Iterator[Chunks]:
    """Room for two of 1,000 bytes."""
    cache = Chunks(tmp_path, most_bytes=2500)
    yield cache
    cache.close()


def total(folder: Path) -> int:
    connection = sqlite3.connect(folder / "chunks.db")
    try:
        counted = connection.execute("SELECT sum(length(key) + length(blob)) FROM chunks").fetchone()[0]
        assert connection.execute("SELECT bytes FROM total").fetchone()[0] == counted
        return int(counted)
    finally:
        connection.close()


def test_a_stored_blob_is_visible_to_other_processes(chunks: Chunks, tmp_path: Path) -> None:
    blob = os.urandom(1000)
    chunks.put(A, blob)
    chunks.put(A, blob)
    other = Chunks(tmp_path)
    assert other.get(A) == blob
    assert other.get(B) is None
    other.close()
    assert total(tmp_path) == 1032
    assert oct((tmp_path / "chunks.db").stat().st_mode & 0o777) == "0o600"


def test_the_least_recently_used_blobs_are_dropped_first(chunks: Chunks) -> None:
    chunks.put(A, bytes(1000))
    chunks.put(B, bytes(1000))
    assert chunks.get(A)
    chunks.put(C, bytes(1000))
    assert [key for key in (A, B, C) if chunks.get(key)] == [A, C]


def test_uses_by_a_process_that_ended_count(chunks: Chunks, tmp_path: Path) -> None:
    chunks.put(A, bytes(1000))
    chunks.put(B, bytes(1000))
    other = Chunks(tmp_path)
    assert other.get(A)
    other.close()
    chunks.put(C, bytes(1000))
    assert [key for key in (A, B, C) if chunks.get(key)] == [A, C]


def test_the_cache_never_exceeds_its_size(chunks: Chunks, tmp_path: Path) -> None:
    for number in range(50):
        chunks.put(number.to_bytes(32, "big"), bytes(number * 40))
        chunks.get((number // 2).to_bytes(32, "big"))
        assert total(tmp_path) <= 2500


def test_a_blob_larger_than_the_cache_is_not_stored(chunks: Chunks) -> None:
    chunks.put(A, bytes(10))
    chunks.put(B, bytes(2500))
    assert chunks.get(B) is None
    assert chunks.get(A) == bytes(10)


def test_many_uses_are_written_together(chunks: Chunks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_TOUCHED", 1)
    chunks.put(A, bytes(1000))
    chunks.put(B, bytes(1000))
    assert chunks.get(A)
    other = Chunks(tmp_path, most_bytes=2500)
    other.put(C, bytes(1000))
    assert [key for key in (A, B, C) if other.get(key)] == [A, C]
    other.close()


def test_a_damaged_file_is_an_empty_cache_that_fills_again(tmp_path: Path) -> None:
    (tmp_path / "chunks.db").write_bytes(b"this is no database\n" * 500)
    cache = Chunks(tmp_path)
    assert cache.get(A) is None
    cache.put(A, b"piece")
    assert cache.get(A) == b"piece"
    cache.close()


def test_a_file_damaged_in_the_middle_never_raises(tmp_path: Path) -> None:
    cache = Chunks(tmp_path)
    for number in range(20):
        cache.put(number.to_bytes(32, "big"), os.urandom(5000))
    cache.close()
    with (tmp_path / "chunks.db").open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(40960))
    cache = Chunks(tmp_path)
    for number in range(20):
        cache.get(number.to_bytes(32, "big"))
        cache.put(A, b"piece")
    assert cache.get(A) == b"piece"
    cache.close()


@pytest.mark.parametrize("trouble", ["no folder", "a folder in its place", "a newer version"])
def test_a_cache_that_cannot_be_opened_counts_as_empty(tmp_path: Path, trouble: str) -> None:
    folder = tmp_path / "gone" if trouble == "no folder" else tmp_path
    if trouble == "a folder in its place":
        (folder / "chunks.db").mkdir()
    elif trouble == "a newer version":
        connection = sqlite3.connect(folder / "chunks.db")
        connection.execute("PRAGMA user_version = 99")
        connection.close()
    cache = Chunks(folder)
    cache.put(A, b"piece")
    assert cache.get(A) is None
    cache.close()


def test_the_default_size_is_256_mib() -> None:
    assert module.MOST_BYTES == 256 * 1024 * 1024
