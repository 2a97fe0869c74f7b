"""Reports of the operator's mistakes: one sentence each, safe to print, never with the value itself."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

from ..core.texts.text import reveal

Reporter = Callable[[str], None]

CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class Fault(Exception):
    """Reason why a value is invalid, as the end of a sentence that begins with its key."""


def plain(text: str, limit: int = 60) -> str:
    """A foreign text inside a sentence: one line, safe to print, bounded."""
    shown = reveal(CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text[: limit * 10]))
    return f"{shown[:limit]}..." if len(shown) > limit else shown


def quoted(text: str) -> str:
    return f'"{plain(text)}"'


def parse_toml(text: str) -> dict[str, Any]:
    """Raises ValueError, RecursionError."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)
