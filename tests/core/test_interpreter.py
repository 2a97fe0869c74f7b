"""Records of Python sessions, as a machine that lies may write them."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import pytest
from tests.support.pythons import record_line

from remote_sandbox_mcp.core.commands.command import Excerpt
from remote_sandbox_mcp.core.commands.interpreter import (
    LARGEST_RECORD,
    PythonRecord,
    find_record,
    read_record,
    read_sessions,
    without_end,
)

WORD = "ab" * 16


def found(data: bytes, tail: bytes = b"", total: int = 0) -> tuple[Any, Excerpt]:
    return find_record(Excerpt(data, tail, total or len(data) + len(tail)), WORD)


def test_a_record_is_taken_off_the_end_of_the_output() -> None:
    line = record_line(WORD, {"state": "done"})
    assert found(b"printed" + line) == ({"state": "done"}, Excerpt(b"printed", b"", 7))
    assert found(b"pri", b"nted" + line) == ({"state": "done"}, Excerpt(b"pri", b"nted", 7))
    # Of a long output, the middle is left out.
    assert found(b"pri", b"ted" + line, 1000)[1] == Excerpt(b"pri", b"ted", 1000 - len(line))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"printed",
        record_line("cd" * 16, {"state": "done"}),
        record_line(WORD, {"state": "done"}) + b"more",
        f"{WORD}\n".encode(),
    ],
    ids=["nothing", "text", "another word", "not at the end", "half of one"],
)
def test_all_else_is_output(data: bytes) -> None:
    assert found(data) == (None, Excerpt(data, b"", len(data)))


def test_a_word_that_was_printed_before_changes_nothing() -> None:
    forged = record_line(WORD, {"state": "died"})
    assert found(forged + record_line(WORD, {"state": "done"})) == (
        {"state": "done"},
        Excerpt(forged, b"", len(forged)),
    )


BOMB = base64.b64encode(zlib.compress(bytes(LARGEST_RECORD + 1), 9))


@pytest.mark.parametrize(
    "body", [b"!", base64.b64encode(b"no zlib"), base64.b64encode(zlib.compress(b"{")), BOMB],
    ids=["no base64", "no zlib", "no JSON", "a bomb"],
)  # fmt: skip
def test_a_record_that_cannot_be_read_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        found(WORD.encode() + b" " + body + b" " + WORD.encode() + b"\n")


@pytest.mark.parametrize(
    "record",
    [
        *(
            [],
            {},
            {"state": "root"},
            {"state": ["done"]},
            {"state": "done", "value": 3},
            {"state": "done", "exit": "0"},
        ),
        *({"state": "done", "images": [3]}, {"state": "done", "images": {}}, {"state": "done", "memory": 1e400}),
        {"state": "done", "images": [{"path": "x", "size": None}]},
    ],
    ids=str,
)
def test_what_no_supervisor_says_is_refused(record: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        read_record(record)


def test_texts_and_numbers_of_a_record_are_bounded() -> None:
    images = [{"path": "/x", "size": 1 << 40}] * 9
    record = read_record({"state": "died", "why": "w" * 9999, "images": images, "unseen": "9" * 99, "memory": -5})
    assert (len(record.why), len(record.images), record.images[0].size) == (1000, 4, 1_500_000)
    assert (record.unseen, record.memory) == (0, 0)
    sessions = read_sessions(
        {"sessions": [{"session": "../x", "state": "status"}, 3, {"session": "a", "state": "status"}]}
    )
    assert [session.name for session in sessions] == ["a"]


def test_the_end_of_a_session_is_told_with_its_reason() -> None:
    rest = "its variables are lost, and the next call begins a new one"
    killed, exited = PythonRecord(state="died", signal="SIGKILL"), PythonRecord(state="died", exit_code=3)
    assert killed.death == f"the session has ended (killed by SIGKILL); {rest}"
    assert exited.death == f"the session has ended (exit code 3); {rest}"
    assert PythonRecord(state="error").death == ""


def test_what_was_ours_is_taken_from_tail_and_head() -> None:
    assert without_end(Excerpt(b"abcdef", b"gh", 8), 4) == Excerpt(b"abcd", b"", 4)
    assert without_end(Excerpt(b"ab", b"gh", 9), 1) == Excerpt(b"ab", b"g", 8)
