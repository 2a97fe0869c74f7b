"""How the words of the command line are read: shared options in every place, and a hint for a word that is wrong."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class Parser(argparse.ArgumentParser):
    """Takes --config before and after each verb; verbs below it are read by parsers of this kind, too."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        # A parser below another one must not put its default over what was given before the verb.
        told = "a config.toml (or config.json) instead of the usual"
        self.add_argument("--config", type=Path, metavar="FILE", default=argparse.SUPPRESS, help=told)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, no_choice(str(value), action.choices))


def no_choice(word: str, choices: Iterable[str]) -> str:
    """
    >>> no_choice("exce", ["exec", "push"])
    "there is no 'exce'; did you mean exec? There are: exec, push"
    """
    known = [*choices]
    near = difflib.get_close_matches(word, known, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"there is no {word[:80]!r}; {hint}There are: {', '.join(known)}"


def add_json(*parsers: argparse.ArgumentParser, help: str = "for programs") -> None:
    """The option --json, which holds wherever it stands: see Parser."""
    for parser in parsers:
        parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=help)
