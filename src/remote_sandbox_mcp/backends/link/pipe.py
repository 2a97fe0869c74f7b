"""A child process as a Line: a socket pair is its input and output, and closing it leaves no process behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence

from ...local.processes import descriptors

# Reading pauses beyond MOST_UNREAD; after the process's end no more than MOST_LEFT is read.
MOST_UNREAD, MOST_LEFT = 1 << 20, 4 << 20
# How long a process that ends others before itself may take.
END_S = 15.0


class PipeLine(asyncio.Protocol):
    """A process that speaks the protocol on its input and output; its standard error is read, too, while it is open.

    A failed write closes asyncio's transport and loses what was not read yet. So the rest is read from a second
    descriptor; otherwise the error message of a process that ends at once would be seen or lost by chance.
    """

    def __init__(self, near: socket.socket, ends_by_itself: bool = False) -> None:
        self._ends_by_itself = ends_by_itself
        self._rest = near.dup()
        self._process: subprocess.Popen[bytes] | None = None
        self._transport: asyncio.Transport | None = None
        self._unread: deque[bytes] = deque()
        self._unread_bytes = 0
        self._ended = False
        self._news = asyncio.Event()
        self._flowing = asyncio.Event()
        self._flowing.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(MOST_UNREAD)

    def data_received(self, data: bytes) -> None:
        self._unread.append(data)
        self._unread_bytes += len(data)
        self._news.set()
        if self._unread_bytes > MOST_UNREAD and self._transport:
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        with self._rest, contextlib.suppress(OSError):
            # Bounded, because a process that goes on writing would keep us here.
            for _ in range(MOST_LEFT // (1 << 16)):
                if data := self._rest.recv(1 << 16):
                    self._unread.append(data)
        self._ended = True
        self._news.set()
        self._flowing.set()

    def pause_writing(self) -> None:
        self._flowing.clear()

    def resume_writing(self) -> None:
        self._flowing.set()

    async def drain(self) -> None:
        await self._flowing.wait()

    def write(self, data: bytes) -> None:
        if self._transport and not self._transport.is_closing():
            self._transport.write(data)

    async def read(self) -> bytes:
        while not self._unread and not self._ended:
            self._news.clear()
            await self._news.wait()
        data = self._unread.popleft() if self._unread else b""
        self._unread_bytes -= len(data)
        if not self._unread and self._transport and not self._transport.is_closing():
            self._transport.resume_reading()
        return data

    def serves(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def close(self) -> None:
        """Kill the process and wait for it. Not by asyncio, whose child handling needs the loop to run on."""
        if self._transport:
            self._transport.abort()
        # After it was waited for, its pid may belong to another process.
        if self._process and self._process.returncode is None and not (self._ends_by_itself and _end(self._process)):
            _kill(self._process)

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    def status(self) -> int | None:
        """The exit status; None while it runs."""
        return self._process.poll() if self._process else None


def _end(process: subprocess.Popen[bytes]) -> bool:
    """Let a process end what it has started, and itself; returns whether it did in time."""
    process.terminate()
    # One that is stopped, as in a paused sandbox, would be killed below, and leave what it has started.
    process.send_signal(signal.SIGCONT)
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process with its group: the child of a bubblewrap that is killed at its start would wait for ever."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except PermissionError:
        # It runs as another user by now, as under sudo. It ends when its input closes, and the thread collects it.
        threading.Thread(target=process.wait, daemon=True).start()
        return
    process.wait()


async def start(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    inherited: Sequence[int] = (),
    *,
    folder: str = "/",
    complaints: int | None = None,
    ends_by_itself: bool = False,
) -> PipeLine:
    """Start a process in `folder`, without the server's terminal, and return the line to it. Raises OSError.

    Its standard error goes to the line, too, unless `complaints` is a descriptor for it. One that `ends_by_itself` is
    given time to end what it has started, before it is killed.
    """
    near, far = socket.socketpair()
    near.setblocking(False)
    with far:
        loop = asyncio.get_running_loop()
        _, line = await loop.create_connection(lambda: PipeLine(near, ends_by_itself), sock=near)
        try:
            line.serves(_spawn(arguments, environment, inherited, folder, far.fileno(), complaints))
        except OSError:
            line.close()
            raise
    return line


def _spawn(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    inherited: Sequence[int],
    folder: str,
    far: int,
    complaints: int | None,
) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        arguments,
        stdin=far,
        stdout=far,
        stderr=far if complaints is None else complaints,
        env=environment,
        cwd=folder,
        pass_fds=inherited,
        start_new_session=True,
    )
    descriptors.give_usual_limit(process.pid)
    return process
