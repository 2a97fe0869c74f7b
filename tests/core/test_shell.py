"""The one quoting function, against real shells."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.means import require_program

from remote_sandbox_mcp.core.commands.shell import join, quote

SHELLS = [["bash", "-c"], ["dash", "-c"], ["busybox", "ash", "-c"], ["zsh", "-c"]]
TEXT = st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), max_size=60)


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
@settings(max_examples=25, deadline=None)
@given(words=st.lists(TEXT, min_size=1, max_size=4))
def test_quoted_words_reach_the_program_unchanged(shell: list[str], words: list[str]) -> None:
    require_program(shell[0])
    done = subprocess.run([*shell, join(["printf", r"%s\0", *words])], capture_output=True, check=True)
    assert done.stdout.decode() == "".join(f"{word}\0" for word in words)


def test_a_nul_cannot_be_quoted() -> None:
    with pytest.raises(ValueError, match="NUL"):
        quote("a\0b")
