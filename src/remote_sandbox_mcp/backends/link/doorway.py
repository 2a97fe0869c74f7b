"""Gets sockets out of a sandbox's network namespace: its outpost connects them inside and passes them to us."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import stat

from ...core.errors import BrokenRules, Unreachable
from ...core.sandboxes.port import PortClosed, Stream
from ...far import program
from ..stream import over_socket
from .client import LineLost, OutpostClient, Refusal

HANDOVER = ("outpost/handover",)
# How many descriptors one message may carry; we expect one and close the others.
MOST_AT_ONCE = 8
# How many messages are read before other work has its turn.
MOST_IN_TURN = 64


class Doorway:
    """A pair of sockets, one end of which the outpost inherits as the descriptor `far`."""

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._near.setblocking(False)
        # No command inside can use it: it is closed at their start, and they cannot read the outpost's memory.
        self.far = self._far.fileno()
        self._wanted: dict[str, socket.socket | None] = {}
        self._client: OutpostClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_inside = False
        # Each request has one socket sent at most; more come from an outpost that is hostile.
        self._to_come = 0

    def leave_inside(self) -> None:
        """Close our copy of the outpost's end, after the outpost has inherited it."""
        self.is_inside = True
        self._far.close()

    def close(self) -> None:
        self._stop_reading()
        self._far.close()
        self._near.close()
        for connected in self._wanted.values():
            if connected:
                connected.close()
        self._wanted.clear()

    async def connect(self, client: OutpostClient, port: int, name: str) -> Stream:
        """Raises PortClosed, LineLost, Unreachable. One that breaks the rules is ended, with all that runs in it."""
        if not self._client:
            # Sent before the first request, without waiting for its answer.
            client.begin({"verb": "learn"}, program.packed(HANDOVER))
            self._client, self._loop = client, asyncio.get_running_loop()
            # Also what nobody waits for any more is read: the outpost could send nothing else behind it.
            self._loop.add_reader(self._near, self._take_some)
        return await over_socket(await self._fetch(client, port, name), f"port {port} of {name}")

    async def _fetch(self, client: OutpostClient, port: int, name: str) -> socket.socket:
        token = secrets.token_hex(8)
        self._wanted[token] = None
        self._to_come += 1
        try:
            await self._ask(client, port, name, token)
        except BaseException:
            # It may have come to a caller who gives up.
            if unused := self._wanted.pop(token, None):
                unused.close()
            raise
        connected = self._wanted.pop(token, None)
        if connected is None:
            raise Unreachable(f"{name}: port {port} could not be reached: its socket was not handed out")
        return connected

    async def _ask(self, client: OutpostClient, port: int, name: str, token: str) -> None:
        try:
            await client.ask({"verb": "hand_out_socket", "port": port, "door": self.far, "token": token})
        except Refusal as refusal:
            if refusal.reason == "closed":
                raise PortClosed(f"{name}: nothing accepts connections at port {port}: {refusal}") from None
            raise Unreachable(f"{name}: port {port} could not be reached: {refusal}") from None
        except LineLost:
            if self._to_come < 0:
                raise BrokenRules(f"{name} sent sockets that nobody had asked for, and was ended") from None
            raise
        # It was sent before the answer.
        while self._wanted.get(token) is None and self._take_some():
            pass

    def _take_some(self) -> bool:
        """Receive sockets that have come, for any caller; returns whether there may be more."""
        try:
            for _ in range(MOST_IN_TURN):
                self._take()
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            self._stop_reading()
            return False
        return True

    def _take(self) -> None:
        """Receive one; those that no caller waits for any more are closed. Raises OSError."""
        word, descriptors, _, _ = socket.recv_fds(self._near, 64, MOST_AT_ONCE, socket.MSG_CMSG_CLOEXEC)
        usable = [connected for connected in map(connection_of, descriptors) if connected]
        token = word.decode("ascii", "replace")
        if usable and token in self._wanted and self._wanted[token] is None:
            self._wanted[token] = usable.pop()
        for more in usable:
            more.close()
        self._to_come -= 1
        if not word or self._to_come < 0:
            if word and self._client:
                self._client.line.close()
            raise ConnectionAbortedError("it has ended, or sends what nobody asked for")

    def _stop_reading(self) -> None:
        if self._loop and not self._loop.is_closed() and self._near.fileno() >= 0:
            self._loop.remove_reader(self._near)


def connection_of(descriptor: int) -> socket.socket | None:
    """A descriptor as a TCP connection. Anything else is closed: what is inside the sandbox may be hostile."""
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    received = socket.socket(fileno=descriptor)
    if received.family in (socket.AF_INET, socket.AF_INET6) and received.type == socket.SOCK_STREAM:
        return received
    received.close()
    return None
