"""A relay: carries many connections to ports of its machine over one line that cannot forward ports itself."""

import contextlib
import errno
import os
import select
import socket
import sys
from typing import Any

from .wire import HELLO, frame, json_frame, split_frames, write_all

# DIAL, from the near side: connect to a port. The answer is DIALLED, or ENDED with the reason.
DIAL, DIALLED = 50, 51
# In both directions: bytes; the reader has room for so many more; no more bytes will follow; the connection is over.
BYTES, ROOM, LAST, ENDED = 52, 53, 54, 55

# How many bytes may be on their way in one direction of one connection.
PORT_WINDOW = 1 << 20
# ROOM is sent once for this many bytes: one frame per read would be as much work as the bytes themselves.
PORT_PIECE = PORT_WINDOW // 4
ONE_READ = 1 << 16
QUEUE_BYTES = 1 << 18
LOOPBACKS = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


class Plug:
    """One connection to a port, from the first attempt to its end."""

    def __init__(self, number: int, port: int) -> None:
        self.number = number
        self.port = port
        self.tried = 0
        self.sock: "Any" = None
        self.dialled = False
        self.room = PORT_WINDOW
        self.outbox = bytearray()
        self.taken = 0
        # Whether the near side has sent its last bytes, whether the port has, and whether the port was told of the
        # near side's end.
        self.near_last = self.port_last = self.sent_last = False

    def dial(self) -> int:
        """Try the next address; returns 0 or EINPROGRESS if that goes well, else an errno."""
        problem = errno.ECONNREFUSED
        while self.tried < len(LOOPBACKS):
            family, host = LOOPBACKS[self.tried]
            self.tried += 1
            try:
                self.sock = socket.socket(family, socket.SOCK_STREAM)
            except OSError:
                continue
            self.sock.setblocking(False)
            problem = int(self.sock.connect_ex((host, self.port)))
            if problem in (0, errno.EINPROGRESS):
                return problem
            self.sock.close()
        return problem

    @property
    def is_over(self) -> bool:
        return self.port_last and self.sent_last


