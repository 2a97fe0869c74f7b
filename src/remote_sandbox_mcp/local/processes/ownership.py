"""Owners besides root and this user who could exchange a file of this computer, or a folder on the way to it."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Container, Iterator

# Links and folders on the way to a file; more than any system follows.
MOST_STEPS = 400
# Members of macOS's group `admin` can become root; Homebrew's folders belong to it.
ADMINISTRATORS = 80 if sys.platform == "darwin" else 0


def who_else(found: os.stat_result, *, is_last: bool, owners: Container[int] = ()) -> str:
    """Explain why others could change this file or folder; `is_last`: a sticky folder does not protect what is in it.

    On the way to a file, a sticky folder such as /tmp protects entries of ours. Besides root and us, `owners` count.
    """
    if found.st_uid not in (0, os.geteuid()) and found.st_uid not in owners:
        return f"belongs to another user ({found.st_uid})"
    # Everybody may write to a link, as far as its mode says; its owner and its folder count.
    if stat.S_ISLNK(found.st_mode) or (found.st_mode & stat.S_ISVTX and not is_last):
        return ""
    if found.st_mode & stat.S_IWOTH:
        return "can be written by everybody"
    # Where each user has a private group with the same number, group-writable folders are normal.
    is_harmless = found.st_gid in (found.st_uid, 0, ADMINISTRATORS)
    return f"can be written by the group {found.st_gid}" if found.st_mode & stat.S_IWGRP and not is_harmless else ""


def who_else_on_the_way(path: str, owners: Container[int] = ()) -> str:
    """Explain why others could exchange the file at a path, or a folder or link on the way; else "". Raises OSError."""
    for here, found in steps(path):
        if why := who_else(found, is_last=not stat.S_ISDIR(found.st_mode), owners=owners):
            return f"{here} {why}"
        if stat.S_ISDIR(found.st_mode):
            continue
        folder = os.path.dirname(here)
        if why := who_else(os.stat(folder), is_last=True, owners=owners):
            return f"{folder} {why}"
    return ""


def installers() -> set[int]:
    """Owners of our own Python and package, whose programs an ordinary user runs anyway. Root trusts none of them."""
    found: set[int] = set()
    for file in (sys.executable, __file__) if os.geteuid() else ():
        # An update may have removed them under a process that runs.
        with contextlib.suppress(OSError):
            found.add(os.stat(file).st_uid)
    return found


def steps(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Every folder, link and file on the way to what a path means, links followed by hand. Raises OSError."""
    at, left = "/", _parts(path)
    for _ in range(MOST_STEPS):
        if not left:
            return
        part = left.pop()
        if part == "..":
            at = os.path.dirname(at)
            continue
        here = os.path.join(at, part)
        found = os.lstat(here)
        yield here, found
        if stat.S_ISLNK(found.st_mode):
            target = os.readlink(here)
            left += _parts(target)
            at = "/" if target.startswith("/") else at
        else:
            at = here
    raise OSError(0, "too many links")


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")][::-1]
