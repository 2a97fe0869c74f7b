"""Files that come with a project: they count only as far as their user has accepted them, and a record says which."""

from __future__ import annotations

import hashlib
import os
import shlex
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from . import paths
from .problems import plain
from .record import Record

_RECORD = Record(paths.ACCEPTED)


@dataclass(frozen=True)
class Acceptance:
    """Digest of a file's accepted content; the content itself where it stays in force whatever the file becomes."""

    digest: str
    content: str = field(default="", repr=False)


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def acceptance(path: str, environ: Mapping[str, str] = os.environ) -> Acceptance | None:
    """Find the user's acceptance of the file at this whole path; None for none. Cheap: the record is seldom read."""
    value = _RECORD.read(paths.state_path(environ)).get(path)
    if isinstance(value, str):
        return Acceptance(value)
    content = value.get("content") if isinstance(value, dict) else None
    return Acceptance(digest_of(content.encode()), content) if isinstance(content, str) else None


def accept(path: str, accepted: Acceptance, state_folder: Path) -> None:
    """Accept this content at this whole path from now on. Raises ConfigError."""
    value = {"content": accepted.content} if accepted.content else accepted.digest
    _RECORD.change(state_folder, lambda records: records.update({path: value}))


def withdraw(path: str, state_folder: Path) -> bool:
    """Stop accepting the file at this path; returns whether it was accepted. Raises ConfigError."""
    gone: list[object] = []
    _RECORD.change(state_folder, lambda records: gone.append(records.pop(whole(path), None)))
    return gone != [None]


def invitation(path: str) -> str:
    """Describe how a user accepts a file, as the end of a sentence."""
    return f"look at it, then run remote-sandbox-mcp config allow {shlex.quote(plain(path, 200))}."


def whole(path: str) -> str:
    """The one name of a file: absolute, without links in its folder's path; the file itself may be a link."""
    folder, name = os.path.split(os.path.abspath(os.path.expanduser(path)))
    return os.path.join(os.path.realpath(folder), name)


def first_bytes(path: str, most: int, flags: int = 0) -> bytes | None:
    """The first bytes of a regular file, None where there is none; does not block on a pipe."""
    try:
        fd = os.open(os.path.expanduser(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
        with open(fd, "rb") as opened:
            return opened.read(most) if stat.S_ISREG(os.fstat(fd).st_mode) else None
    except (OSError, ValueError):
        return None
