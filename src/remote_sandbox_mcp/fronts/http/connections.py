"""Connections with an unfinished request: each has a deadline, and beyond a limit the oldest is closed.

Anyone can connect to the port and send half of a request, or nothing, without any key. Such a connection costs a
file descriptor and a place among the connections that are served at once, so that a thousand of them would keep the
owner of the key out. On loopback all peers have the same address, so they cannot be told apart by it: where there are
too many, the oldest unfinished connection is ended for the new one. Strangers and clients that were let in are counted
apart, so that neither is ended for the other. A request without the key is answered and its connection closed as soon
as its head has come (see gate.py), so that a complete head means: let in, or closing.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ...local.processes import descriptors
from ..page.http import is_open_to_strangers

# All connections, including those being served; a client beyond that gets 503.
MOST_CONNECTIONS = 1000
# Limit for strangers, and the same again for clients that were let in: more than begin a request at the same moment.
MOST_UNFINISHED = 200
# For the whole head of a request, however slowly it comes; and for the next piece of a body.
HEAD_S, BODY_PIECE_S = 10.0, 30.0

# Whether a request, as ASGI describes it, may become a WebSocket.
MayUpgrade = Callable[[Any], bool]


def most_unfinished() -> int:
    return min(MOST_UNFINISHED, descriptors.for_pages() // 2)


class Unfinished:
    """Connections from which a request, or the rest of one, is awaited, oldest first; `open` counts all connections."""

    def __init__(self) -> None:
        self.open = 0
        self._strangers: dict[Connection, None] = {}
        self._let_in: dict[Connection, None] = {}

    def add(self, connection: Connection) -> None:
        """Add it as the youngest of its kind; if there are too many of that kind, the oldest is closed."""
        self.discard(connection)
        kind = self._let_in if connection.was_let_in else self._strangers
        kind[connection] = None
        if len(kind) > most_unfinished():
            next(iter(kind)).end()

    def discard(self, connection: Connection) -> None:
        self._strangers.pop(connection, None)
        self._let_in.pop(connection, None)


class Connection(H11Protocol):
    """uvicorn's connection with deadlines for head and body, which uvicorn itself does not have."""

    def __init__(self, unfinished: Unfinished, troubles: logging.Logger, may_upgrade: MayUpgrade, **given: Any) -> None:
        """`troubles` is the logger for failed requests; `may_upgrade` says which become a WebSocket."""
        super().__init__(**given)
        self.logger = troubles
        self._may_upgrade = may_upgrade
        self._is_socket = False
        self.was_let_in = False
        self._unfinished = unfinished
        self._deadline: asyncio.TimerHandle | None = None
        self._awaits_head = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._unfinished.open += 1
        self._set_deadline()

    def data_received(self, data: bytes) -> None:
        # uvicorn's own count includes requests of closed connections that are still being cancelled; 0 refuses.
        most = min(MOST_CONNECTIONS, descriptors.for_pages())
        self.limit_concurrency = 0 if self._unfinished.open > most else None
        super().data_received(data)
        self._set_deadline()

    def _should_upgrade(self) -> bool:
        """Whether a request becomes a WebSocket; all that ask for one in vain are answered as if they had not."""
        is_asked = self._get_upgrade() == b"websocket" and self.limit_concurrency is None
        self._is_socket = is_asked and self._may_upgrade(self.scope)
        if self._is_socket:
            # With its library, for the first who is let in.
            from .sockets import Socket

            self._settle()
            self.ws_protocol_class = functools.partial(Socket, self._closed)  # type: ignore[assignment]
        return self._is_socket

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._closed()

    def _closed(self) -> None:
        self._unfinished.open -= 1
        self._settle()

    def end(self) -> None:
        """Close it without an answer: a client that sends half of a request does not read one."""
        self._settle()
        self.transport.abort()

    def _set_deadline(self) -> None:
        """Set the deadline for the next input: a head, whose deadline does not move; a piece of a body; or none."""
        if self.transport.is_closing() or self._is_socket:
            self._settle()
        elif self.conn.their_state is h11.IDLE:
            if not self._awaits_head:
                self._await(HEAD_S)
                self._awaits_head = True
        else:
            # Anybody may send a key to the page, and ask for its files.
            self.was_let_in = self.was_let_in or not is_open_to_strangers(self.scope["path"])
            if self.conn.their_state is h11.SEND_BODY:
                self._await(BODY_PIECE_S)
            else:
                self._settle()

    def _await(self, seconds: float) -> None:
        self._settle()
        self._deadline = self.loop.call_later(seconds, self.end)
        self._unfinished.add(self)

    def _settle(self) -> None:
        """Stop the deadline: nothing is awaited from the client."""
        self._awaits_head = False
        self._unfinished.discard(self)
        if self._deadline:
            self._deadline.cancel()
            self._deadline = None
