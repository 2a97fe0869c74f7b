"""The folder where a person's projects are: agents may use it, whatever folder their client was started in."""

from __future__ import annotations

import os
from pathlib import Path

from ...config.problems import plain
from ...core.errors import BadArgument
from ..gate.allowing import why_no_project
from ..gate.paths import Gate

# Where people keep them, below the home folder.
USUAL = ("projects", "Projects", "code", "src", "work", "dev", "repos", "git", "Developer", "Documents/GitHub")
LONGEST_SHOWN = 300


def usual(gate: Gate) -> str:
    """The first of the usual folders that can be used, else the folder of the project in which setup was started."""
    found = (*(os.path.join("~", name) for name in USUAL), *_around_here())
    return next((path for path in found if not _why_not(os.path.expanduser(path), gate)), "")


def _around_here() -> list[str]:
    """The folder beside whose others this project is, and the project itself; nothing outside of a checkout."""
    try:
        here = Path.cwd()
    except OSError:
        return []
    top = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), None)
    return [str(top.parent), str(top)] if top else []


def checked(text: str, gate: Gate) -> str:
    """The folder as config.toml names it. Raises BadArgument."""
    path = os.path.realpath(os.path.expanduser(text))
    if why := _why_not(path, gate):
        raise BadArgument(f"{plain(path, LONGEST_SHOWN)} is not the folder of your projects: {why}")
    home = os.path.realpath(os.path.expanduser("~"))
    return f"~{path[len(home) :]}" if path.startswith(f"{home}/") else path


def _why_not(path: str, gate: Gate) -> str:
    if not os.path.isdir(path):
        return "there is no such folder"
    try:
        path.encode()
    except UnicodeEncodeError:
        return "its name is no valid text, which config.toml needs"
    return why_no_project(path, gate)
