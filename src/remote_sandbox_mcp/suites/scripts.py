"""The scripts of this folder as commands for whatever shell a machine is configured with."""

from __future__ import annotations

from functools import cache
from importlib import resources

from ..core.shell import join


def script(name: str, *words: str) -> str:
    """One command that runs the script by sh, with these words."""
    return "exec " + join(["sh", "-c", _text(name), name, *words])


@cache
def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
