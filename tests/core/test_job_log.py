"""A log as people read it."""

from __future__ import annotations

import pytest

from remote_sandbox_mcp.core.jobs.log import exit_line_size, from_line_start, lines_with, to_line_end, without_exit_line


@pytest.mark.parametrize(
    ("log", "code", "left"),
    [
        pytest.param(b"a\nEXIT_CODE=3\n", 3, b"a\n", id="ours"),
        pytest.param(b"EXIT_CODE=-9\n", -9, b"", id="nothing else"),
        pytest.param(b"a\nEXIT_CODE=3\n", 0, b"a\nEXIT_CODE=3\n", id="another code"),
        pytest.param(b"a\nMY_EXIT_CODE=3\n", 3, b"a\nMY_EXIT_CODE=3\n", id="a part of a line"),
        pytest.param(b"EXIT_CODE=3\nb\n", 3, b"EXIT_CODE=3\nb\n", id="not at the end"),
        pytest.param(b"x" * 99 + b"\nEXIT_CODE=3\n", 3, b"x" * 99 + b"\n", id="after a long line"),
    ],
)
def test_the_keepers_line_is_not_for_people(log: bytes, code: int, left: bytes) -> None:
    assert without_exit_line(log, code) == left
    assert without_exit_line(log, None) == log


def test_a_line_that_may_be_the_keepers_is_measured() -> None:
    assert [exit_line_size(log) for log in (b"a\nEXIT_CODE=3\n", b"a\n", b"")] == [12, 0, 0]


def test_parts_are_whole_lines_where_there_are_any() -> None:
    assert [from_line_start(data) for data in (b"b\nc\n", b"bc", b"\xa4bc", b"b\n")] == [b"c\n", b"bc", b"bc", b"b\n"]
    assert [to_line_end(data) for data in (b"b\nc", b"bc", b"bc\xc3")] == [b"b\n", b"bc", b"bc"]


def test_lines_are_found_as_a_terminal_shows_them() -> None:
    log = b"one\n\x1b[31mT\x1b[0mwo\n10%\r20%\nthe secret two\n"
    hide = lambda text: text.replace("secret", "[hidden]")  # noqa: E731
    assert [*lines_with(log, "two", hide)] == [4, 25]
    assert [*lines_with(log, "Two", hide)] == [4]
    assert [*lines_with(log, "10%", hide)] == []
    assert [*lines_with(log, "secret", hide)] == []
