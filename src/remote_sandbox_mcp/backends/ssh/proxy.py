"""A ProxyCommand: a program of the user's whose input and output are the connection to a machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncssh

# Referenced until they are done: the event loop itself would forget them.
_ending: set[asyncio.Task[None]] = set()


class Proxy:
    """The program, and our end of the line to it. asyncssh could start it, but only with this process's variables."""

    def __init__(self, line: socket.socket, process: asyncio.subprocess.Process) -> None:
        self.line = line
        self._process = process

    @classmethod
    async def start(cls, words: Sequence[str], environ: Mapping[str, str] | None) -> Proxy:
        """Raises OSError."""
        near, far = socket.socketpair()
        near.setblocking(False)
        with far:
            try:
                variables = None if environ is None else dict(environ)
                process = await asyncio.create_subprocess_exec(
                    *words, stdin=far.fileno(), stdout=far.fileno(), env=variables, start_new_session=True
                )
            except BaseException:
                near.close()
                raise
        return cls(near, process)

    def end(self) -> None:
        """With all that it has started: most are a shell that runs the real one."""
        self.line.close()
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def end_with(self, connection: asyncssh.SSHClientConnection) -> None:
        task = asyncio.ensure_future(self._end_with(connection))
        _ending.add(task)
        task.add_done_callback(_ending.discard)

    async def _end_with(self, connection: asyncssh.SSHClientConnection) -> None:
        try:
            await connection.wait_closed()
        finally:
            self.end()
