"""The config.json of the current folder: it comes with a project, so it may set little, and only once accepted."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.errors import ConfigError
from ..core.sandboxes.disposable import DisposableRules
from . import readers
from .accepted import Acceptance, acceptance, digest_of, first_bytes, invitation, whole
from .problems import Fault, Reporter, plain, quoted
from .readers import Reader, checked
from .schema import JSON_SERVER_READERS, LOGGING_READERS
from .services import LARGEST, NAME, ConfigFile


def _bounded(value: object) -> int:
    number = readers.some(value)
    if number > DisposableRules.max_concurrent:
        raise Fault(
            f"must not be above {DisposableRules.max_concurrent} in a project's file; more is for config.toml to say"
        )
    return number


# All that a project may set: nothing that runs a program, reads a file or holds a secret.
PROJECT_READERS: dict[str, dict[str, Reader]] = {
    "opensandbox": {
        "server_url": readers.server_url,
        "default_image": readers.image_name,
        "default_timeout": readers.seconds,
        "max_concurrent_sandboxes": _bounded,
        "auto_cleanup": readers.flag,
        "cleanup_after_minutes": readers.amount,
    },
    # Its file is another matter: see _log_in.
    "logging": LOGGING_READERS,
    "server": JSON_SERVER_READERS,
}


def _log_in(folder: str) -> Reader:
    """Read the path of a log, which must not be anywhere else, nor take the place of another file of the project."""

    def read(value: object) -> str:
        given = readers.text(value)
        real = os.path.realpath(os.path.join(folder, given))
        within = os.path.relpath(real, os.path.realpath(folder))
        if not real.endswith(".log") or any(part.startswith(".") for part in within.split(os.sep)):
            raise Fault("must be a file of the project whose name ends in .log, such as mcp-server.log")
        return real

    return read


@dataclass(frozen=True)
class ProjectFile:
    """A config.json meant for us, with its absolute path and its content."""

    path: str
    content: bytes = field(repr=False)
    document: Mapping[str, Any] = field(repr=False)

    @property
    def acceptance(self) -> Acceptance:
        """Record to keep once the user accepts the file."""
        return Acceptance(digest_of(self.content))

    @property
    def names_server(self) -> bool:
        return bool(self._table("opensandbox").get("server_url"))

    def settings(self, report: Reporter) -> dict[str, Any]:
        """Read the settings that the file may make, by their names as `config show` has them."""
        return {f"{part}.{key}": value for part, values in self.parts(report).items() for key, value in values.items()}

    def parts(self, report: Reporter) -> dict[str, dict[str, Any]]:
        """Read the settings that the file may make; other keys are reported and ignored."""
        # Reported by name only: a value of an unknown file may be anything.
        if refused := self._refused():
            report(
                f"{plain(self.path, 200)}: {', '.join(refused)} passed over, since what comes with a project may not "
                "set that; if it is yours, give the file with --config, or put the rest into config.toml."
            )
        return {part: self._part(part, report) for part in PROJECT_READERS}

    def _part(self, part: str, report: Reporter) -> dict[str, Any]:
        allowed = PROJECT_READERS[part]
        if part == "logging":
            allowed = {**allowed, "file": _log_in(os.path.dirname(self.path))}
        known = {key: value for key, value in self._table(part).items() if key in allowed}
        return checked({part: known}, part, allowed, plain(self.path, 200), report)

    def _table(self, part: str) -> Mapping[str, Any]:
        found = self.document.get(part)
        return found if isinstance(found, Mapping) else {}

    def _refused(self) -> list[str]:
        """Keys that it must not set."""
        keys = [key for part, allowed in PROJECT_READERS.items() for key in self._table(part) if key not in allowed]
        parts = [key for key in self.document if key not in PROJECT_READERS]
        # Bounded, because the file may have any number of keys.
        return [plain(key, 40) for key in [*keys, *parts][:12]]


def find_project(path: str = NAME) -> ProjectFile | None:
    """The file, if it exists and looks like ours: any project may have an unrelated config.json."""
    content = first_bytes(path, LARGEST + 1)
    if content is None or len(content) > LARGEST:
        return None
    try:
        document = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or not isinstance(document.get("opensandbox"), dict):
        return None
    return ProjectFile(whole(path), content, document)


def read_project(path: str, environ: Mapping[str, str], report: Reporter) -> ConfigFile | None:
    """Read the project's settings; None, with a problem reported, until the user has accepted the file's content."""
    project = find_project(path)
    if project is None:
        return None
    accepted = acceptance(project.path, environ)
    # By content, not by path: a pull may bring another file under the same name.
    if accepted != project.acceptance:
        why = "has changed since it was accepted" if accepted else "came with the current folder"
        report(
            f"{plain(project.path, 200)} {why} and counts for nothing until the user accepts it: "
            f"{invitation(project.path)}"
        )
        # Where its server was meant, another place would be the wrong one.
        named = f"{plain(project.path, 200)} names a server, but {why} and is not accepted; {invitation(project.path)}"
        refusal = f"{named} To make one here all the same, say on='embedded'."
        return ConfigFile(project.path, {}, is_brought=True, refusal=refusal if project.names_server else "")
    return ConfigFile(project.path, project.parts(report), is_brought=True)


def refusal(path: str) -> ConfigError:
    """Explain why there is nothing to accept at a path."""
    what = "is not there" if first_bytes(path, 1) is None else 'is not a JSON object with an "opensandbox" part'
    return ConfigError(f"{quoted(whole(path))} {what}, so there is nothing to accept; name another file")
