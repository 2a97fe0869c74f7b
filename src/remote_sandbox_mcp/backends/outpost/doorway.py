"""Gets sockets out of a sandbox's network namespace: its outpost connects them inside and passes them to us."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import stat

from ...core.errors import BrokenRules, Unreachable
from ...core.port import PortClosed, Stream
from ..stream import over_socket
from . import program
from .client import OutpostClient, Refusal

HANDOVER = ("handover",)
# How many descriptors one message may carry; we expect one and close the others.
MOST_AT_ONCE = 8
# How many messages may lie there that nobody waits for any more: callers give up, but seldom.
MOST_UNWANTED = 64


class Doorway:
    """A pair of sockets, one end of which the outpost inherits as the descriptor `far`.

    Commands inside cannot use it: it is closed when they are started, and they cannot read the outpost's memory.
    """

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._near.setblocking(False)
        self.far = self._far.fileno()
        self._wanted: dict[str, socket.socket | None] = {}
        self._taught = False

    def leave_inside(self) -> None:
        """Close our copy of the outpost's end, after the outpost has inherited it."""
        self._far.close()

    def close(self) -> None:
        self._far.close()
        self._near.close()
        for connected in self._wanted.values():
            if connected:
                connected.close()
        self._wanted.clear()

    async def connect(self, client: OutpostClient, port: int, name: str) -> Stream:
        """Raises PortClosed, LineLost, Unreachable. One that breaks the rules is ended, with all that runs in it."""
        if not self._taught:
            # Sent before the first request, without waiting for its answer.
            client.begin({"verb": "learn"}, program.packed(HANDOVER))
            self._taught = True
        return await over_socket(await self._fetch(client, port, name), f"port {port} of {name}")

    async def _fetch(self, client: OutpostClient, port: int, name: str) -> socket.socket:
        token = secrets.token_hex(8)
        self._wanted[token] = None
        try:
            await client.ask({"verb": "hand_out_socket", "port": port, "door": self.far, "token": token})
            self._take_all()
        except Refusal as refusal:
            if refusal.reason == "closed":
                raise PortClosed(f"{name}: nothing accepts connections at port {port}: {refusal}") from None
            raise Unreachable(f"{name}: port {port} could not be reached: {refusal}") from None
        except BrokenRules as problem:
            client.line.close()
            raise BrokenRules(f"{name}: port {port} could not be reached: {problem}; it was ended") from None
        finally:
            connected = self._wanted.pop(token, None)
        if connected is None:
            raise Unreachable(f"{name}: port {port} could not be reached: its socket was not handed out")
        return connected

    def _take_all(self) -> None:
        """Receive all sockets that have come, for any caller; close those that no caller waits for any more.

        Raises BrokenRules where more of those come than any outpost of ours sends: a hostile one could keep us here.
        """
        with contextlib.suppress(OSError):
            for _ in range(len(self._wanted) + MOST_UNWANTED):
                if not (received := self._take()):
                    return
                self._keep(*received)
            raise BrokenRules("sockets came out of it that nobody had asked for")

    def _keep(self, token: str, connected: socket.socket | None) -> None:
        if token in self._wanted and connected and not self._wanted[token]:
            self._wanted[token] = connected
        elif connected:
            connected.close()

    def _take(self) -> tuple[str, socket.socket | None] | None:
        word, descriptors, _, _ = socket.recv_fds(self._near, 64, MOST_AT_ONCE, socket.MSG_CMSG_CLOEXEC)
        if not word:
            return None
        usable = [connected for connected in map(connection_of, descriptors) if connected]
        for more in usable[1:]:
            more.close()
        return word.decode("ascii", "replace"), usable[0] if usable else None


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
