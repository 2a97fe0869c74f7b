"""Taking sandboxes down: those that are deleted, and those whose time was over while no server ran."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from . import cgroups, disk, processes
from .shelf import Shelf, claim, read_record

# Without a lock to ask, it may be in the middle of its removal by another server.
ABANDONED_S = 60.0


def take_down(shelf: Shelf, disposable_id: str) -> None:
    """End all of its processes and remove all that is left of it; may be done twice, and by two at once."""
    record, home = shelf.read(disposable_id), shelf.box(disposable_id) / "home"
    # Out of sight first: a server whose line is cut by this must not open it again.
    aside = shelf.set_aside(disposable_id)
    group = cgroups.known(record.groups if record else ())
    if group.exists():
        group.end()
    else:
        processes.end(home)
    if aside:
        remove(aside)


def remove(aside: Path) -> None:
    record = read_record(aside)
    if record:
        cgroups.known(record.groups).end()
    for name in ("box", "runs"):
        disk.unmount(aside / name)
    disk.remove_tree(aside)


def sweep(shelf: Shelf, now: float) -> None:
    """Find what servers of before have left whose time is over, and end it. All others stay."""
    # One that resists, such as a folder of another user, is tried again at the next start.
    with contextlib.suppress(OSError):
        for aside in (*_set_aside(shelf, now), *filter(_is_abandoned, shelf.gone())):
            with contextlib.suppress(OSError):
                remove(aside)


def _set_aside(shelf: Shelf, now: float) -> Iterator[Path]:
    for disposable_id in shelf.ids():
        lock = claim(shelf.folder(disposable_id), alone=True)
        if lock is None:
            continue
        try:
            if not _may_stay(shelf, disposable_id, now) and (aside := shelf.set_aside(disposable_id)):
                yield aside
        finally:
            os.close(lock)


def _may_stay(shelf: Shelf, disposable_id: str, now: float) -> bool:
    record = shelf.read(disposable_id)
    if record is None or 0 < record.made.expires <= now:
        return False
    # Frozen processes outlive their server.
    cgroups.known(record.groups).end()
    if record.made.status == "paused":
        shelf.write(replace(record, made=replace(record.made, status="running")))
    return True


def _is_abandoned(aside: Path) -> bool:
    try:
        if (aside / "lock").exists():
            lock = claim(aside, alone=True)
            if lock is not None:
                os.close(lock)
            return lock is not None
        return time.time() - aside.stat().st_ctime > ABANDONED_S
    except OSError:
        return False