class Relay:
    """Carries all connections of one line."""

    def __init__(self) -> None:
        self.plugs: "dict[int, Plug]" = {}
        self.by_fd: "dict[int, Plug]" = {}
        self.inbox = bytearray()
        self.queue = bytearray()
        self.crowded = False
        self.poller = select.poll()
        self.poller.register(0, select.POLLIN)
        os.set_blocking(0, False)
        os.set_blocking(1, False)

    def serve(self) -> None:
        while True:
            for fd, events in self.poller.poll():
                if fd == 0:
                    if not self.receive():
                        return
                elif fd in self.by_fd:
                    self.attend(self.by_fd[fd], events)
            self.flush()

    def receive(self) -> bool:
        """Read frames. That needs no limit: the near side sends no more than the room that it was told."""
        try:
            data = os.read(0, 1 << 18)
        except BlockingIOError:
            return True
        self.inbox += data
        try:
            frames = split_frames(self.inbox)
        except ValueError:
            return False
        for kind, number, body in frames:
            self.handle(kind, number, body)
        return bool(data)

    def handle(self, kind: int, number: int, body: bytes) -> None:
        if kind == DIAL:
            self.dial(Plug(number, int(body)))
            return
        plug = self.plugs.get(number)
        if plug is None:
            return
        if kind == BYTES:
            plug.outbox += body
            self.send(plug)
        elif kind == ROOM:
            plug.room += int(body)
        elif kind == LAST:
            plug.near_last = True
            self.send(plug)
        elif kind == ENDED:
            self.give_up(plug)
        self.watch(plug)

    def dial(self, plug: Plug) -> None:
        problem = plug.dial()
        if problem not in (0, errno.EINPROGRESS):
            self.queue += frame(ENDED, plug.number, os.strerror(problem).encode())
            return
        self.plugs[plug.number] = self.by_fd[plug.sock.fileno()] = plug
        if not problem:
            self.connected(plug)
        self.send(plug)
        self.watch(plug)

    def connected(self, plug: Plug) -> None:
        plug.dialled = True
        self.queue += frame(DIALLED, plug.number)

    def attend(self, plug: Plug, events: int) -> None:
        if not plug.dialled:
            problem = plug.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if problem:
                self.drop(plug)
                self.dial(plug)
                return
            self.connected(plug)
            self.send(plug)
        elif plug.outbox and events & ~select.POLLIN:
            self.send(plug)
        elif self.wants_bytes(plug):
            self.take(plug)
        self.watch(plug)

    def take(self, plug: Plug) -> None:
        """Pass on bytes from the port, as far as the near side has room for them."""
        try:
            data = plug.sock.recv(min(ONE_READ, plug.room))
        except BlockingIOError:
            return
        except OSError as problem:
            self.fail(plug, problem)
            return
        plug.room -= len(data)
        plug.port_last = not data
        self.queue += frame(BYTES, plug.number, data) if data else frame(LAST, plug.number)

    def send(self, plug: Plug) -> None:
        """Write to the port as much as it takes of what came for it."""
        try:
            while plug.outbox and plug.dialled:
                sent = plug.sock.send(plug.outbox[:ONE_READ])
                del plug.outbox[:sent]
                plug.taken += sent
        except BlockingIOError:
            pass
        except OSError as problem:
            self.fail(plug, problem)
            return
        if plug.near_last and not plug.outbox and plug.dialled and not plug.sent_last:
            plug.sent_last = True
            # If the connection is gone already, that is noticed when it is read.
            with contextlib.suppress(OSError):
                plug.sock.shutdown(socket.SHUT_WR)
        if plug.taken >= PORT_PIECE:
            self.queue += frame(ROOM, plug.number, b"%d" % plug.taken)
            plug.taken = 0

    def fail(self, plug: Plug, problem: OSError) -> None:
        self.queue += frame(ENDED, plug.number, (problem.strerror or "cut").encode())
        self.drop(plug)

    def give_up(self, plug: Plug) -> None:
        """The near side has closed the connection; bytes that it sent in full are still written to the port."""
        plug.port_last = True
        if not plug.near_last or not plug.outbox or not plug.dialled:
            self.drop(plug)

    def wants_bytes(self, plug: Plug) -> bool:
        return plug.dialled and not plug.port_last and plug.room > 0 and not self.crowded

    def watch(self, plug: Plug) -> None:
        """Poll only for events that can be handled: a hang-up that is polled for but not read would spin the loop."""
        if plug.number not in self.plugs:
            return
        if plug.is_over:
            self.drop(plug)
            return
        events = select.POLLIN if self.wants_bytes(plug) else 0
        if plug.outbox or not plug.dialled:
            events |= select.POLLOUT
        if events:
            self.poller.register(plug.sock, events)
        else:
            self.rest(plug)

    def rest(self, plug: Plug) -> None:
        with contextlib.suppress(KeyError):
            self.poller.unregister(plug.sock)

    def drop(self, plug: Plug) -> None:
        if self.plugs.pop(plug.number, None):
            self.rest(plug)
            del self.by_fd[plug.sock.fileno()]
            plug.sock.close()

    def flush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self.queue:
                del self.queue[: os.write(1, self.queue[: 1 << 17])]
        self.poller.register(1, select.POLLOUT) if self.queue else self.rest_line()
        crowded = len(self.queue) > QUEUE_BYTES
        if crowded != self.crowded:
            self.crowded = crowded
            for plug in list(self.plugs.values()):
                self.watch(plug)

    def rest_line(self) -> None:
        with contextlib.suppress(KeyError):
            self.poller.unregister(1)


def relay_ports(token: str) -> None:
    write_all(1, b"\n" + token.encode() + b"\n" + json_frame(HELLO, 0, {"node": os.uname().nodename}))
    # Where the line is cut, all connections end with this process.
    with contextlib.suppress(OSError):
        Relay().serve()


if __name__ == "__main__":
    relay_ports(sys.argv[1])
