"""Remembers on which machines programs can run that were compiled here: compiling them there delays each login."""

from __future__ import annotations

from ...core.sandboxes.machine import Machine
from ...far.program import MAGIC
from .host_keys import entry_name

# Only in memory: a process that has just begun would have to compile the programs itself.
_WITH_OURS: set[str] = set()


class FarPython:
    """Knowledge of one machine's Python. It is a guess, which the loader checks there."""

    def __init__(self, machine: Machine) -> None:
        self._key = f"{machine.login.user}@{entry_name(machine.host, machine.port)} {machine.python}"
        self._is_refused = False

    def is_ours(self) -> bool:
        """Whether compiled programs may be sent."""
        return not self._is_refused and self._key in _WITH_OURS

    def refuse(self) -> None:
        """Note that a loader found another Python, whatever the machine says of it."""
        self._is_refused = True
        _WITH_OURS.discard(self._key)

    def note(self, magic: object) -> None:
        """Remember the magic number of a greeting."""
        if magic == MAGIC and not self._is_refused:
            _WITH_OURS.add(self._key)
        else:
            _WITH_OURS.discard(self._key)
