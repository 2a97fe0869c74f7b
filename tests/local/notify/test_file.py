from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from remote_sandbox_mcp.core.jobs.watch import EventType, Unsent
from remote_sandbox_mcp.core.permission import Notify
from remote_sandbox_mcp.local.notify import announcer as file
from remote_sandbox_mcp.local.notify import messages
from remote_sandbox_mcp.local.notify.announcer import Announcer
from tests.support.notify_scenes import NASTY, event, watch


async def test_an_event_becomes_a_file_for_its_owner_alone(tmp_path: Path) -> None:
    happened = event(NASTY)
    await Announcer(Notify(), tmp_path).announce("file", watch(), happened)
    (path,) = (tmp_path / "events").iterdir()
    assert path.name == "17-completed.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert json.loads(path.read_text()) == messages.as_json(watch(), happened)


async def test_telling_it_again_changes_nothing(tmp_path: Path) -> None:
    announcer = Announcer(Notify(), tmp_path)
    for _ in range(2):
        await announcer.announce("file", watch(), event())
    assert [path.name for path in (tmp_path / "events").iterdir()] == ["17-completed.json"]


def test_the_oldest_of_too_many_go_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "MOST_FILES", 3)
    (tmp_path / "notes.txt").touch()
    (tmp_path / "1-other.json.bak").touch()
    # Numbers begin again with a new database: what is old is told by its time.
    for age, number in enumerate([900, 901, 1, 2]):
        path = file.keep(tmp_path, watch(), event(id=number))
        os.utime(path, (1000 + age, 1000 + age))
    file.keep(tmp_path, watch(), event(id=3, type=EventType.INTERRUPTED))
    kept = {"1-completed.json", "2-completed.json", "3-interrupted.json"}
    assert {path.name for path in tmp_path.iterdir()} == kept | {"notes.txt", "1-other.json.bak"}


async def test_a_folder_that_cannot_be_written_may_be_tried_again(tmp_path: Path) -> None:
    (tmp_path / "events").touch()
    with pytest.raises(Unsent, match="unable to write") as caught:
        await Announcer(Notify(), tmp_path).announce("file", watch(), event())
    assert caught.value.passing


def test_a_write_that_fails_leaves_nothing_half_done(tmp_path: Path) -> None:
    (tmp_path / "17-completed.json").mkdir()
    with pytest.raises(Unsent):
        file.keep(tmp_path, watch(), event())
    assert [path.name for path in tmp_path.iterdir()] == ["17-completed.json"]
