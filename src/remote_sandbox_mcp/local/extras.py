"""Check for what is installed only with an extra of the package."""

from __future__ import annotations

from importlib.util import find_spec

from ..core.errors import ConfigError


def need(extra: str, doing: str) -> None:
    """Check that an extra's library, which has the extra's name, is installed. Raises ConfigError."""
    if find_spec(extra) is None:
        raise ConfigError(
            f"{doing}: this installation lacks the extra [{extra}]; install the program again with it, "
            f"for example: uv tool install --force '.[{extra}]' in its folder."
        )
