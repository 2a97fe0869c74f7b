"""Both versions of a file in conflict, and nothing else of this computer."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.fronts.page.conflicts import MOST_BYTES, read_here
from tests.support.page import Browser


def _make_link(place: Path) -> None:
    place.symlink_to("/etc/passwd")


MADE: dict[str, tuple[Callable[[Path], Any], dict[str, Any]]] = {
    "text": (lambda place: place.write_text("one\n"), {"size": 4, "text": "one\n"}),
    "invisible characters": (lambda place: place.write_text("a\u202eb"), {"size": 5, "text": "a\\u202eb"}),
    "nothing": (lambda place: None, {"missing": True}),
    "not text": (lambda place: place.write_bytes(b"\xff\0"), {"size": 2, "problem": "it is not text"}),
    "too large": (
        lambda place: place.write_bytes(bytes(MOST_BYTES + 1)),
        {"size": MOST_BYTES + 1, "problem": "it has more than 200,000 bytes"},
    ),
    "a folder": (lambda place: place.mkdir(), {"problem": "Is a directory"}),
    "a link": (_make_link, {"problem": "Too many levels of symbolic links"}),
    "a pipe": (os.mkfifo, {"problem": "it is not a file"}),
}


@pytest.mark.parametrize(("make", "shown"), MADE.values(), ids=MADE)
def test_the_version_here_is_a_text_or_a_reason(tmp_path: Path, make: Callable[[Path], Any], shown: Any) -> None:
    make(tmp_path / "file")
    found = read_here(str(tmp_path), "file")
    found.pop("mtime", None)
    assert found == shown


def test_a_folder_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "etc").symlink_to("/etc")
    assert read_here(str(tmp_path), "etc/passwd") == {"problem": "its folder is a link"}


@pytest.mark.parametrize("path", ["../../etc/passwd", "/etc/passwd", "", "a" * 5000])
def test_only_files_in_conflict_can_be_read(browser: Browser, path: str) -> None:
    answer = browser.ask("GET", f"/ui/api/conflict?workspace=none&path={path}")
    assert answer.status == 404
    assert b"root:" not in answer.body
