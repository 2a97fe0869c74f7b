"""What verbs print of others' words: nothing of it moves the cursor, and no path makes a line of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from remote_sandbox_mcp.cli.render import Page
from remote_sandbox_mcp.cli.verb import complain, complain_plainly, say

EVIL = "\x1b]0;owned\x07\x1b[2Ja\u202eb"
WAYS: dict[str, Callable[[str], None]] = {
    "a sentence": say,
    "a complaint": complain,
    "a plain line": complain_plainly,
    "a part of a page": lambda text: Page().print(text),
    "a row of a page": lambda text: Page().rows([("key", text)]),
    "a heading": lambda text: Page().heading(text, text),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_control_and_invisible_characters_never_reach_the_terminal(
    way: Callable[[str], None], capfd: pytest.CaptureFixture[str]
) -> None:
    way(EVIL)
    said = "".join(capfd.readouterr())
    assert "a\\u202eb" in said
    assert not {"\x1b", "\x07", "\u202e"} & {*said}


@pytest.mark.parametrize("way", ["a plain line", "a heading"])
def test_a_name_stays_on_its_line(way: str, capfd: pytest.CaptureFixture[str]) -> None:
    WAYS[way]("name\nAccepted")
    assert "name␊Accepted" in "".join(capfd.readouterr())
