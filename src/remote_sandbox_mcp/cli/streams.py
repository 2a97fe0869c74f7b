"""Terminal, variables, folder and signals of whoever called a verb: this process itself, or a client of the hub."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import io
import os
import select
import signal
import stat
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar, copy_context
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from ..app import App

# SIGHUP comes when the terminal is closed.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


# Bytes that may wait for a slow reader, and those of one read of the input.
MOST_WAITING, ONE_READ = 1 << 20, 1 << 16


class Caller:
    """Process that was started for one verb, as its caller."""

    # The app of a process that serves many verbs; it stays open after each.
    app: App | None = None

    @property
    def stdin(self) -> TextIO:
        return sys.stdin

    @property
    def stdout(self) -> TextIO:
        return sys.stdout

    @property
    def stderr(self) -> TextIO:
        return sys.stderr

    @property
    def environ(self) -> Mapping[str, str]:
        return os.environ

    def on_signal(self, number: int, callback: Callable[[], None]) -> None:
        asyncio.get_running_loop().add_signal_handler(number, callback)

    def off_signal(self, number: int) -> None:
        asyncio.get_running_loop().remove_signal_handler(number)


class HubCaller(Caller):
    """A process that has given its three descriptors to the hub, and sends the signals that it gets."""

    def __init__(self, descriptors: Sequence[int], environ: Mapping[str, str]) -> None:
        given, out, error = descriptors
        self._environ = environ
        self._stdin = open(given, encoding="utf-8", errors="surrogateescape", newline=None)
        # One queue for both on the same terminal, where their order is seen; else one for each, as readers may be slow.
        first = OutputQueue()
        is_one = os.isatty(out) and os.isatty(error) and os.fstat(out).st_rdev == os.fstat(error).st_rdev
        self._queues = first, first if is_one else OutputQueue()
        encoding = encoding_of(environ)
        self._outputs = (QueuedOutput(out, encoding, self._queues[0]), QueuedOutput(error, encoding, self._queues[1]))
        self._handlers: dict[int, Callable[[], None]] = {}

    @property
    def stdin(self) -> TextIO:
        return self._stdin

    @property
    def stdout(self) -> TextIO:
        return cast(TextIO, self._outputs[0])

    @property
    def stderr(self) -> TextIO:
        return cast(TextIO, self._outputs[1])

    @property
    def environ(self) -> Mapping[str, str]:
        return self._environ

    def on_signal(self, number: int, callback: Callable[[], None]) -> None:
        # In the verb's own context, in which its terminal is this one.
        self._handlers[number] = partial(copy_context().run, callback)

    def off_signal(self, number: int) -> None:
        self._handlers.pop(number, None)

    def signal(self, number: int) -> bool:
        """Pass on a signal that the client got; False where the verb has no answer to it."""
        if handler := self._handlers.get(number):
            handler()
        return handler is not None

    async def close(self) -> None:
        """Wait until everything is written, and close the descriptors."""
        for output in self._outputs:
            await asyncio.shield(asyncio.to_thread(output.finish))
        for queue in self._queues:
            await asyncio.shield(asyncio.to_thread(queue.end))
        self._stdin.close()


class QueuedOutput(io.TextIOBase):
    """Text for a descriptor of a client, written in a thread: its reader may be slow, and the hub must not wait."""

    def __init__(self, fd: int, encoding: str, queue: OutputQueue) -> None:
        self._fd = fd
        self._encoding = encoding
        self._queue = queue

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.put(text.encode(self._encoding, "replace"))
        return len(text)

    def put(self, data: bytes) -> None:
        """Write bytes as they are. Raises BrokenPipeError where nobody reads them any more."""
        self._queue.put(self._fd, data)

    @property
    def is_behind(self) -> bool:
        """Whether its reader is slow, such as a terminal that was stopped by Ctrl-S: then give it no more."""
        return self._queue.waiting > MOST_WAITING

    @property
    def is_cut(self) -> bool:
        """Whether nobody reads it any more."""
        return self._queue.is_cut(self._fd)

    def flush(self) -> None:
        """The thread writes as soon as it can."""

    def settle(self) -> None:
        """Wait until all that was given so far is written. Blocks."""
        self._queue.settle()

    def finish(self) -> None:
        """Wait until all is written, and close the descriptor. Blocks."""
        self._queue.settle()
        os.close(self._fd)


class OutputQueue:
    """Bytes for one or more descriptors, written in order by one thread."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[int, bytes] | threading.Event] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self.waiting = 0
        # Descriptors that nobody reads any more.
        self._cut: set[int] = set()

    def put(self, fd: int, data: bytes) -> None:
        if fd in self._cut:
            raise BrokenPipeError
        # A progress bar is drawn in a thread of its own.
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_all, daemon=True)
                self._thread.start()
            self.waiting += len(data)
            self._queue.put((fd, data))

    def is_cut(self, fd: int) -> bool:
        return fd in self._cut

    def settle(self) -> None:
        if self._thread:
            written = threading.Event()
            self._queue.put(written)
            written.wait()

    def end(self) -> None:
        """End the thread, when all is written."""
        if self._thread:
            self._queue.put((-1, b""))
            self._thread.join()

    def _write_all(self) -> None:
        while True:
            item = self._queue.get()
            if isinstance(item, threading.Event):
                item.set()
                continue
            fd, data = item
            if fd < 0:
                return
            try:
                write_all(fd, b"" if fd in self._cut else data)
            except OSError:
                self._cut.add(fd)
            with self._lock:
                self.waiting -= len(data)


