"""A person's terminal in the tmux session of a job: a program beside the job, and one connection to it."""

from __future__ import annotations

import asyncio
import functools
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import resources

from ..core.check import LONGEST_TIMEOUT_S
from ..core.command import Command, Completed, Running
from ..core.errors import Unsupported
from ..core.port import Stream
from ..core.progress import Beat, StreamName
from ..core.sandbox import Sandbox
from ..core.shell import join
from ..core.text import last_line

# How long the program there may take to begin, and to end when its terminal is closed.
BEGIN_S, END_S = 20.0, 1.0
# How long its exit code may take to come after the last that it showed.
CODE_S = 10.0
MOST_SAID = 4096


@dataclass(frozen=True)
class Window:
    """The size of a terminal, in characters, and its kind as TERM names it."""

    rows: int
    columns: int
    term: str = "xterm-256color"

    def message(self) -> bytes:
        most = 2**16 - 1
        return message(b"w", struct.pack(">HH", min(max(self.rows, 1), most), min(max(self.columns, 1), most)))


class Attached:
    """A terminal that shows a job. Closing it detaches; the job goes on."""

    def __init__(self, stream: Stream, end: Callable[[float], Awaitable[int | None]]) -> None:
        self._stream = stream
        self._end = end
        # Whether tmux there has ended by itself, so that its exit code is on its way.
        self._is_over = False

    async def read(self) -> bytes:
        """What the terminal shows next; b"" after its last. Raises Unreachable."""
        data = await self._stream.read()
        self._is_over = self._is_over or not data
        return data

    async def type(self, data: bytes) -> None:
        self._stream.write(message(b"b", data))
        await self._stream.drain()

    def resize(self, window: Window) -> None:
        self._stream.write(window.message())

    async def close(self) -> int | None:
        """Detach; returns the exit code of tmux, which is 0 if it was left in order, or None if it is not known."""
        self._stream.close()
        return await self._end(CODE_S if self._is_over else END_S)


class Announcement:
    """Takes the first line that the program prints: its port, and the key of its connection."""

    def __init__(self) -> None:
        self.line: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._said = b""

    def __call__(self, beat: Beat, /) -> None:
        """It is waited for by its line alone."""

    def heard(self, stream: StreamName, data: bytes) -> None:
        self._said += data if stream == "stdout" else b""
        if b"\n" in self._said and not self.line.done():
            self.line.set_result(self._said.partition(b"\n")[0].decode("ascii", "replace"))


async def attach(sandbox: Sandbox, session: str, window: Window) -> Attached:
    """Show a tmux session of the sandbox in a terminal of this size. Raises Unsupported, ConnectError."""
    announcement = Announcement()
    command = Command(script(session, window.term), timeout_s=LONGEST_TIMEOUT_S, keep=MOST_SAID)
    running = asyncio.ensure_future(sandbox.run(command, progress=announcement))

    async def end(seconds: float = END_S) -> int | None:
        code = await ended(running, seconds)
        # What it printed has the key.
        sandbox.forget(command.run_id)
        return code

    try:
        await asyncio.wait((running, announcement.line), timeout=BEGIN_S, return_when=asyncio.FIRST_COMPLETED)
        port, key = read_announcement(announcement, running, f"{session} on {sandbox.description.name}")
        stream = await sandbox.connect(port)
    except BaseException:
        await end()
        raise
    stream.write(key.encode("ascii", "replace") + b"\n" + window.message())
    return Attached(stream, end)


def read_announcement(
    announcement: Announcement, running: asyncio.Task[Completed | Running], who: str
) -> tuple[int, str]:
    """The port and the key. Raises Unsupported."""
    said = announcement.line.result() if announcement.line.done() else ""
    port, _, key = said.partition(" ")
    if port.isdecimal() and len(port) <= 5 and key:
        return int(port), key
    done = running.result() if running.done() else None
    why = last_line(done.stderr.head) if done else ""
    raise Unsupported(f"{who} cannot be attached to: {why or 'its machine gives no terminal'}")


async def ended(running: asyncio.Task[Completed | Running], seconds: float) -> int | None:
    """End the program there, if it has not ended with its connection; returns its exit code, if that is known."""
    await asyncio.wait((running,), timeout=seconds)
    running.cancel()
    (done,) = await asyncio.gather(running, return_exceptions=True)
    return done.exit_code if isinstance(done, Completed) else None


def message(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">cI", kind, len(body)) + body


def script(session: str, term: str) -> str:
    """Runs the program in this sandbox, for one session."""
    return f"exec {join(['python3', '-c', program(), session, term])}"


@functools.cache
def program() -> str:
    return resources.files(__package__).joinpath("far/terminal.py").read_text(encoding="utf-8")
