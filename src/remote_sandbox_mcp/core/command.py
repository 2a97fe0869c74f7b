"""What is asked of a sandbox (Command) and what came of it (Completed, Running, Missing)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

RUN_ID = re.compile(r"run-[a-z0-9]{8,32}\Z")


def new_run_id() -> str:
    """A name for a run that nobody has used before; it is also the handle that agents see."""
    import uuid

    return f"run-{uuid.uuid4().hex[:16]}"


@dataclass(frozen=True)
class Environment:
    """How commands are started on one machine: the shell, what it reads first, what it is given."""

    shell: tuple[str, ...] = ()
    init: tuple[str, ...] = ()
    # Not shown: variables are where people keep tokens.
    env: Mapping[str, str] = field(default_factory=dict, repr=False)

    def source(self, script: str) -> str:
        """The text that the shell runs: the machine's init lines, then the caller's script as it is."""
        text = "\n".join((*self.init, script))
        # A shell would take a first word like "-x" for an option of its own.
        return f" {text}" if text.startswith(("-", "+")) else text


@dataclass(frozen=True)
class Command:
    """One script for one shell. `keep` bytes of each stream come back from each end."""

    script: str
    cwd: str = ""
    timeout_s: float = 120.0
    keep: int = 40_000
    run_id: str = field(default_factory=new_run_id)


class Ending(str, Enum):
    """Why a run ended."""

    EXITED = "exited"
    TIMED_OUT = "timed_out"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Excerpt:
    """What is known of one output stream: its beginning, its end, how much there was, and where all of it is."""

    head: bytes = b""
    tail: bytes = b""
    total: int = 0
    file: str = ""

    @property
    def omitted(self) -> int:
        return max(0, self.total - len(self.head) - len(self.tail))


@dataclass(frozen=True)
class Completed:
    """A run that ended. `exit_code` is the shell's number for it (128 + n after signal n)."""

    run_id: str
    exit_code: int
    ending: Ending = Ending.EXITED
    signal: str = ""
    stdout: Excerpt = Excerpt()
    stderr: Excerpt = Excerpt()
    seconds: float = 0.0
    survivors: tuple[int, ...] = ()
    left_running: tuple[int, ...] = ()


@dataclass(frozen=True)
class Running:
    """A run that goes on; what it has printed so far."""

    run_id: str
    stdout: Excerpt = Excerpt()
    stderr: Excerpt = Excerpt()
    seconds: float = 0.0


@dataclass(frozen=True)
class Missing:
    """A run that is not there: never started, lost with its machine, or long forgotten."""

    run_id: str
    reason: str
    stdout: Excerpt = Excerpt()
    stderr: Excerpt = Excerpt()


Observation = Completed | Running | Missing
