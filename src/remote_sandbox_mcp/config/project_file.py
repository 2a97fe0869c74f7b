"""The config.json of the current folder: it comes with a project, so it may set little, and only once accepted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.errors import ConfigError
from ..core.sandboxes.disposable import DisposableRules
from . import readers
from .accepted import Acceptance, acceptance, digest_of, first_bytes, invitation, whole
from .problems import Fault, Reporter, plain, quoted
from .readers import Reader, read_table
from .services import LARGEST, NAME, ConfigFile


def _bounded(value: object) -> int:
    number = readers.some(value)
    if number > DisposableRules.max_concurrent:
        raise Fault(
            f"must not be above {DisposableRules.max_concurrent} in a project's file; more is for config.toml to say"
        )
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
    def acceptance(self) -> Acceptance:
        """Record to keep once the user accepts the file."""
        return Acceptance(digest_of(self.content))

    def settings(self, report: Reporter) -> dict[str, Any]:
        """Read the settings that the file may make; other keys are reported and ignored."""
        where = f"{plain(self.path, 200)} [opensandbox]"
        raw = self.document["opensandbox"]
        # Reported by name only: a value of an unknown file may be anything.
        if refused := self._refused():
            also = "; a server_url may stand in OPENSANDBOX_SERVER, too" if "server_url" in refused else ""
            report(
                f"{plain(self.path, 200)}: {', '.join(refused)} passed over, since what comes with a project may set "
                f"only {', '.join(PROJECT_READERS)}; if it is yours, give the file with --config, or put the rest "
                f"into config.toml{also}."
            )
        values, faults = read_table(
            {key: raw[key] for key in PROJECT_READERS if key in raw}, PROJECT_READERS, where, report
        )
        for fault in faults:
            report(f"{where}: {fault}, so it is passed over.")
        return values

    def _refused(self) -> list[str]:
        """Keys that it must not set; keys under `server` have no effect anywhere."""
        parts = [key for key in self.document if key not in ("server", "opensandbox")]
        keys = [key for key in self.document["opensandbox"] if key not in PROJECT_READERS]
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
        return None
    return ConfigFile(project.path, {"opensandbox": project.settings(report)})


def refusal(path: str) -> ConfigError:
    """Explain why there is nothing to accept at a path."""
    what = "is not there" if first_bytes(path, 1) is None else 'is not a JSON object with an "opensandbox" part'
    return ConfigError(f"{quoted(whole(path))} {what}, so there is nothing to accept; name another file")
