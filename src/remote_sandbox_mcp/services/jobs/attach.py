"""A person's terminal in the tmux session of a job: a program beside the job, and one connection to it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from ...core.check import LONGEST_TIMEOUT_S
from ...core.commands.command import Command, Completed, Running
from ...core.commands.shell import join
from ...core.errors import Unsupported
from ...core.progress import Beat, StreamName
from ...core.sandboxes.port import Stream
from ...core.sandboxes.sandbox import Sandbox
from ...core.texts.text import last_line
from ...far.program import read_program

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
        """Read the next output of the terminal; b"" after its last. Raises Unreachable."""
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
        """Ignore the beat: the announcement is waited for by its line alone."""

    def heard(self, stream: StreamName, data: bytes) -> None:
        self._said += data if stream == "stdout" else b""
        if b"\n" in self._said and not self.line.done():
            self.line.set_result(self._said.partition(b"\n")[0].decode("ascii", "replace"))


async def attach(sandbox: Sandbox, session: str, window: Window) -> Attached:
    """Show a tmux session of the sandbox in a terminal of this size. Raises Unsupported, ConnectError."""
    words = ("tmux", "-u", "attach-session", "-t", f"={session}")
    return await _attach(sandbox, words, window, f"{session} on {sandbox.description.name} cannot be attached to")


async def open_shell(sandbox: Sandbox, window: Window) -> Attached:
    """The user's login shell in a terminal of this size. Raises Unsupported, ConnectError."""
    return await _attach(sandbox, (), window, f"no shell can be opened on {sandbox.description.name}")


async def _attach(sandbox: Sandbox, words: Sequence[str], window: Window, trouble: str) -> Attached:
    """Show a program, or else the login shell; `trouble` begins the sentence that says why that is not possible."""
    announcement = Announcement()
    command = Command(script(window.term, words), timeout_s=LONGEST_TIMEOUT_S, keep=MOST_SAID)
    running = asyncio.ensure_future(sandbox.run(command, progress=announcement))

    async def end(seconds: float = END_S) -> int | None:
        code = await ended(running, seconds)
        # What it printed has the key.
        sandbox.forget(command.run_id)
        return code

    try:
        await asyncio.wait((running, announcement.line), timeout=BEGIN_S, return_when=asyncio.FIRST_COMPLETED)
        port, key = read_announcement(announcement, running, trouble)
        stream = await sandbox.connect(port)
    except BaseException:
        await end()
        raise
    stream.write(key.encode("ascii", "replace") + b"\n" + window.message())
    return Attached(stream, end)


def read_announcement(
    announcement: Announcement, running: asyncio.Task[Completed | Running], trouble: str
) -> tuple[int, str]:
    """The port and the key. Raises Unsupported."""
    said = announcement.line.result() if announcement.line.done() else ""
    port, _, key = said.partition(" ")
    if port.isdecimal() and len(port) <= 5 and key:
        return int(port), key
    done = running.result() if running.done() else None
    why = last_line(done.stderr.head) if done else ""
    raise Unsupported(f"{trouble}: {why or 'it gives no terminal'}")


async def ended(running: asyncio.Task[Completed | Running], seconds: float) -> int | None:
    """End the program there, if it has not ended with its connection; returns its exit code, if that is known."""
    await asyncio.wait((running,), timeout=seconds)
    running.cancel()
    (done,) = await asyncio.gather(running, return_exceptions=True)
    return done.exit_code if isinstance(done, Completed) else None


def message(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">cI", kind, len(body)) + body


def script(term: str, words: Sequence[str]) -> str:
    """Runs the program in this sandbox, for one terminal."""
    return f"exec {join(['python3', '-c', read_program('terminal.py'), term, *words])}"
