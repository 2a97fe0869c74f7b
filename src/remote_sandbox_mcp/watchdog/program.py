"""What a service starts: the hub's words, the few variables that it is told, and names of its own."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..config.paths import HOME
from ..tasks.process import module_words


@dataclass(frozen=True)
class Program:
    """The hub of one state folder, as a service. `home` is that folder where the user has named it, else empty."""

    state: Path
    words: tuple[str, ...]
    home: str = ""
    config: Path | None = None
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def suffix(self) -> str:
        """What tells its service from that of another state folder; the usual one has none."""
        return f"-{hashlib.sha256(self.home.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}" if self.home else ""


def make_program(state: Path, config: Path | None, environ: Mapping[str, str] = os.environ) -> Program:
    """The program as this process would start it; paths are made absolute, for it is started elsewhere."""
    given = ("--config", os.path.abspath(os.path.expanduser(config))) if config else ()
    words = (*module_words("remote_sandbox_mcp"), *given, "watchdog", "run")
    return Program(state, words, str(state) if environ.get(HOME) else "", config, environ)


def fixed(program: Program) -> dict[str, str]:
    """The variables that a service must be told: it would not find the proxies and hooks that the user's shell does."""
    own = {name: program.environ[name] for name in ("PATH", "PYTHONPATH") if program.environ.get(name)}
    return own | ({HOME: program.home} if program.home else {})


def is_passing(program: Program) -> bool:
    """Whether it lies in a cache (uvx), from where it may be gone one day."""
    return "/uv/archive-v" in program.words[0]
