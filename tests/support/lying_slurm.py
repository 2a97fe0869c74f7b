"""A login node whose programs of Slurm lie: our real far program on a pipe, with these programs first in its PATH."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from remote_sandbox_mcp.backends.link.client import OutpostClient
from remote_sandbox_mcp.backends.link.sandbox import OutpostSandbox
from remote_sandbox_mcp.core.commands.command import Environment
from remote_sandbox_mcp.core.sandboxes.sandbox import Capabilities, Description
from remote_sandbox_mcp.far import program
from tests.support.pipe import SYSTEM_PATH, Pipe

PROGRAMS = ("sbatch", "squeue", "sacct", "scontrol", "scancel", "sinfo", "srun")
UNIT = "\x1f"
# As squeue is asked for them: see ROW_FIELDS of jobqueue.py.
ROW = {
    "number": "41",
    "job": "41",
    "element": "N/A",
    "state": "PENDING",
    "reason": "Priority",
    "start": "N/A",
    "end": "N/A",
    "partition": "main",
    "nodes": "",
    "dependency": "(null)",
    "submitted": "1794865309",
    "command": "/elsewhere/script",
    "comment": "(null)",
    "name": "somebody",
}
# Each call is noted, whole; then the lie is told. A version is asked for once, and with long patience.
_SCRIPT = """#!/bin/sh
[ "$1" != --version ] || { echo 'slurm 22.05.8'; exit; }
{ printf '%s\\037' "$@"; printf '\\036'; } >>"$0.calls"
[ ! -e "$0.out" ] || cat "$0.out"
[ ! -e "$0.then" ] || . "$0.then"
"""
# Short patience for programs that hang, taught to the far side as it is taught any other verb.
_IMPATIENT = b"""
SBATCH_S = SQUEUE_S = SCANCEL_S = LOGIN_SHELL_S = 0.4
LONGEST_WAIT_S = 0.2
END_SHOWS_S = 0.1
"""


def row_of(**fields: str) -> str:
    return UNIT.join({**ROW, **fields}.values())


@dataclass(frozen=True)
class Lie:
    """What a program prints, and what it does then: a line of shell."""

    out: bytes = b""
    then: str = "exit 0"


HANGS, FAILS = "exec sleep 30", "exit 1"
ENDLESS = 'exec yes "$(tr -d "\\0" <"$0.out")"'


class LyingPrograms:
    """Programs of Slurm in a folder; what they say is set anew for each call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        for name in PROGRAMS:
            path = folder / "bin" / name
            path.write_text(_SCRIPT)
            path.chmod(0o755)

    @property
    def environ(self) -> dict[str, str]:
        return {"PATH": f"{self.folder / 'bin'}:{SYSTEM_PATH}", "HOME": str(self.folder)}

    def lie(self, **lies: Lie) -> None:
        """From now on."""
        for name in PROGRAMS:
            told = lies.get(name, Lie())
            (self.folder / "bin" / f"{name}.out").write_bytes(told.out)
            (self.folder / "bin" / f"{name}.then").write_text(told.then)
            (self.folder / "bin" / f"{name}.calls").unlink(missing_ok=True)

    def calls(self, name: str) -> list[list[str]]:
        """The words of each call of a program."""
        path = self.folder / "bin" / f"{name}.calls"
        said = path.read_bytes().decode("utf-8", "surrogateescape") if path.exists() else ""
        return [call.split("\x1f")[:-1] for call in said.split("\x1e")[:-1]]


class LoginNode(LyingPrograms):
    """One real outpost with these programs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._place = f"torment-{secrets.token_hex(4)}"
        self._pipes: list[Pipe] = []
        capabilities = Capabilities(survives_disconnect=True, kills_trees=True)
        self.sandbox = OutpostSandbox(
            Description("login", "pipe", capabilities=capabilities), Environment(), self._outpost, queue_rate_s=0.5
        )

    @property
    def base(self) -> Path:
        return Path(f"/tmp/remote-sandbox-{os.getuid()}-{self._place}")

    def lie(self, **lies: Lie) -> None:
        """From now on; what the far side remembers of the queue is forgotten."""
        for name in ("queue", "sacct", "outputs"):
            (self.base / name).unlink(missing_ok=True)
        super().lie(**lies)

    async def _outpost(self) -> OutpostClient:
        token = secrets.token_hex(16)
        environment = {**self.environ, "REMOTE_SANDBOX_PLACE": self._place}
        process = await asyncio.create_subprocess_exec(
            *_python(token), env=environment, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, limit=1 << 20,
        )  # fmt: skip
        pipe = Pipe(process)
        self._pipes.append(pipe)
        client = OutpostClient(pipe, "login")
        pipe.write(program.packed())
        await client.greet(token)
        return client

    async def open(self) -> None:
        self.lie(scontrol=Lie(b"ClusterName = torment\n"))
        await self.sandbox.jobs.list()
        client = self.sandbox.connection
        assert isinstance(client, OutpostClient)
        await client.ask({"verb": "learn"}, zlib.compress(_IMPATIENT))

    async def close(self) -> None:
        await self.sandbox.close()
        for pipe in self._pipes:
            await pipe.end()
        shutil.rmtree(self.base, ignore_errors=True)


def _python(token: str) -> Sequence[str]:
    return [sys.executable, "-IS", "-c", program.loader(), token]


@asynccontextmanager
async def login_node(folder: Path) -> AsyncIterator[LoginNode]:
    node = LoginNode(folder)
    try:
        await node.open()
        yield node
    finally:
        await node.close()
