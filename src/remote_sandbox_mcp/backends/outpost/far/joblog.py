"""What a background job prints on its way: into its log, and onto its pane."""

import os
import time

FOLLOW_S = 1.0


class JobLog:
    """A log that may be on a full disk or gone: the job goes on, and what was lost is counted."""

    def __init__(self, path: bytes) -> None:
        self.path = path
        self.total = self.lost = 0
        self.fd = -1
        self.followed = time.monotonic()
        self.at_line_start = self.open() and self.ends_in_newline()

    def open(self) -> bool:
        try:
            if self.fd < 0:
                # Nothing may wait here for a pipe's reader.
                flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY
                self.fd = os.open(self.path, flags, 0o666)
                os.set_blocking(self.fd, True)
            return True
        except OSError:
            return False

    def ends_in_newline(self) -> bool:
        try:
            with open(self.path, "rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - 1))
                return file.read(1) in (b"", b"\n")
        except OSError:
            return True

    def follow(self) -> None:
        """A log that was removed, or put aside by who rotates logs, is made anew."""
        if self.fd < 0 or time.monotonic() < self.followed + FOLLOW_S:
            return
        self.followed = time.monotonic()
        try:
            if os.path.samestat(os.stat(self.path), os.fstat(self.fd)):
                return
        except OSError:
            pass
        os.close(self.fd)
        self.fd = -1
        self.at_line_start = self.open() and self.ends_in_newline()

    def write(self, data: bytes) -> None:
        self.total += len(data)
        self.follow()
        view = memoryview(data)
        try:
            while view and self.open():
                view = view[os.write(self.fd, view) :]
        except OSError:
            pass
        self.lost += len(view)
        if len(view) < len(data):
            self.at_line_start = data[len(data) - len(view) - 1 :][:1] == b"\n"

    def close(self, code: int) -> None:
        """The last line, for people and for tools that read it there."""
        line = b"" if self.at_line_start else b"\n"
        self.write(line + b"EXIT_CODE=%d\n" % code)
        if self.fd >= 0:
            os.close(self.fd)


class Pane:
    """The terminal that a person may look at. A descriptor of its own, so that a stopped tmux stops nobody."""

    def __init__(self, wanted: bool) -> None:
        self.fd = -1
        if wanted:
            try:
                self.fd = os.open("/dev/tty", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
            except OSError:
                pass

    def show(self, data: bytes) -> None:
        if self.fd >= 0:
            try:
                # No more than fits on a screen or two: who wants all of it has the log.
                os.write(self.fd, data[-65536:])
            except BlockingIOError:
                pass
            except OSError:
                self.close()

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1
