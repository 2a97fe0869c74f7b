"""Invisible characters are shown, what people write is left alone, and what was shown can be edited."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_sandbox_mcp.core.commands.command import Excerpt
from remote_sandbox_mcp.core.texts.text import clip, harmless, replace_shown, reveal, reveal_file, visible

TAGS = "".join(chr(0xE0000 + ord(letter)) for letter in "rm -rf")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("a\u202egpj.exe", "a\\u202egpj.exe", id="override"),
        pytest.param("\u2066a\u2069", "\\u2066a\\u2069", id="isolates"),
        pytest.param("\u200ea\u200f", "\\u200ea\\u200f", id="marks"),
        pytest.param("pa\u200bss", "pa\\u200bss", id="zero-width space"),
        pytest.param("pa\u200dss", "pa\\u200dss", id="a joiner that joins nothing"),
        pytest.param("数\u200c据", "数\\u200c据", id="a joiner among Chinese"),
        pytest.param("😀\u200d\u200d\u200d", "😀\\u200d\\u200d\\u200d", id="joiners in a row"),
        pytest.param("\ufeffa", "\\ufeffa", id="byte order mark"),
        pytest.param("a\u00adb", "a\\u00adb", id="soft hyphen"),
        pytest.param("a\u2028b", "a\\u2028b", id="separator of lines"),
        pytest.param("a\ufe0f\ufe01", "a\\ufe0f\\ufe01", id="variation selectors"),
        pytest.param("😀\ufe0f\U000e0101", "😀\ufe0f\\U000e0101", id="more variation selectors"),
        pytest.param("a\u3164b", "a\\u3164b", id="filler"),
        pytest.param(f"hi{TAGS}", "hi" + "".join(f"\\U000e00{ord(letter):02x}" for letter in "rm -rf"), id="tags"),
        pytest.param("🏴" + TAGS[:2], "🏴\\U000e0072\\U000e006d", id="a flag of nowhere"),
    ],
)
def test_invisible_characters_are_shown_as_escapes(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert reveal(text) == reveal_file(text).text == harmless(text.encode()) == shown


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("plain text, \ttabs\nand lines\r\n", id="ASCII"),
        pytest.param("数据集，训练完成。", id="Chinese"),
        pytest.param("葛\U000e0100城", id="Chinese variant"),
        pytest.param("שלום עולם", id="Hebrew"),
        pytest.param("مرحبا بالعالم ١٢٣", id="Arabic"),
        pytest.param("می\u200cخواهم", id="Persian"),
        pytest.param("क्\u200dष", id="Hindi"),
        pytest.param("👩\u200d👩\u200d👧\u200d👦 👩🏽\u200d🚀 ❤️\u200d🔥 🏳️\u200d🌈", id="joined emoji"),
        pytest.param("1️⃣ ©️ ✔︎ ☺️", id="emoji with selectors"),
        pytest.param("🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", id="England"),
        pytest.param("naïve café ﬁ ½ € ¿", id="Latin"),
        pytest.param("a\u0301 ก็ 한국어", id="combined"),
    ],
)
def test_ordinary_text_in_any_language_is_unchanged(text: str) -> None:
    assert (reveal(text), reveal_file(text).text, visible(text)) == (text, text, text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("\x1b]52;c;ZXZpbA==\x07", "\\u001b]52;c;ZXZpbA==\\u0007", id="clipboard"),
        pytest.param("\x9b31m\x90q\x9c", "\\u009b31m\\u0090q\\u009c", id="C1"),
        pytest.param("safe\rrm -rf", "safe\\u000drm -rf", id="carriage return"),
        pytest.param("a\x08\x7f", "a\\u0008\\u007f", id="backspace"),
    ],
)
def test_controls_in_a_file_are_shown(text: str, shown: str) -> None:
    assert reveal_file(text).text == visible(text) == shown


@given(st.text(st.one_of(st.characters(), st.sampled_from("a\\u20e\u202e\u200d\U000e0041\x1b\r\n")), max_size=60))
def test_nothing_invisible_is_left_and_showing_twice_changes_nothing(text: str) -> None:
    once = visible(text)
    assert visible(once) == once
    assert not [sign for sign in once if unicodedata.bidirectional(sign) in ("RLO", "LRO", "RLE", "LRE", "PDF", "RLI")]
    assert "\x1b" not in once


# Edits


@given(st.text(st.sampled_from("ab\\u20e\u202e\u200b\U000e0041\x1b\n"), min_size=1, max_size=30), st.data())
def test_text_as_shown_can_be_found_in_the_file(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    old = reveal_file(text[:end]).text[len(reveal_file(text[:start]).text) :]
    changed, count = replace_shown(text, old, "NEW")
    assert count >= 1
    assert "NEW" in changed


@pytest.mark.parametrize(
    ("text", "old", "new", "changed"),
    [
        pytest.param("a\u202eb", "a\\u202eb", "ab", "ab", id="taken out"),
        pytest.param("x = 'a\u202eb'", "x = 'a\\u202e", "y = 'a\\u202e", "y = 'a\u202eb'", id="kept"),
        pytest.param("'\\u202e' \u202e", "'\\u202e' ", "'\\u202f' ", "'\\u202f' \u202e", id="written as an escape"),
        pytest.param("s = 'x'", "'x'", "'\\u202e'", "s = '\\u202e'", id="an escape that is new"),
        pytest.param("\U000e0041b", "\\U000e0041b", "b", "b", id="a tag"),
    ],
)
def test_an_edit_accepts_text_as_it_was_shown(text: str, old: str, new: str, changed: str) -> None:
    assert replace_shown(text, old, new) == (changed, 1)


def test_half_of_an_escape_does_not_match() -> None:
    assert replace_shown("a\u202eb", "202e", "x") == ("a\u202eb", 0)


def test_a_character_and_its_escape_both_count_as_matches() -> None:
    """So that an edit which could mean either is refused."""
    assert replace_shown("\u202e \\u202e", "\\u202e", "x")[1] == 2


# Bounds


@pytest.mark.parametrize("letter", ["\u00ad", "\u200b", "\U000e0041", "\x1b[0m"])
def test_a_stream_of_invisible_characters_keeps_its_limit(letter: str) -> None:
    data = (letter * 10_000).encode()
    clipped = clip(Excerpt(data, total=len(data)), 1000)
    assert len(clipped.text) < 1200


@given(st.text(st.sampled_from("aé汉😀 \n\t\r\x00\x1b\x7f\x85\u00ad\u200b\u200d\u202e\ufe0f\U000e0072🏴"), max_size=12))
def test_the_quick_look_at_a_text_misses_nothing(text: str) -> None:
    assert visible(text) == reveal_file(text).text