def write_all(fd: int, data: bytes) -> None:
    """Write all of it, also where another program has made the descriptor non-blocking. Raises OSError."""
    rest = memoryview(data)
    while rest:
        select.select([], [fd], [])
        with contextlib.suppress(BlockingIOError):
            rest = rest[os.write(fd, rest) :]


async def given_bytes() -> AsyncIterator[bytes]:
    """Standard input in parts, as it comes. Raises OSError."""
    fd, loop, ready = _own_input(stdin().fileno()), asyncio.get_running_loop(), asyncio.Event()
    try:
        try:
            loop.add_reader(fd, ready.set)
        except PermissionError:
            # A regular file, which is always ready.
            while data := await asyncio.to_thread(os.read, fd, ONE_READ):
                yield data
            return
        while True:
            await ready.wait()
            ready.clear()
            # It may have been read since it was ready, and this must not wait.
            if not select.select([fd], [], [], 0)[0]:
                continue
            with contextlib.suppress(BlockingIOError):
                if not (data := os.read(fd, ONE_READ)):
                    return
                yield data
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def _own_input(fd: int) -> int:
    """A descriptor for the same input. That of a pipe never blocks, even where another process reads from it, too."""
    if stat.S_ISFIFO(os.fstat(fd).st_mode):
        with contextlib.suppress(OSError):
            return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK)
    return os.dup(fd)


def encoding_of(environ: Mapping[str, str]) -> str:
    """The encoding of a terminal by its variables, as Python would choose it there."""
    named = environ.get("PYTHONIOENCODING", "").partition(":")[0]
    locale = next((environ[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if environ.get(name)), "")
    encoding = named or locale.partition(".")[2].partition("@")[0]
    try:
        codecs.lookup(encoding)
    except LookupError:
        return "utf-8"
    return encoding


_own = Caller()
_caller: ContextVar[Caller] = ContextVar("caller", default=_own)


def caller() -> Caller:
    """Return the caller of the verb that the current task carries out."""
    return _caller.get()


def stdin() -> TextIO:
    return caller().stdin


def stdout() -> TextIO:
    return caller().stdout


def stderr() -> TextIO:
    return caller().stderr


def width() -> int | None:
    """Columns of the terminal at standard error; None where it is none."""
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size(stderr().fileno()).columns or None
    return None


@contextlib.contextmanager
def called_by(who: Caller) -> Iterator[None]:
    token = _caller.set(who)
    try:
        yield
    finally:
        _caller.reset(token)


@contextlib.asynccontextmanager
async def stopped_by_signals(task: asyncio.Task[Any], signals: Sequence[int] = SIGNALS) -> AsyncIterator[list[int]]:
    """Signals cancel the task, which stops the command on the far side; the list holds the signals that came."""
    its, caught = caller(), list[int]()

    def stop(number: int) -> None:
        caught.append(number)
        task.cancel()

    for number in signals:
        its.on_signal(number, partial(stop, number))
    try:
        yield caught
    finally:
        for number in signals:
            its.off_signal(number)
