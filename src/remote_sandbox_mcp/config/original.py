"""The original program, remote-sandbox-mcp 0.x: the files that it has left, and the one sentence that tells of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..local.store.original import FILE
from . import paths

DATABASE = FILE
MACHINES = "config.json"
# What was taken over, so that it is taken once and can be given back; and the kinds of entries that say so.
JOURNAL = "import.json"
WATCHES_TAKEN, MACHINES_TAKEN = "watches", "machines"
IMPORT = "remote-sandbox-mcp import"
LARGEST = 1 << 20


def is_machine_list(document: object) -> bool:
    """Whether a config.json is the original's: all its machines, with their passwords."""
    return (
        isinstance(document, Mapping) and "schema_version" in document and isinstance(document.get("sandboxes"), list)
    )


def machine_lists(environ: Mapping[str, str] = os.environ, own: Path | None = None) -> list[Path]:
    """The original's config.json: in the state folder, or where ours (`own`) is read."""
    places = dict.fromkeys([paths.state_path(environ) / MACHINES, *([Path(os.path.expanduser(own))] if own else [])])
    return [file for file in places if is_machine_list(read(file))]


def notice(environ: Mapping[str, str] = os.environ, own: Path | None = None) -> str:
    """Tell what waits to be taken over, and how; "" for nothing. Looks at files only, for each start of a server."""
    state = paths.state_path(environ)
    taken = kinds_taken(state)
    found = [f"watches in {state}"] if WATCHES_TAKEN not in taken and (state / DATABASE).exists() else []
    lists = machine_lists(environ, own) if MACHINES_TAKEN not in taken else []
    found += [f"machines with passwords in plain text in {file}" for file in lists]
    if not found:
        return ""
    is_named = own in lists and own != paths.config_file().with_name(MACHINES)
    return (
        f"remote-sandbox-mcp 0.x has left {' and '.join(found)}, which do not count yet; to take them over, "
        f"run {IMPORT}{' with the same --config' if is_named else ''}, which shows them first."
    )


def kinds_taken(state: Path) -> set[str]:
    """The kinds of entries in the journal."""
    found = read(state / JOURNAL)
    return {str(it.get("kind")) for it in found if isinstance(it, Mapping)} if isinstance(found, list) else set()


def read(file: Path) -> Any:
    """A JSON file; None where there is none that can be read."""
    if not file.is_file():
        return None
    import json

    try:
        with open(file, encoding="utf-8-sig") as opened:
            return json.loads(opened.read(LARGEST))
    except (OSError, ValueError, RecursionError):
        return None
