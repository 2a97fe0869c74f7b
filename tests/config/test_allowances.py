"""The record of what a person has allowed: only its owner's word counts, until its time is over."""

from __future__ import annotations

import json
import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.config import paths
from remote_sandbox_mcp.config.allowances import ALLOWED, MOST, Allowance, allow, allowances, disallow
from tests.support.means import IS_ROOT

FOLDER = Allowance("/data/project", until=time.time() + 3600)


def state() -> Path:
    return paths.state_folder()


def file() -> Path:
    return state() / ALLOWED._name


def write(known: Any) -> None:
    file().write_text(known if isinstance(known, str) else json.dumps(known))
    file().chmod(0o600)


def test_what_was_allowed_is_read_back_as_it_was_said() -> None:
    said = [
        FOLDER,
        Allowance("/data/read-only", False, None, by="page"),
        Allowance("/data/of one session", True, time.time() + 60, "s-1", "form"),
    ]
    for one in said:
        allow(one, state())
    assert allowances() == said


def test_the_file_is_its_owners_alone() -> None:
    allow(FOLDER, state())
    assert stat.S_IMODE(file().stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o640, 0o604], ids=oct)
def test_a_record_that_others_can_reach_allows_nothing(mode: int) -> None:
    allow(FOLDER, state())
    file().chmod(mode)
    assert allowances() == []
    file().chmod(0o600)
    assert allowances() == [FOLDER]


@pytest.mark.skipif(not IS_ROOT, reason="gives a file away")
def test_a_record_of_another_user_allows_nothing() -> None:
    allow(FOLDER, state())
    os.chown(file(), 65534, 65534)
    assert allowances() == []


@pytest.mark.parametrize(
    "known",
    [
        pytest.param("{", id="not JSON"),
        pytest.param("[" * 100_000, id="deep"),
        pytest.param(["/data"], id="no object"),
        pytest.param({"/data": True}, id="no entry"),
        pytest.param({"data": {"writing": True}}, id="relative"),
        pytest.param({"": {"writing": True}}, id="empty"),
        pytest.param({"/data": {"writing": True, "until": "tomorrow"}}, id="no time"),
    ],
)
def test_what_is_no_allowance_allows_nothing(known: Any) -> None:
    write(known)
    assert allowances() == []


def test_writing_is_allowed_by_a_plain_yes_alone() -> None:
    write({"/a": {"writing": "false"}, "/b": {"writing": 1}, "/c": {}, "/d": {"writing": True}})
    assert [it.path for it in allowances() if it.writing] == ["/d"]


def test_its_time_ends_it_and_the_next_change_drops_it() -> None:
    allow(Allowance("/data/over", until=time.time() - 1), state())
    assert allowances() == []
    allow(FOLDER, state())
    assert [*json.loads(file().read_text())] == [FOLDER.path]


def test_a_later_word_on_the_same_place_counts() -> None:
    allow(FOLDER, state())
    allow(Allowance(FOLDER.path, False), state())
    assert allowances() == [Allowance(FOLDER.path, False)]


def test_a_session_and_all_are_two_words() -> None:
    allow(Allowance("/data", session="s-1", by="form"), state())
    allow(Allowance("/data", False), state())
    assert [(it.session, it.writing) for it in allowances()] == [("s-1", True), ("", False)]
    assert len(disallow("/data", state())) == 2
    assert allowances() == []


def test_taking_back_takes_what_is_inside_and_nothing_beside() -> None:
    for path in ("/data", "/data/in it", "/data-beside", "/other"):
        allow(Allowance(path), state())
    assert [it.path for it in disallow("/data", state())] == ["/data", "/data/in it"]
    assert [it.path for it in allowances()] == ["/data-beside", "/other"]
    assert [it.path for it in disallow("/", state())] == ["/data-beside", "/other"]


def test_the_record_is_bounded_and_keeps_the_newest() -> None:
    write({f"/data/{number}": {"writing": True} for number in range(MOST)})
    allow(FOLDER, state())
    kept = [it.path for it in allowances()]
    assert (len(kept), kept[0], kept[-1]) == (MOST, "/data/1", FOLDER.path)


def test_many_at_once_lose_nothing() -> None:
    said = [Allowance(f"/data/{number}") for number in range(20)]
    with ThreadPoolExecutor(5) as pool:
        list(pool.map(lambda one: allow(one, state()), said))
    assert sorted(it.path for it in allowances()) == sorted(it.path for it in said)


@pytest.mark.parametrize("name", ["", "inner/new"], ids=["itself", "on the way"])
def test_a_place_that_has_become_a_link_is_not_allowed_any_more(tmp_path: Path, name: str) -> None:
    place = tmp_path / "place"
    allow(Allowance(str(place / name)), state())
    assert len(allowances()) == 1
    place.symlink_to(tmp_path)
    assert allowances() == []
    assert len(disallow(str(place), state())) == 1


def test_a_name_that_is_no_text_is_kept() -> None:
    path = os.fsdecode(b"/data/\xff")
    allow(Allowance(path), state())
    assert [it.path for it in allowances()] == [path]
