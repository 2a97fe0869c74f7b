"""What a service starts: the daemon's words, the few variables that it needs, and names of its own."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..config.paths import HOME, NO_HUB
from ..tasks.process import module_words

# Whatever else is set may be a secret, or of a session that will be gone.
LOGIN = ("HOME", "PATH", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
SESSION = ("SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "WAYLAND_DISPLAY")
OWN = ("PYTHONPATH", HOME, NO_HUB)
KEPT = frozenset((*LOGIN, *SESSION, *OWN))
KEPT_PREFIX = "XDG_"


@dataclass(frozen=True)
class Program:
    """The daemon of one state folder. `home` is that folder where the user has named it, else empty."""

    state: Path
    words: tuple[str, ...]
    home: str = ""
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def suffix(self) -> str:
        """What tells its service from that of another state folder; the usual one has none."""
        return f"-{hashlib.sha256(self.home.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}" if self.home else ""


def make_program(state: Path, config: Path | None, environ: Mapping[str, str] = os.environ) -> Program:
    """The program as this process would start it; paths are made absolute, for it is started elsewhere."""
    given = ("--config", os.path.abspath(os.path.expanduser(config))) if config else ()
    words = (*module_words("remote_sandbox_mcp"), *given, "watchdog", "run")
    return Program(state, words, str(state) if environ.get(HOME) else "", environ)


def needed(environ: Mapping[str, str]) -> dict[str, str]:
    """Of these variables those that the daemon needs."""
    return {name: value for name, value in environ.items() if name in KEPT or name.startswith(KEPT_PREFIX)}


def fixed(program: Program) -> dict[str, str]:
    """Of them those that a service must be told: it would not find the proxies and hooks that the user's shell does."""
    own = {name: program.environ[name] for name in ("PATH", "PYTHONPATH", NO_HUB) if program.environ.get(name)}
    return own | ({HOME: program.home} if program.home else {})


def is_passing(program: Program) -> bool:
    """Whether it lies in a cache (uvx), from where it may be gone one day."""
    return "/uv/archive-v" in program.words[0]
