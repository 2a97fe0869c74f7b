"""The pytest of the server's own environment, as one file that can be lent to a sandbox that has none."""

from __future__ import annotations

import contextlib
import io
import re
import zipfile
from collections.abc import Sequence
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution

from ..core.suites.suite import Loan

PACKAGES = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
# What these need besides on a Python that is older than 3.11.
FOR_OLD_PYTHONS = ("exceptiongroup", "tomli", "typing_extensions")
NEEDS_NOTHING_MORE = (3, 11)
# Two thirds of the archive would be descriptions of other languages, of which pytest colours none.
LANGUAGES = "pygments/lexers/"
OWN_LANGUAGES = ("__init__.py", "_mapping.py", "python.py", "diff.py")
# An archive without dates is the same each time, so that one that is in use may be written again.
NO_DATE = (1980, 1, 1, 0, 0, 0)
MAIN = '''"""Run pytest as `python -m pytest` does; whatever is installed for the project comes before what was lent."""

import os
import sys

lent = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [os.getcwd(), *(path for path in sys.path if path != lent), lent]

import pytest

sys.exit(pytest.main())
'''


@cache
def find_loan() -> Loan | None:
    """What can be lent; None where the server has no pytest, or not all that belongs to it."""
    found, extras = _installed(PACKAGES), _installed(FOR_OLD_PYTHONS)
    if len(found) < len(PACKAGES):
        return None
    oldest = max(map(_oldest, found))
    is_for_old = len(extras) == len(FOR_OLD_PYTHONS)
    return Loan(found[0].version, oldest if is_for_old else max(oldest, NEEDS_NOTHING_MORE))


@cache
def packed() -> bytes:
    """It, as an archive that Python runs as it is."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr(zipfile.ZipInfo("__main__.py", NO_DATE), MAIN)
        for own in (own for package in _installed((*PACKAGES, *FOR_OLD_PYTHONS)) for own in _files(package)):
            file.writestr(zipfile.ZipInfo(own.as_posix(), NO_DATE), own.read_binary(), zipfile.ZIP_DEFLATED)
    return archive.getvalue()


def _installed(names: Sequence[str]) -> list[Distribution]:
    found = []
    for name in names:
        with contextlib.suppress(PackageNotFoundError):
            found.append(distribution(name))
    # What a system's own tools have installed may not say which files are its own.
    return [package for package in found if any(file.suffix == ".py" for file in _files(package))]


def _files(package: Distribution) -> list[PackagePath]:
    """Its sources, and what says its version; nothing that lies elsewhere, as programs do."""
    return [file for file in package.files or () if _is_wanted(file.as_posix())]


def _is_wanted(path: str) -> bool:
    if path.startswith(("..", "/")) or (path.startswith(LANGUAGES) and not path.endswith(OWN_LANGUAGES)):
        return False
    return path.endswith((".py", ".dist-info/METADATA"))


def _oldest(package: Distribution) -> tuple[int, int]:
    match = re.search(r">=\s*3\.(\d+)", package.metadata["Requires-Python"] or "")
    return (3, int(match.group(1))) if match else (3, 0)
