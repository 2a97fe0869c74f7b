"""An outpost on a pipe, run by an ordinary user of the fleet: no SSH in between."""

from __future__ import annotations

import asyncio
import os
import pwd
import re
import secrets
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from remote_sandbox_mcp.backends.link.client import OutpostClient
from remote_sandbox_mcp.backends.link.sandbox import OutpostSandbox
from remote_sandbox_mcp.core.commands.command import Environment
from remote_sandbox_mcp.core.sandboxes.sandbox import Capabilities, Description
from remote_sandbox_mcp.far import program
from tests.support.root import as_root
from tests.support.sshd import Sshd, wait_until

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"


class Pipe:
    """A child process as a Line; what it complains about is kept."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        self._process = process
        self._stdin, self._stdout = process.stdin, process.stdout
        self._complaints = asyncio.ensure_future(process.stderr.read())

    def write(self, data: bytes) -> None:
        if not self._stdin.is_closing():
            self._stdin.write(data)

    async def read(self) -> bytes:
        return await self._stdout.read(1 << 18)

    def close(self) -> None:
        """As when a line is cut: the far side finds the end of its input."""
        self._stdin.close()

    async def end(self) -> tuple[int, str]:
        """Close, and wait for the process: its exit code, and its complaints."""
        self.close()
        complaints = await asyncio.wait_for(self._complaints, 15)
        code = await asyncio.wait_for(self._process.wait(), 15)
        # What nobody has read to its end would be complained about later.
        self._process._transport.close()  # type: ignore[attr-defined]
        return code, complaints.decode("utf-8", "replace")


class PipeMachine:
    """A machine's user, for whom any number of outposts can be started; all end with it."""

    def __init__(self, sshd: Sshd) -> None:
        self.sshd = sshd
        self.python = "python3"
        self.pipes: list[Pipe] = []

    @property
    def base(self) -> Path:
        """Where runs usually live."""
        return Path(f"/tmp/remote-sandbox-{self.sshd.uid}")

    def folder(self, run_id: str) -> Path:
        return self.base / run_id

    async def start(self, *argv: str) -> Pipe:
        process = await asyncio.create_subprocess_exec(
            *as_user(self.sshd, argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            limit=1 << 20,
        )
        self.pipes.append(Pipe(process))
        return self.pipes[-1]

    async def outpost(self, noise: str = "") -> OutpostClient:
        """A new outpost, after what a start-up file might have printed or done."""
        token = secrets.token_hex(16)
        argv = [self.python, "-IS", "-c", program.loader(), token]
        pipe = await self.start("sh", "-c", f'{noise}\nexec "$@"', "sh", *argv)
        client = OutpostClient(pipe)
        pipe.write(program.packed())
        await client.greet(token)
        return client

    def sandbox(self) -> OutpostSandbox:
        capabilities = Capabilities(survives_disconnect=True, kills_trees=True)
        return OutpostSandbox(Description("pipe", "pipe", capabilities=capabilities), Environment(), self.outpost)

    def kill(self, *pids: int) -> None:
        """At once, and without a word; on return they are dead."""
        argv = as_user(self.sshd, ["kill", "-KILL", *map(str, pids)])
        # One that has ended meanwhile makes kill fail, and is none the worse for it.
        subprocess.run(argv, check=False, capture_output=True)
        wait_until(lambda: not self.sshd.processes().keys() & set(pids), what="them to die")

    async def end(self) -> None:
        await asyncio.gather(*(pipe.end() for pipe in self.pipes))


@asynccontextmanager
async def pipe_machine(sshd: Sshd) -> AsyncIterator[PipeMachine]:
    machine = PipeMachine(sshd)
    try:
        yield machine
    finally:
        await machine.end()


def as_user(sshd: Sshd, argv: Sequence[str]) -> list[str]:
    """Run a program as a machine's user, with a clean environment."""
    ids = [f"--reuid={sshd.uid}", f"--regid={pwd.getpwuid(sshd.uid).pw_gid}", "--clear-groups"]
    # A Python may be installed in another user's home: it may be read there, and nothing may be written.
    reading = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    privileges = reading if any(word.startswith("/root/") for word in argv) else []
    environment = ["env", "-i", f"HOME={sshd.home}", f"PATH={SYSTEM_PATH}", f"USER={sshd.user}"]
    return as_root("setpriv", *ids, *privileges, *environment, *argv)


def pythons() -> list[str]:
    """Every Python 3 of this machine, by version: on PATH, and of pyenv."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    folders = [Path(name) for name in os.environ.get("PATH", "").split(":")] + sorted(root.glob("versions/*/bin"))
    found = (path for folder in folders if folder.name != "shims" and folder.is_dir() for path in folder.iterdir())
    named = {str(path.resolve()) for path in found if re.fullmatch(r"python3\.\d+", path.name)}
    return sorted(named, key=lambda path: (int(path.rpartition(".")[2]), path))
