"""Which files of the user's own machine an agent may sync: not those that hold keys or start programs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from .errors import BadArgument
from .transfer import Order, Place


def guard(order: Order, place: Place, real: str, home: str, allowed: Iterable[str]) -> Order:
    """The order, without the hidden entries of the home folder. Raises BadArgument where it asks for nothing else.

    `real` is the place's path with all links followed. What the operator allows is not guarded.
    """
    inside = _below(real, home)
    if inside.startswith(".") and not any(_is_within(real, path) for path in allowed):
        raise BadArgument(
            f"{place.path} is in a hidden part of your home folder, where keys and start-up files are, so it is not "
            f'synced. If that is meant, its owner can allow it: allow_hidden = ["~/{inside.split("/")[0]}"] under '
            "[server] in config.toml"
        )
    if _is_within(home, real):
        # A folder's name may have signs that mean something in a rule.
        below = re.sub(r"[*?\[\\]", r"\\\g<0>", _below(home, real))
        rule = f"/{below}/.*".replace("//", "/")
        return replace(order, excludes=(*order.excludes, rule))
    return order


def _is_within(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


def _below(path: str, folder: str) -> str:
    """The rest of a path behind a folder, or nothing where it is not in it."""
    return path[len(folder.rstrip("/")) :].strip("/") if _is_within(path, folder) else ""
