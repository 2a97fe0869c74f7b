"""Undoes what setup has changed, newest first, and leaves alone what was changed by others since."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ...config.paths import APP
from ...core.errors import ConfigError
from . import clients, files, json_text, keeping, toml_text
from .journal import CLAUDE, FILE, KEYRING, SECRET_FILE, TOML, SetupChange, SetupJournal
from .json_text import NotEditable


@dataclass(frozen=True)
class Undone:
    """Result of undoing one change, as a sentence; `is_done`: nothing is left to do about it."""

    change: SetupChange
    is_done: bool
    said: str


# How another module undoes changes of its own kinds.
Others = Mapping[str, Callable[[SetupChange], str]]


def undo(
    state_folder: Path, *, is_dry: bool = False, name: str = FILE, others: Others = MappingProxyType({})
) -> list[Undone]:
    """Undo all changes of a journal; those that could not be stay in it. Raises ConfigError."""
    journal = SetupJournal(state_folder, name)
    # By their place: two runs may have made the same change.
    left = dict(enumerate(journal.changes()))
    results: list[Undone] = []
    for place in reversed([*left]):
        result = _attempt(left[place], left.values(), is_dry, others)
        results.append(result)
        if result.is_done:
            del left[place]
            if not is_dry:
                journal.keep([*left.values()])
    return results


def _attempt(change: SetupChange, left: Iterable[SetupChange], is_dry: bool, others: Others) -> Undone:
    try:
        if change.kind in others:
            return Undone(
                change, True, f"{change.what} would be given back." if is_dry else others[change.kind](change)
            )
        if change.kind in (KEYRING, SECRET_FILE):
            return _forget(change, left, is_dry)
        if change.kind == CLAUDE:
            return _by_command(change, is_dry)
        return _restore(change, is_dry)
    except ConfigError as problem:
        return Undone(change, False, str(problem))


def _forget(change: SetupChange, left: Iterable[SetupChange], is_dry: bool) -> Undone:
    # While config.toml still names it, the machine needs it. Newest first: the file comes before its passwords.
    reference = json.dumps(keeping.reference_of(change))
    if any(reference in added for other in left for _, added in other.hunks):
        return Undone(change, False, f"{change.what} is kept, because config.toml still names it.")
    if not is_dry and not keeping.forget(change):
        where = change.path or f"service {APP}, account {change.account}"
        return Undone(change, False, f"{change.what} could not be removed; remove it yourself: {where}.")
    return Undone(change, True, f"{change.what} {_was(is_dry)} removed.")


def _restore(change: SetupChange, is_dry: bool) -> Undone:
    path, now = Path(change.path), files.read(Path(change.path))
    if now is None:
        return Undone(change, True, f"{path} is not there any more.")
    if files.digest(now) == change.digest:
        return _whole(change, path, now, is_dry)
    fresh = _without_ours(change, now)
    if fresh is None:
        return Undone(change, False, f"{path} was changed since; take {change.what} out of it yourself.{_kept(change)}")
    if fresh == now:
        # Others have taken it out already, and may not want back what it had replaced.
        return Undone(
            change, True, f"{path} was changed since, and {change.what} is not in it any more.{_kept(change)}"
        )
    put_back = ", and what it had replaced put back" if _replaced(change) is not None else ""
    if not is_dry:
        files.write(path, fresh, now)
        _drop_backup(change)
    taken = f"{change.what} {_was(is_dry)} taken out of it{put_back}"
    return Undone(change, True, f"{path} was changed since, so only {taken}.")


def _whole(change: SetupChange, path: Path, now: str, is_dry: bool) -> Undone:
    """The file is as setup left it: the one before it comes back, or none."""
    before = files.read(Path(change.backup)) if change.backup else None
    if change.backup and before is None:
        return Undone(change, False, f"the backup {change.backup} is gone; take {change.what} out of {path} yourself.")
    if not is_dry:
        if before is None:
            os.unlink(path)
        else:
            files.write(path, before, now)
        _drop_backup(change)
    now_is = "as it was before" if before is not None else "removed"
    return Undone(change, True, f"{path} {_was(is_dry, 'is')} {now_is}.")


def _without_ours(change: SetupChange, now: str) -> str | None:
    """The present text without what setup added; None where that cannot be told apart."""
    try:
        return toml_text.without(list(change.hunks), now) if change.kind == TOML else _without_entry(change, now)
    except NotEditable:
        return None


def _without_entry(change: SetupChange, now: str) -> str | None:
    there = json_text.value_at(json_text.read(now), change.entry)
    if there is None:
        return now
    # A client may have added keys of its own, such as empty arguments.
    if not isinstance(there, dict) or there.get("command") != json.loads(change.value).get("command"):
        return None
    return json_text.restore(now, change.entry, _replaced(change))


def _replaced(change: SetupChange) -> Any:
    """The entry that ours has taken the place of, as the backup has it; None for none. Raises NotEditable."""
    # A table of TOML is never replaced.
    if change.kind == TOML or not change.backup:
        return None
    return json_text.value_at(json_text.read(files.read(Path(change.backup)) or ""), change.entry)


def _by_command(change: SetupChange, is_dry: bool) -> Undone:
    """Claude Code's own command takes out what it has put in; without it, its file is changed.

    An entry that was replaced is put back in the file: it may hold secrets, which everyone sees in a command's words.
    """
    client = next(client for client in clients.find() if client.key == "claude-code")
    now = files.read(Path(change.path))
    fresh = None if now is None else _without_ours(change, now)
    if not client.is_by_command or fresh in (None, now) or _replaced(change) is not None:
        return _restore(change, is_dry)
    if not is_dry:
        clients.run(["mcp", "remove", "--scope", "user", clients.NAME], client)
        _drop_backup(change)
    return Undone(change, True, f"{change.what} {_was(is_dry)} removed.")


def _was(is_dry: bool, otherwise: str = "was") -> str:
    return "would be" if is_dry else otherwise


def _kept(change: SetupChange) -> str:
    """A sentence that names the backup, where there is one."""
    return f" The file as it was before is {change.backup}." if change.backup and os.path.exists(change.backup) else ""


def _drop_backup(change: SetupChange) -> None:
    if change.backup:
        Path(change.backup).unlink(missing_ok=True)
