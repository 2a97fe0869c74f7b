"""The batch job of an allocation, on its first node: runs shell lines on descriptors that a relay hands to it.

What an srun step has started ends with that step, and so with our connection. Everything that is to outlive it is
therefore started here, in the batch step. Runs under Python 3.6 with the standard library alone.
"""

import array
import contextlib
import ctypes
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

MYPY = False
if MYPY:
    from typing import Dict, List, Optional  # noqa: F401

# On the wire: a letter that says what is wanted, the length of the text, and the text.
HEADER = struct.Struct("=cI")
RUN, RENEW = b"L", b"U"
# Only the user's own relays connect, and each sends its whole request at once.
PEER_S = 10.0
ENDING_S = 1.0
PR_SET_CHILD_SUBREAPER = 36


class Holder:
    """Listens in a folder that is the user's alone, until its time is over or the queue ends it."""

    def __init__(self, place: str, seconds: float) -> None:
        self.place = place
        self.until = time.monotonic() + seconds if seconds else 0.0
        # A new folder with an unpredictable name, closed to other users.
        self.folder = tempfile.mkdtemp(prefix="rsmcp-%s." % place, dir="/tmp")
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listening.bind(os.path.join(self.folder, "socket"))
        self.listening.listen(64)
        # The connection that waits for the end of each process; the process itself, so that it is not forgotten.
        self.waiting = {}  # type: Dict[int, Optional[socket.socket]]
        self.lines = {}  # type: Dict[int, subprocess.Popen[bytes]]
        self.is_asked_to_end = False
        self.wakes, self.woken = socket.socketpair()
        self.wakes.setblocking(False)
        self.woken.setblocking(False)

    def serve(self) -> None:
        signal.set_wakeup_fd(self.woken.fileno())
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, self.note)
        while not self.is_over():
            left = min(3600.0, self.until - time.monotonic()) if self.until else 3600.0
            for ready in select.select([self.listening, self.wakes], [], [], max(0.0, left))[0]:
                if ready is self.wakes:
                    self.wakes.recv(4096)
                else:
                    self.hear()
            self.reap()

    def note(self, number: int, frame: object) -> None:
        # A handler and not SIG_IGN, which the lines would inherit. USR1 and USR2 are for those who asked for them.
        if number in (signal.SIGTERM, signal.SIGINT):
            self.is_asked_to_end = True

    def is_over(self) -> bool:
        return self.is_asked_to_end or 0 < self.until <= time.monotonic()

    def hear(self) -> None:
        connection, _ = self.listening.accept()
        try:
            if peer_uid(connection) != os.getuid():
                raise OSError("another user")
            connection.settimeout(PEER_S)
            self.answer(connection)
        except (OSError, ValueError, struct.error):
            connection.close()

    def answer(self, connection: socket.socket) -> None:
        fds, data = received(connection)
        try:
            wanted, length = HEADER.unpack(data[: HEADER.size])
            text = data[HEADER.size :]
            while len(text) < length:
                more = connection.recv(65536)
                if not more:
                    raise ValueError("cut off")
                text += more
            if wanted == RENEW:
                self.until = time.monotonic() + float(text.decode()) if float(text.decode()) else 0.0
                connection.sendall(b"0")
                connection.close()
            elif wanted == RUN and len(fds) == 3:
                self.start(connection, text, fds)
        finally:
            for fd in fds:
                os.close(fd)

    def start(self, connection: socket.socket, line: bytes, fds: "List[int]") -> None:
        words = [b"/bin/sh", b"-c", line]
        process = subprocess.Popen(words, stdin=fds[0], stdout=fds[1], stderr=fds[2], start_new_session=True)
        self.lines[process.pid] = process
        self.waiting[process.pid] = connection

    def reap(self) -> None:
        """Reap ended children, also those that a line has left behind: they become ours."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            ended = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            process, connection = self.lines.pop(pid, None), self.waiting.pop(pid, None)
            if process is not None:
                process.returncode = ended
            if connection is not None:
                with contextlib.suppress(OSError):
                    connection.sendall(b"%d" % ended)
                connection.close()

    def end(self) -> None:
        """End all that was started here, and remove what was written for it."""
        begun = time.monotonic()
        # At once, because the queue may leave little time; and when nothing can write there any more.
        self.clear()
        while descendants():
            number = signal.SIGTERM if time.monotonic() - begun < ENDING_S else signal.SIGKILL
            for pid in descendants():
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
            if time.monotonic() - begun > 2 * ENDING_S:
                break
            time.sleep(0.05)
            self.reap()
        self.clear()

    def clear(self) -> None:
        for folder in (self.folder, "/tmp/remote-sandbox-%d-%s" % (os.getuid(), self.place)):
            shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(os.path.expanduser("~/.local/state/remote-sandbox/allocations/" + self.place))


def peer_uid(connection: socket.socket) -> int:
    size = struct.calcsize("3i")
    return int(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[1])


def received(connection: socket.socket) -> "tuple[list[int], bytes]":
    fds = array.array("i")
    data, ancillary, _, _ = connection.recvmsg(65536, socket.CMSG_SPACE(8 * fds.itemsize))
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    return list(fds), data


def descendants() -> "list[int]":
    """All processes below this one: those that lost their parent are its children, see main."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name, "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if fields[0] != b"Z":
                parents[int(name)] = int(fields[1])
    found = {os.getpid()}
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        grown = bool(more)
        found |= more
    return sorted(found - {os.getpid()})


def main(place: str, seconds: str) -> None:
    with contextlib.suppress(OSError, AttributeError):
        # What a line leaves behind stays below us, where the queue finds it at the end.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    holder = Holder(place, float(seconds))
    # Two allocations on one node must not meet: neither their outposts' folders nor their tmux.
    os.environ.update({"REMOTE_SANDBOX_PLACE": place, "TMUX_TMPDIR": holder.folder})
    os.environ.pop("TMUX", None)
    try:
        holder.serve()
    finally:
        holder.end()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
