"""The config.json of the current folder: it comes with a project, so it may set little, and only once accepted."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.disposable import Rules
from ..core.errors import ConfigError
from . import paths, readers
from .problems import Fault, Tell, plain, quoted
from .readers import Reader, read_table
from .services import LARGEST, NAME, Written

ACCEPTED = "accepted-projects.json"


def _bounded(value: object) -> int:
    number = readers.some(value)
    if number > Rules.max_concurrent:
        raise Fault(f"must not be above {Rules.max_concurrent} in a project's file; more is for config.toml to say")
    return number


# All that a project may set: nothing that runs a program, reads a file, names a server or holds a secret.
PROJECT_READERS: dict[str, Reader] = {
    "default_image": readers.image_name,
    "default_timeout": readers.seconds,
    "max_concurrent_sandboxes": _bounded,
    "auto_cleanup": readers.flag,
    "cleanup_after_minutes": readers.amount,
}


@dataclass(frozen=True)
class ProjectFile:
    """A config.json meant for us, with its absolute path and its content."""

    path: str
    content: bytes = field(repr=False)
    document: Mapping[str, Any] = field(repr=False)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    def settings(self, tell: Tell) -> dict[str, Any]:
        """What it may set, and does; other keys are reported and ignored."""
        where = f"{plain(self.path, 200)} [opensandbox]"
        raw = self.document["opensandbox"]
        # Reported by name only: a value of an unknown file may be anything.
        if refused := self._refused():
            also = "; a server_url may stand in OPENSANDBOX_SERVER, too" if "server_url" in refused else ""
            tell(
                f"{plain(self.path, 200)}: {', '.join(refused)} passed over, since what comes with a project may set "
                f"only {', '.join(PROJECT_READERS)}; if it is yours, give the file with --config, or put the rest "
                f"into config.toml{also}."
            )
        values, faults = read_table(
            {key: raw[key] for key in PROJECT_READERS if key in raw}, PROJECT_READERS, where, tell
        )
        for fault in faults:
            tell(f"{where}: {fault}, so it is passed over.")
        return values

    def _refused(self) -> list[str]:
        """Keys that it must not set; keys under `server` have no effect anywhere."""
        parts = [key for key in self.document if key not in ("server", "opensandbox")]
        keys = [key for key in self.document["opensandbox"] if key not in PROJECT_READERS]
        # Bounded, because the file may have any number of keys.
        return [plain(key, 40) for key in [*keys, *parts][:12]]


def find_project(path: str = NAME) -> ProjectFile | None:
    """The file, if it exists and looks like ours: any project may have an unrelated config.json."""
    content = _content(path)
    if content is None or len(content) > LARGEST:
        return None
    try:
        document = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or not isinstance(document.get("opensandbox"), dict):
        return None
    return ProjectFile(_whole(path), content, document)


def read_project(path: str, environ: Mapping[str, str], tell: Tell) -> Written | None:
    """What the file sets; None, with a problem reported, until the user has accepted its content."""
    project = find_project(path)
    if project is None:
        return None
    accepted = _accepted(paths.state_path(environ)).get(project.path)
    # By content, not by path: a pull may bring another file under the same name.
    if accepted != project.digest:
        why = "has changed since it was accepted" if accepted else "came with the current folder"
        tell(
            f"{plain(project.path, 200)} {why} and counts for nothing until the user accepts it: look at it, then run "
            f"remote-sandbox-mcp config allow {shlex.quote(plain(project.path, 200))}."
        )
        return None
    return Written(project.path, {"opensandbox": project.settings(tell)})


def accept(project: ProjectFile, state_folder: Path) -> None:
    """Accept this content at this path from now on. Raises ConfigError."""
    _write(state_folder, {**_accepted(state_folder), project.path: project.digest})


def withdraw(path: str, state_folder: Path) -> bool:
    """Stop accepting the file at this path; returns whether it was accepted. Raises ConfigError."""
    known = _accepted(state_folder)
    was_accepted = known.pop(_whole(path), None) is not None
    if was_accepted:
        _write(state_folder, known)
    return was_accepted


def _whole(path: str) -> str:
    folder, name = os.path.split(os.path.abspath(os.path.expanduser(path)))
    # Links in the folder's path are resolved, so that one file has one name; the file itself may be a link.
    return os.path.join(os.path.realpath(folder), name)


def _content(path: str) -> bytes | None:
    """The first bytes of a file; does not block on a pipe."""
    try:
        fd = os.open(os.path.expanduser(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as opened:
            return opened.read(LARGEST + 1) if stat.S_ISREG(os.fstat(fd).st_mode) else None
    except (OSError, ValueError):
        return None


def _accepted(state_folder: Path) -> dict[str, str]:
    """Accepted paths and digests of their content. A record that others could have written is ignored."""
    try:
        with open(state_folder / ACCEPTED, "rb") as opened:
            facts = os.fstat(opened.fileno())
            # Otherwise another user could accept files in this user's name.
            if facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
                return {}
            known = json.loads(opened.read())
    except (OSError, ValueError, RecursionError):
        return {}
    return {str(path): str(digest) for path, digest in known.items()} if isinstance(known, dict) else {}


def _write(state_folder: Path, accepted: Mapping[str, str]) -> None:
    file = state_folder / ACCEPTED
    fresh = file.with_name(f".{ACCEPTED}.{os.getpid()}")
    try:
        fresh.unlink(missing_ok=True)
        # Written whole and renamed, so that a crash leaves the old list.
        with open(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8") as opened:
            json.dump(accepted, opened, indent=1)
        fresh.replace(file)
    except OSError as error:
        raise ConfigError(f"unable to write {file}: {error.strerror or error}.") from error


def refusal(path: str) -> ConfigError:
    """Why there is nothing to accept at a path."""
    what = "is not there" if _content(path) is None else 'is not a JSON object with an "opensandbox" part'
    return ConfigError(f"{quoted(_whole(path))} {what}, so there is nothing to accept; name another file")
