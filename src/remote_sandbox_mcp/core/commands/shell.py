"""The one place where text becomes shell source."""

from __future__ import annotations

from collections.abc import Sequence


def quote(text: str) -> str:
    """Quote one word so that sh, bash, zsh, dash, ksh and busybox take it literally."""
    if "\0" in text:
        raise ValueError("a shell word cannot hold a NUL character")
    return "'" + text.replace("'", "'\\''") + "'"


def join(words: Sequence[str]) -> str:
    """Render an argument vector as one command line."""
    return " ".join(quote(word) for word in words)
