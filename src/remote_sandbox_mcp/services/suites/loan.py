"""The server's own pytest as one file, lent to a sandbox that has none."""

from __future__ import annotations

import contextlib
import io
import re
import zipfile
from collections.abc import Sequence
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution

from ...core.suites.suite import Loan

PACKAGES = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
# Further packages that these need on Python before 3.11.
FOR_OLD_PYTHONS = ("exceptiongroup", "tomli", "typing_extensions")
NEEDS_NOTHING_MORE = (3, 11)
# Left out: two thirds of the archive would be syntax definitions of languages that pytest never colours.
LANGUAGES = "pygments/lexers/"
OWN_LANGUAGES = ("__init__.py", "_mapping.py", "python.py", "diff.py")
# Without dates the archive is always the same, so that one in use can be overwritten.
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
    """The pytest that can be lent; None where the server has none, or not all of its parts."""
    found, extras = _installed(PACKAGES), _installed(FOR_OLD_PYTHONS)
    if len(found) < len(PACKAGES):
        return None
    oldest = max(map(_oldest, found))
    is_for_old = len(extras) == len(FOR_OLD_PYTHONS)
    return Loan(found[0].version, oldest if is_for_old else max(oldest, NEEDS_NOTHING_MORE))


@cache
def packed() -> bytes:
    """The packages as one archive that Python can run."""
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
    # Packages installed by the system may not list their files.
    return [package for package in found if any(file.suffix == ".py" for file in _files(package))]


def _files(package: Distribution) -> list[PackagePath]:
    """List a package's sources and metadata; not files that are elsewhere, such as programs."""
    return [file for file in package.files or () if _is_wanted(file.as_posix())]


def _is_wanted(path: str) -> bool:
    if path.startswith(("..", "/")) or (path.startswith(LANGUAGES) and not path.endswith(OWN_LANGUAGES)):
        return False
    return path.endswith((".py", ".dist-info/METADATA"))


def _oldest(package: Distribution) -> tuple[int, int]:
    match = re.search(r">=\s*3\.(\d+)", package.metadata["Requires-Python"] or "")
    return (3, int(match.group(1))) if match else (3, 0)
