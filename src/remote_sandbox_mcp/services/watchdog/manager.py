"""Service managers' common parts: the program they start, their commands, files and answers."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from ...config.paths import HOME
from ...core.errors import ConfigError, SandboxError
from ...core.texts.text import last_line
from ...local.processes.process import is_in_cache, module_words
from ...local.processes.programs import find_helper
from ...local.processes.variables import DESKTOP, made
from ...local.waiting import within

# How long a command of a service manager may take.
CALL_S = 20.0


@dataclass(frozen=True)
class ManagerOutput:
    """Output and exit code of a command."""

    words: tuple[str, ...]
    code: int
    stdout: str
    complaint: str

    def needed(self) -> ManagerOutput:
        """Returns itself if the command succeeded. Raises SandboxError."""
        if self.code:
            why = self.complaint or f"it ended with {self.code}"
            raise SandboxError(f"unable to run {' '.join(self.words)}: {why}")
        return self


async def call(*words: str, env: Mapping[str, str] = os.environ, limit_s: float = CALL_S) -> ManagerOutput:
    """Run a command of the system's to its end. A missing one, or one that takes too long, counts as failed."""
    if not (program := find_helper(words[0])):
        return ManagerOutput(words, 127, "", f"{words[0]} is not installed")
    try:
        process = await asyncio.create_subprocess_exec(
            program, *words[1:], env=made(env, DESKTOP), stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
    except OSError as error:
        return ManagerOutput(words, 127, "", error.strerror or str(error))
    try:
        stdout, stderr = await within(process.communicate(), limit_s)
    except BaseException as problem:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if isinstance(problem, asyncio.TimeoutError):
            return ManagerOutput(words, 124, "", f"no answer in {limit_s:g} s")
        raise
    return ManagerOutput(words, process.returncode or 0, stdout.decode("utf-8", "replace"), last_line(stderr))


def put(file: Path, content: bytes) -> None:
    """Write a file atomically, with its parent folders. Raises ConfigError."""
    part = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)
        os.replace(part, file)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise ConfigError(f"unable to write {file}: {error.strerror or error}") from error


def must_be_text(paths: Iterable[str]) -> None:
    """Raises ConfigError for a path that a text file cannot contain."""
    for path in paths:
        try:
            path.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"{path!a} is no text, so no service can be told of it; give it another name") from None


def take_away(file: Path) -> None:
    """Remove a file. Raises ConfigError where it stays."""
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"unable to remove {file}: {error.strerror or error}") from error


@dataclass(frozen=True)
class Program:
    """The hub of one state folder, as a service. `home` is that folder if the user chose it, else empty."""

    state: Path
    words: tuple[str, ...]
    home: str = ""
    config: Path | None = None
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def suffix(self) -> str:
        """Distinguishes its service from that of another state folder; empty for the default one."""
        # Eight digits suffice to tell a user's few state folders apart, and keep the name of the unit short.
        return f"-{hashlib.sha256(self.home.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}" if self.home else ""


def make_program(state: Path, config: Path | None, environ: Mapping[str, str] = os.environ) -> Program:
    """The program as this process would start it; paths become absolute, because it starts in another folder."""
    given = ("--config", os.path.abspath(os.path.expanduser(config))) if config else ()
    words = (*module_words("remote_sandbox_mcp"), *given, "watchdog", "run")
    return Program(state, words, str(state) if environ.get(HOME) else "", config, environ)


def fixed(program: Program) -> dict[str, str]:
    """Variables for the service: without them it would not find the proxies and hooks of the user's shell."""
    # Only these: the rest of the environment may hold secrets, and would be written to a file.
    own = {name: program.environ[name] for name in ("PATH", "PYTHONPATH") if program.environ.get(name)}
    return own | ({HOME: program.home} if program.home else {})


def is_passing(program: Program) -> bool:
    """Whether the program is in a cache (uvx), from which it may be removed one day."""
    return is_in_cache(program.words[0])


Kind = Literal["launchd", "systemd", "hub"]


def which(platform: str, has_systemd_user: bool, has_launchd: bool) -> Kind:
    """The kind of service for this system."""
    if platform == "darwin" and has_launchd:
        return "launchd"
    return "systemd" if platform.startswith("linux") and has_systemd_user else "hub"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """State of the watchdog as the service manager reports it; `lingering` is None where that does not exist."""

    enabled: bool = False
    active: bool = False
    pid: int = 0
    lingering: bool | None = None


class Service(Protocol):
    """One kind of service. Methods raise SandboxError."""

    kind: str

    def is_installed(self) -> bool:
        """Whether it starts by itself; answered without running a command."""

    async def install(self, start_now: bool) -> None: ...

    async def start(self) -> None: ...

    async def remove(self) -> None: ...

    async def facts(self) -> Facts: ...
