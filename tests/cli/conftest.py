"""The installed command in a subprocess, with machines named in the environment as a user would name them."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support import warm
from tests.support.sshd import Fleet, Sshd

COMMAND = str(Path(sys.executable).with_name("remote-sandbox-mcp"))
DEADLINE_S = 40


@dataclass(frozen=True)
class Outcome:
    """What the command did."""

    code: int
    raw: bytes
    stderr: str
    seconds: float

    @property
    def stdout(self) -> str:
        return self.raw.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.raw)


def entry(sshd: Sshd, **changes: Any) -> dict[str, Any]:
    """A machine of the fleet as REMOTE_SANDBOX_LIST names it."""
    fields = {"name": sshd.name, "host": sshd.host, "port": sshd.port, "user": sshd.user}
    secret = {"password": sshd.password} if sshd.password else {"key_file": sshd.key_file}
    return fields | secret | changes


def nobody(name: str, port: int = 22, host: str = "127.0.0.1", **more: Any) -> dict[str, Any]:
    """A machine that cannot be logged in to."""
    return {"name": name, "host": host, "port": port, "user": "nobody", **more}


class Cli:
    """Runs the command; `machines` holds for every call that does not say otherwise."""

    command: tuple[str, ...] = (COMMAND,)

    def __init__(self) -> None:
        self.machines: list[dict[str, Any]] = []
        self.said: list[str] = []

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "REMOTE_SANDBOX_LIST": json.dumps(self.machines)}

    def __call__(self, *words: str, **environ: str) -> Outcome:
        begun = time.monotonic()
        line, env = [*self.command, *words], self.env | environ
        if self.is_forked(environ):
            done = warm.run(line, env, timeout=DEADLINE_S)
        else:
            done = subprocess.run(
                line, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=DEADLINE_S, check=False
            )
        stderr = done.stderr.decode()
        self.said += [done.stdout.decode("utf-8", "replace"), stderr]
        return Outcome(done.returncode, done.stdout, stderr, time.monotonic() - begun)

    def is_forked(self, environ: dict[str, str]) -> bool:
        """Whether it comes from a process that has loaded it, which is much faster."""
        return self.command == Cli.command and warm.may_fork(environ)

    def start(self, *words: str) -> warm.Heard:
        return warm.start([*self.command, *words], self.env)


def at_a_terminal(
    cli: Cli, *words: str, typed: bytes = b"", begun: Callable[[int], None] = lambda pid: None, **environ: str
) -> str:
    """What is seen on a terminal of the usual size, until the command ends; what it asks is answered already.

    Whoever has to know its process when it has begun gives a function for that.
    """
    terminal, inside = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    env = cli.env | {"TERM": "xterm"} | environ
    line = [*cli.command, *words]
    process: warm.Forked | subprocess.Popen[bytes]
    if cli.is_forked(environ):
        process = warm.at_a_terminal(line, env, inside)
    else:
        process = subprocess.Popen(line, env=env, stdin=inside, stdout=inside, stderr=inside)
    os.close(inside)
    begun(process.pid)
    os.write(terminal, typed)
    seen = bytearray()
    with suppress(OSError):
        # Reading fails when the last one who holds the other end is gone.
        while data := os.read(terminal, 65536):
            seen += data
    os.close(terminal)
    process.wait(DEADLINE_S)
    return seen.decode()


@pytest.fixture
def cli() -> Cli:
    return Cli()


@pytest.fixture
def good(cli: Cli, sshd: Sshd) -> Sshd:
    """A machine that all is well with, and the only one that is configured."""
    cli.machines = [entry(sshd)]
    return sshd


Maker = Callable[..., Sshd]


@pytest.fixture(scope="session")
def made(fleet: Fleet) -> Maker:
    """Machines of the session by their name, each made when it is first asked for."""
    known: dict[str, Sshd] = {}

    def make(name: str, **how: Any) -> Sshd:
        if name not in known:
            known[name] = fleet.machine(name, **how)
        return known[name]

    return make


@pytest.fixture
def with_password(made: Maker) -> Sshd:
    return made("vault", auth="password")
