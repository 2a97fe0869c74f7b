"""The operator's own config.json, as servers for OpenSandbox have it: given by name, or beside config.toml."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .problems import Tell
from .schema import JSON_KEYS, JSON_SERVER_READERS
from .tables import checked, tell_unknown

NAME = "config.json"
LARGEST = 1 << 20


@dataclass(frozen=True)
class Written:
    """A configuration file that was read."""

    file: str
    document: Mapping[str, Any] = field(repr=False)

    def resolve(self, path: str) -> str:
        """A path of the file, whole: relative ones start in its folder."""
        return os.path.join(os.path.dirname(os.path.abspath(self.file)), os.path.expanduser(path))


def is_json(path: Path | None) -> bool:
    return path is not None and path.suffix.lower() == ".json"


def own_json(given: Path | None, config_file: Path) -> Path | None:
    """The file that was given, else the one beside config.toml, if it is there."""
    beside = config_file.with_name(NAME)
    return given or (beside if os.path.lexists(os.path.expanduser(beside)) else None)


def read_json(path: Path, tell: Tell, blame: Tell) -> Written | None:
    """The operator's own file; None, for which the file is blamed, where it cannot be used at all."""
    document = _read(path, blame)
    return None if document is None else _reviewed(Written(str(path), document), tell)


def _reviewed(found: Written, tell: Tell) -> Written:
    for key in (key for key in found.document if key not in JSON_KEYS):
        tell_unknown(key, JSON_KEYS, found.file, tell)
    checked(found.document, "server", JSON_SERVER_READERS, found.file, tell)
    return found


def _read(path: Path, tell: Tell) -> dict[str, Any] | None:
    import json

    try:
        with open(os.path.expanduser(path), encoding="utf-8-sig") as opened:
            document = json.loads(opened.read(LARGEST))
    except FileNotFoundError:
        tell(f"{path} is not there, so nothing is configured by it; correct the path that was given.")
    except OSError as error:
        tell(f"{path} is passed over: it cannot be read ({error.strerror}); check its permissions.")
    except (ValueError, RecursionError) as error:
        # The parser's own words may quote the file, and with it a key; its place in the file is enough.
        place = f" (line {error.lineno}, column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
        tell(f"{path} is passed over: it is not valid JSON{place}; correct it there.")
    else:
        if isinstance(document, dict):
            return document
        tell(f"{path} is passed over: it must be a JSON object, so put {{ and }} around it.")
    return None
