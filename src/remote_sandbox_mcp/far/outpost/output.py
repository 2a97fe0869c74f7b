"""A run's output: sent to the outpost while that reads, and stored in files of bounded size."""

import contextlib
import fcntl
import os
import select
import time

# How long the last frames may take to be read; how much of a stream its file holds; how much waits in memory.
FLUSH_S = 600.0
SPOOL_BYTES = 64 << 20
BACKLOG_BYTES = 16 << 20


class Listener:
    """The pipe to the outpost, which may be gone. A run never waits for it; with `waits`, a worker does."""

    def __init__(self, fd: int, waits: bool = False) -> None:
        self.fd = fd
        self.backlog = bytearray()
        self.most = 0 if waits else BACKLOG_BYTES
        os.set_blocking(fd, waits)

    def send(self, data: bytes) -> None:
        if self.fd >= 0 and len(self.backlog) <= self.most:
            self.backlog += data
            self.flush()

    def flush(self) -> None:
        try:
            while self.backlog and self.fd >= 0:
                del self.backlog[: os.write(self.fd, self.backlog[:65536])]
        except BlockingIOError:
            pass
        except OSError:
            self.close()

    def deliver(self) -> None:
        """Wait until the outpost has read the rest, for as long as a slow connection may need."""
        deadline = time.monotonic() + FLUSH_S
        while self.backlog and self.fd >= 0 and time.monotonic() < deadline:
            select.select([], [self.fd], [], 1.0)
            self.flush()

    def finish(self) -> None:
        self.deliver()
        self.close()

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1
        self.backlog.clear()


class OutputStream:
    """One output stream: its first bytes are sent at once, its last ones at the end; a file keeps it up to a bound."""

    def __init__(self, path: bytes, keep: int) -> None:
        self.path = path
        self.keep = keep
        self.total = self.sent = self.stored = 0
        self.tail = b""
        self.file = -1

    def feed(self, data: bytes) -> bytes:
        """Take data; returns the part that still belongs to the head."""
        # Once something could not be stored, nothing more is: the file must not have a gap.
        if self.stored == self.total:
            self.spool(data)
        self.total += len(data)
        self.tail = (self.tail + data)[-self.keep :] if self.keep else b""
        head = data[: max(0, self.keep - self.sent)]
        self.sent += len(head)
        return head

    def spool(self, data: bytes) -> None:
        """Append to the file, as far as the bound and the disk allow."""
        # A full disk must not end the command; head and tail are kept in memory.
        with contextlib.suppress(OSError):
            if self.file < 0:
                self.file = os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
            self.stored += os.write(self.file, data[: SPOOL_BYTES - self.stored])

    def rest(self) -> bytes:
        """The tail, without the part of it that was sent as head."""
        missing = min(self.total - self.sent, self.keep)
        return self.tail[len(self.tail) - missing :]

    def close(self) -> None:
        if self.file >= 0:
            os.close(self.file)

    def save_tail(self) -> None:
        """Write the tail to its file or, on a full disk, nothing: a part of it would be taken for the end."""
        if self.total <= self.stored:
            return
        path = self.path + b".tail"
        try:
            with open(path, "wb") as file:
                file.write(self.tail)
        except OSError:
            if os.path.lexists(path):
                os.unlink(path)


def widen_pipe(fd: int) -> None:
    """Enlarge a pipe to 1 MiB where the kernel allows it (1031 is F_SETPIPE_SZ)."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, 1031, 1 << 20)
