"""Source of one client's configuration, and whether it has changed since it was read."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ..local.files import Fingerprint, fingerprint_of
from .load import load
from .schema import Configuration
from .services import NAME

# A file system's clock may lag by this much.
COARSE_NS = 20_000_000
CHANGING = (0, 0, 0)
KEPT = "Until that is corrected, what was configured before is in force."


class ConfigSource:
    """Files and variables, read again when they change. All methods look at files: call them in a thread."""

    def __init__(self, path: Path | None, environ: Mapping[str, str] = os.environ, folder: str = "") -> None:
        self._path = path
        self._environ = environ
        self._folder = folder
        self._fingerprint: Fingerprint = {}
        self._is_missed = False
        # The last usable configuration, with current problems added.
        self.current = Configuration()
        # The same without that.
        self._readable = Configuration()

    @property
    def project(self) -> str:
        """The config.json in the client's folder; empty where there was none when it was read."""
        path = os.path.join(self._folder, NAME)
        return path if os.path.abspath(path) in self._fingerprint else ""

    def read(self) -> Configuration:
        """Read the current configuration."""
        self.current = self._readable = self._read()
        return self.current

    def refresh(self) -> Configuration | None:
        """The new configuration, if it differs from the one before; else None.

        A file that cannot be used at the moment, perhaps because it is half written, changes nothing but `problems`.
        """
        now = fingerprint_of(self._fingerprint)
        if self._is_just_missed(now) or now == self._fingerprint:
            return None
        before, fresh = self.current, self._read()
        if fresh.unread and not before.unread:
            kept = self._readable
            fresh = replace(kept, problems=(*kept.problems, *(f"{fault} {KEPT}" for fault in fresh.unread)))
        else:
            self._readable = fresh
        if fresh == before:
            return None
        self.current = fresh
        return fresh

    def _read(self) -> Configuration:
        begun = time.time_ns() - COARSE_NS
        found = load(self._path, self._environ, self._folder)
        fingerprints = fingerprint_of(found.read_from)
        # A file that was written while it was read is checked once more.
        self._fingerprint = {
            path: CHANGING if fingerprint and fingerprint[0] >= begun else fingerprint
            for path, fingerprint in fingerprints.items()
        }
        return found

    def _is_just_missed(self, now: Fingerprint) -> bool:
        """Whether a file vanished since the last look: many programs delete a file and then write the new one."""
        is_missing = any(found is None and self._fingerprint[path] is not None for path, found in now.items())
        self._is_missed, was_missed = is_missing, self._is_missed
        return is_missing and not was_missed
