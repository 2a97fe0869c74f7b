"""Output made harmless, and cut so that nothing is lost silently."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_sandbox_mcp.core.commands.command import Excerpt
from remote_sandbox_mcp.core.texts.text import clip, harmless, last_line


@pytest.mark.parametrize(
    ("data", "text"),
    [
        pytest.param(b"plain\n", "plain\n", id="plain"),
        pytest.param("näive 数据\n".encode(), "näive 数据\n", id="utf-8"),
        pytest.param(b"\xff\xfeabc", "��abc", id="invalid UTF-8"),
        pytest.param(b"a\0b", "a␀b", id="NUL"),
        pytest.param(b"\x1b[31mred\x1b[0m", "red", id="colour"),
        pytest.param(b"\x1b[2J\x1b[1;1Hgone", "gone", id="clear screen"),
        pytest.param(b"\x1b]0;title\x07x", "x", id="title, BEL"),
        pytest.param(b"\x1b]52;c;ZXZpbA==\x1b\\x", "x", id="clipboard, ST"),
        pytest.param(b"\x1bPq#0\x1b\\x", "x", id="device control"),
        pytest.param(b"\x1b]0;never ended", "", id="string that never ends"),
        pytest.param(b"\x1b(Bx", "x", id="character set"),
        pytest.param(b"end\x1b", "end", id="escape at the end"),
        pytest.param(b"a\r\nb", "a\nb", id="CRLF"),
        pytest.param(b"10%\r20%\r", "10%\n20%\n", id="progress bar"),
        pytest.param("\x9b31mred".encode(), "�31mred", id="C1 control"),
        pytest.param(b"a\x08b\x7f", "a␈b␡", id="backspace and delete"),
        pytest.param(b"a\tb", "a\tb", id="tab"),
    ],
)
def test_output_is_made_harmless(data: bytes, text: str) -> None:
    assert harmless(data) == text


@given(st.binary(max_size=2000))
def test_no_control_character_survives(data: bytes) -> None:
    text = harmless(data)
    assert not [letter for letter in text if (ord(letter) < 32 and letter not in "\n\t") or 0x7F <= ord(letter) < 0xA0]


@pytest.mark.parametrize(
    ("data", "line"),
    [(b"", ""), (b"\n\n", ""), (b"one\ntwo\n\n", "two"), (b"10%\r55%", "55%"), (b"x" * 500, "x" * 200)],
    ids=["nothing", "blank", "last of two", "progress bar", "long"],
)
def test_the_last_nonempty_line_is_found(data: bytes, line: str) -> None:
    assert last_line(data) == line


def test_output_that_fits_is_unchanged() -> None:
    clipped = clip(Excerpt(b"hello", total=5), 5)
    assert (clipped.text, clipped.omitted) == ("hello", 0)


def test_long_output_keeps_head_and_tail_and_says_how_much_is_missing() -> None:
    data = bytes(range(65, 91)) * 100
    clipped = clip(Excerpt(data, total=len(data), file="/tmp/x/out"), 100)
    assert clipped.text.startswith(data[:50].decode())
    assert clipped.text.endswith(data[-50:].decode())
    assert clipped.omitted == 2500
    assert "2500 of 2600 bytes left out" in clipped.text
    assert "read_remote_file /tmp/x/out from offset 50" in clipped.text


def test_bytes_that_the_far_side_left_out_are_counted() -> None:
    clipped = clip(Excerpt(b"h" * 100, b"t" * 100, total=10_000, file="/o"), 400)
    assert clipped.text.startswith("h" * 100 + "\n[... 9800 of 10000 bytes left out")
    assert clipped.text.endswith("t" * 100)


def test_a_character_cut_in_two_is_not_shown_as_damage() -> None:
    whole = "数".encode()
    clipped = clip(Excerpt(b"a" + whole[:2], whole[1:] + b"z", total=1000), 100)
    assert "�" not in clipped.text


@given(st.binary(max_size=4000), st.integers(1, 600))
def test_a_clip_is_never_much_longer_than_asked(data: bytes, limit: int) -> None:
    clipped = clip(Excerpt(data, total=len(data), file="/f"), limit)
    assert len(clipped.text) <= limit + 120
    assert bool(clipped.omitted) == ("bytes left out" in clipped.text)
