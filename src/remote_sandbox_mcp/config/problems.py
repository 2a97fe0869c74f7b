"""Reports of the operator's mistakes: one sentence each, safe to print, never with the value itself."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
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


def unreported(_: str) -> None:
    """Ignore a problem: it is reported elsewhere."""


def position(error: Exception) -> str:
    """The place of an error in a text, in parentheses: the parser's message may quote it, and with it a secret."""
    found = re.search(r"line (\d+),? column (\d+)", str(error))
    return f" (line {found[1]}, column {found[2]})" if found else ""


def read_document(
    path: Path, fault: str, parse: Callable[[str], Any], report: Reporter, *, is_wanted: bool = True, most: int = -1
) -> Any:
    """A configuration file, parsed; None, with the reason reported, where it cannot be used.

    `fault` says what one is that cannot be parsed; one that is not there is reported only if it `is_wanted`.
    """
    try:
        with open(os.path.expanduser(path), encoding="utf-8-sig") as opened:
            return parse(opened.read(most))
    except FileNotFoundError:
        if is_wanted:
            report(f"{path} is not there, so nothing is configured by it; correct the path that was given.")
    except OSError as error:
        report(f"{path} is passed over: it cannot be read ({error.strerror}); check its permissions.")
    except (ValueError, RecursionError) as error:
        report(f"{path} is passed over: {fault}{position(error)}; correct it there.")
    return None


def parse_toml(text: str) -> dict[str, Any]:
    """Raises ValueError, RecursionError."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)
