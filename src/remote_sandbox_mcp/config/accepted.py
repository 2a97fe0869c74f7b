"""Files that come with a project: they count only as far as their user has accepted them, and a record says which."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from ..core.errors import ConfigError
from . import paths
from .problems import plain

ACCEPTED = "accepted-projects.json"
# How long to wait for another process that changes the record.
TURN_S = 10.0


@dataclass(frozen=True)
class Acceptance:
    """Which content of a file was accepted; the content itself where it stays in force whatever the file becomes."""

    digest: str
    content: str = field(default="", repr=False)


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def acceptance(path: str, environ: Mapping[str, str] = os.environ) -> Acceptance | None:
    """What the user has accepted of the file at this whole path; None for nothing. Cheap: looks first, reads seldom."""
    return _record(paths.state_path(environ)).get(path)


def accept(path: str, accepted: Acceptance, state_folder: Path) -> None:
    """Accept this content at this whole path from now on. Raises ConfigError."""
    with _alone(state_folder):
        _write(state_folder, {**_record(state_folder), path: accepted})


def withdraw(path: str, state_folder: Path) -> bool:
    """Stop accepting the file at this path; returns whether it was accepted. Raises ConfigError."""
    with _alone(state_folder):
        known = {**_record(state_folder)}
        was_accepted = known.pop(whole(path), None) is not None
        if was_accepted:
            _write(state_folder, known)
    return was_accepted


def invitation(path: str) -> str:
    """How a user accepts a file, as the end of a sentence."""
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


def _record(state_folder: Path) -> Mapping[str, Acceptance]:
    file = str(state_folder / ACCEPTED)
    try:
        facts = os.stat(file)
    except OSError:
        return {}
    # The time of the last change of its mode or owner counts, too.
    return _read(file, (facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns))


@lru_cache(maxsize=8)
def _read(file: str, _state: tuple[int, ...]) -> Mapping[str, Acceptance]:
    """Accepted paths. A record that others could have written is ignored."""
    try:
        with open(file, "rb") as opened:
            facts = os.fstat(opened.fileno())
            # Otherwise another user could accept files in this user's name.
            if facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
                return {}
            known = json.loads(opened.read())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(known, dict):
        return {}
    return {path: found for path, value in known.items() if (found := _acceptance(value))}


def _acceptance(value: object) -> Acceptance | None:
    if isinstance(value, str):
        return Acceptance(value)
    content = value.get("content") if isinstance(value, dict) else None
    return Acceptance(digest_of(content.encode()), content) if isinstance(content, str) else None


@contextmanager
def _alone(state_folder: Path) -> Iterator[None]:
    """Keep other processes from changing the record meanwhile: of two that read it, one would undo the other's change.

    Raises ConfigError.
    """
    from ..processes.locks import Lock

    try:
        lock = Lock.take(state_folder / f"{ACCEPTED}.lock", TURN_S)
    except BlockingIOError:
        raise ConfigError(f"another process is changing {state_folder / ACCEPTED}; try again.") from None
    try:
        yield
    finally:
        lock.release()


def _write(state_folder: Path, accepted: Mapping[str, Acceptance]) -> None:
    file = state_folder / ACCEPTED
    fresh = file.with_name(f".{ACCEPTED}.{os.getpid()}")
    plain_ones = {path: {"content": it.content} if it.content else it.digest for path, it in accepted.items()}
    try:
        fresh.unlink(missing_ok=True)
        # Written whole and renamed, so that a crash leaves the old list.
        with open(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8") as opened:
            json.dump(plain_ones, opened, indent=1)
        fresh.replace(file)
    except OSError as error:
        raise ConfigError(f"unable to write {file}: {error.strerror or error}.") from error
