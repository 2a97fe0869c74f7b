"""Remembers on which machines programs can run that were compiled here: compiling them there delays each login."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from pathlib import Path

from ...core.sandboxes.machine import Machine
from ...far.program import MAGIC, compiled
from ...local.waiting import Chores
from .host_keys import entry_name

# The file beside our known_hosts: the last magic number of each machine's Python.
FILE = "pythons.json"
MOST_REMEMBERED = 1000
_compiling = Chores("compiling the outpost")


class FarPython:
    """What is known of one machine's Python. It is a guess, which the loader checks there."""

    def __init__(self, file: Path, machine: Machine) -> None:
        self._file = file
        self._key = f"{machine.login.user}@{entry_name(machine.host, machine.port)} {machine.python}"
        self._is_refused = False
        self._is_ours: bool | None = None

    def is_ours(self) -> bool:
        """Whether compiled programs may be sent."""
        if self._is_ours is None:
            self._is_ours = self._read().get(self._key) == MAGIC
        return self._is_ours

    def prepare(self) -> None:
        """Compile the outpost during the login, where it has not been compiled."""
        if self.is_ours():
            _compiling.start(asyncio.to_thread(compiled))

    def refuse(self) -> None:
        """Note that a loader found another Python, whatever the machine says of it."""
        self._is_refused = True
        self._keep("")

    def note(self, magic: object) -> None:
        """Remember the magic number of a greeting; the file is written only if that is news."""
        if not self._is_refused and (magic == MAGIC) != self.is_ours():
            self._keep(MAGIC if magic == MAGIC else "")

    def _keep(self, magic: str) -> None:
        self._is_ours = bool(magic)
        others = {key: said for key, said in self._read().items() if key != self._key}
        kept = dict([*others.items(), (self._key, magic)][-MOST_REMEMBERED:])
        fresh = self._file.with_name(f"{FILE}.{os.getpid()}")
        # Where it cannot be kept, the next process sends source, as to a new machine.
        with contextlib.suppress(OSError):
            fresh.write_text(json.dumps(kept), encoding="utf-8")
            fresh.replace(self._file)

    def _read(self) -> dict[str, object]:
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}
