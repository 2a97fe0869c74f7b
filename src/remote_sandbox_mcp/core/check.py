"""Checks of a caller's arguments: a bad one is refused in one sentence before anything is done."""

from __future__ import annotations

import re
from collections.abc import Mapping

from .commands.command import RUN_ID
from .errors import BadArgument

LONGEST_TIMEOUT_S = 7 * 86400
MOST_OUTPUT_CHARS = 1_000_000
LARGEST_WRITE = 16 << 20
USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}\Z")


def text_argument(name: str, value: str, *, required: bool = True) -> str:
    """Refuse a text that no shell or file system can take, such as one with a NUL byte. Raises BadArgument."""
    if "\0" in value:
        raise BadArgument(f"{name} holds a NUL character, which no command or path can; remove it")
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise BadArgument(f"{name} holds half of a surrogate pair, which is no text; send valid Unicode") from None
    if required and not value.strip():
        raise BadArgument(f"{name} is empty; say what is wanted")
    return value


def in_range(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise BadArgument(f"{name} is {value:.15g}, but must be between {least:.15g} and {most:.15g}")


def variables(given: Mapping[str, str]) -> None:
    """Raises BadArgument, which never shows a value."""
    for name, value in given.items():
        if not name or {"=", "\0"} & {*name} or "\0" in value:
            raise BadArgument(f"{name[:60]!r} cannot be the name of a variable, or its value holds a NUL character")


def user_name(name: str) -> None:
    """Refuse a name that sudo could take for an option or a number. Raises BadArgument."""
    if name and not USER.match(name):
        raise BadArgument(f"{name[:64]!r} is not the name of a user")


def run_handle(value: str) -> str:
    """Refuse what is not a run handle of ours: nothing else is ever looked up on a machine. Raises BadArgument."""
    if not RUN_ID.match(value):
        raise BadArgument(f"{value[:60]!r} is not a handle; pass the tmux_session that exec_bash returned (run-...)")
    return value
