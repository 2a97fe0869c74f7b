"""Command for a sandbox, and its results (Completed, Running, Missing)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

RUN_ID = re.compile(r"run-[a-z0-9]{8,32}\Z")


def new_run_id() -> str:
    """A new, random run id; it is also the handle that agents see."""
    import uuid

    return f"run-{uuid.uuid4().hex[:16]}"


@dataclass(frozen=True)
class Environment:
    """Environment of commands on one machine: the shell, its init lines, its variables."""

    # None of it is shown: people keep tokens in variables, and may do so here.
    shell: tuple[str, ...] = field(default=(), repr=False)
    init: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.env:
            from ..texts.shown import watch_variables

            watch_variables(self)

    def source(self, script: str) -> str:
        """The text that the shell runs: the machine's init lines, then the caller's script as it is."""
        text = "\n".join((*self.init, script))
        # A shell would take a first word like "-x" for an option of its own.
        return f" {text}" if text.startswith(("-", "+")) else text


@dataclass(frozen=True)
class Command:
    """One script for one shell. Of each stream, `keep` bytes are returned from its head and as many from its tail."""

    script: str
    cwd: str = ""
    timeout_s: float = 120.0
    keep: int = 40_000
    run_id: str = field(default_factory=new_run_id)
    # Only where the sandbox's capabilities allow it.
    as_root: bool = False
    # Its standard input: bytes are sent together with the start; a stream is passed on while the command runs.
    input: bytes | AsyncIterable[bytes] = field(default=b"", repr=False, compare=False)
    # Variables of this command alone, after those of its machine. Not shown: they may be secrets.
    env: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    # The user that runs it there; empty for the one that is logged in.
    user: str = ""

    async def whole_input(self, most: int) -> bytes:
        """Standard input up to its end, for a place that gives it to the command at once. Raises ValueError."""
        given = bytearray(self.input) if isinstance(self.input, bytes) else bytearray()
        if not isinstance(self.input, bytes):
            async for part in self.input:
                given += part
                if len(given) > most:
                    break
        if len(given) > most:
            raise ValueError(f"more than {most >> 20} MiB of standard input")
        return bytes(given)


class Ending(str, Enum):
    """Reason for the end of a run."""

    EXITED = "exited"
    TIMED_OUT = "timed_out"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Excerpt:
    """One output stream: its head, its tail, its total length, and the file that holds all of it."""

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
    """A run that is not there: it never started, was lost with its machine, or was dropped long ago."""

    run_id: str
    reason: str
    stdout: Excerpt = Excerpt()
    stderr: Excerpt = Excerpt()


Observation = Completed | Running | Missing
