"""Output of a command on its way to our own streams: written as it comes, and what is left at the end."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from ..core.command import Completed, Excerpt, Missing, Running
    from ..core.progress import StreamName

# A line that is not complete is held back this long, because an escape sequence may be cut in its middle.
LINE_S = 0.3
LONGEST_LINE = 1 << 14


class Outflow:
    """Writes in a thread of its own, so that a slow reader does not keep the connection from being served."""

    def __init__(self, on_failure: Callable[[OSError], None]) -> None:
        self._sinks = {"stdout": Sink(sys.stdout, on_failure), "stderr": Sink(sys.stderr, lambda _: None)}
        self._queue: SimpleQueue[tuple[Sink, bytes] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._write_all, daemon=True)
        self._thread.start()

    def add(self, stream: StreamName, data: bytes) -> None:
        sink = self._sinks[stream]
        sink.taken += len(data)
        self._queue.put((sink, data))

    def complete(self, seen: Completed | Running | Missing) -> None:
        """Add what has not come before the end."""
        for sink, excerpt in ((self._sinks["stdout"], seen.stdout), (self._sinks["stderr"], seen.stderr)):
            for part in pieces(excerpt, sink.taken):
                self._queue.put((sink, part))

    def finish(self) -> None:
        """Wait until all of it is written."""
        self._queue.put(None)
        self._thread.join()

    def _write_all(self) -> None:
        while True:
            try:
                item = self._queue.get(timeout=LINE_S)
            except Empty:
                self._flush()
                continue
            if item is None:
                return self._flush()
            item[0].write(item[1])

    def _flush(self) -> None:
        for sink in self._sinks.values():
            sink.flush()


class Sink:
    """One of our streams: bytes as they came into a pipe; on a terminal nothing that could take hold of it."""

    def __init__(self, stream: TextIO | None, on_failure: Callable[[OSError], None]) -> None:
        self.taken = 0
        # Python has no stream where the descriptor was closed before it began.
        self._is_open = stream is not None
        self._fd = stream.fileno() if stream else -1
        self._encoding = (stream.encoding if stream else "") or "utf-8"
        self._is_terminal = stream is not None and stream.isatty()
        self._on_failure = on_failure
        self._held = b""

    def write(self, data: bytes) -> None:
        if not self._is_terminal:
            return self._send(data)
        whole, end, self._held = (self._held + data).rpartition(b"\n")
        self._show(whole + end)
        if len(self._held) > LONGEST_LINE:
            self.flush()

    def flush(self) -> None:
        """Show an incomplete line, too, but not half a character."""
        from ..core.output import without_broken_end

        whole = without_broken_end(self._held)
        self._held = self._held[len(whole) :]
        self._show(whole)

    def _show(self, data: bytes) -> None:
        from ..core.output import harmless

        if data:
            self._send(harmless(data).encode(self._encoding, "replace"))

    def _send(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while self._is_open and rest:
                # Another program may have made this stream one that does not wait.
                select.select([], [self._fd], [])
                with contextlib.suppress(BlockingIOError):
                    rest = rest[os.write(self._fd, rest) :]
        except OSError as problem:
            self._is_open = False
            self._on_failure(problem)


def pieces(excerpt: Excerpt, taken: int = 0) -> list[bytes]:
    """All of it but the first `taken` bytes, or the beginning and the end with a note in between."""
    if not excerpt.omitted:
        return [(excerpt.head + excerpt.tail)[taken:]]
    from ..core.output import KEPT_BYTES

    much = "all of it is" if excerpt.total <= KEPT_BYTES else f"the first {KEPT_BYTES} bytes are"
    where = f"; {much} in {excerpt.file} there" if excerpt.file else ""
    note = f"\n[... {excerpt.omitted} of {excerpt.total} bytes left out{where} ...]\n"
    return [excerpt.head[taken:], note.encode(), excerpt.tail]
