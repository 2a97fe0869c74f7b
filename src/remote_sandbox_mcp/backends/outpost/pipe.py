"""A child process as a Line: one socket both ways, and an end that leaves no process and no transport behind."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Mapping, Sequence

READ_BYTES = 1 << 18


class PipeLine:
    """A process that speaks on its input and output. Its complaints are heard too, until it closes them itself."""

    def __init__(
        self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer

    def write(self, data: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(data)

    async def read(self) -> bytes:
        try:
            return await self._reader.read(READ_BYTES)
        except OSError:
            return b""

    def close(self) -> None:
        """Killed, and waited for: asyncio's own child handling would need the loop to live on for that."""
        self._writer.transport.abort()
        self._process.kill()
        self._process.wait()


async def start(arguments: Sequence[str], environment: Mapping[str, str], inherited: Sequence[int] = ()) -> PipeLine:
    """Start a process on a line, away from the server's terminal. Raises OSError."""
    near, far = socket.socketpair()
    with far:
        reader, writer = await asyncio.open_connection(sock=near, limit=READ_BYTES)
        try:
            process = _spawn(arguments, environment, inherited, far.fileno())
        except OSError:
            writer.transport.abort()
            raise
    return PipeLine(process, reader, writer)


def _spawn(
    arguments: Sequence[str], environment: Mapping[str, str], inherited: Sequence[int], far: int
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        arguments,
        stdin=far,
        stdout=far,
        stderr=far,
        env=environment,
        cwd="/",
        pass_fds=inherited,
        start_new_session=True,
    )
