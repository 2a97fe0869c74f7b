"""Connections that owe us a request: each has a deadline, and so many of them are kept that nobody is locked out.

Whoever reaches the port can connect and send half of a request, or nothing, without any key. Such a connection costs a
file descriptor and a place among the connections that are served at once, so that a thousand of them would keep the
owner of the key out. On loopback all peers have the same address, so they cannot be told apart by it: where there are
too many, the oldest unfinished connection is ended for the new one. Strangers and clients that were let in are counted
apart, so that neither is ended for the other. A request without the key is answered and its connection closed as soon
as its head has come (see gate.py), so that a complete head means: let in, or closing.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

# Of all kinds, the served ones with them; a client beyond that is told to come again (503).
MOST_CONNECTIONS = 1000
# Of strangers, and again of clients that were let in: more than begin a request in the same moment.
MOST_UNFINISHED = 200
# For a whole head, however it drips; and for the next piece of a body.
HEAD_S, BODY_PIECE_S = 10.0, 30.0


class Unfinished:
    """The connections from which a request, or the rest of one, is awaited, in the order of their age."""

    def __init__(self, most: int = MOST_UNFINISHED) -> None:
        self._most = most
        self._strangers: dict[Connection, None] = {}
        self._let_in: dict[Connection, None] = {}

    def add(self, connection: Connection) -> None:
        """As the youngest of its kind; where there are too many of these, the oldest is ended."""
        self.discard(connection)
        kind = self._let_in if connection.was_let_in else self._strangers
        kind[connection] = None
        if len(kind) > self._most:
            next(iter(kind)).end()

    def discard(self, connection: Connection) -> None:
        self._strangers.pop(connection, None)
        self._let_in.pop(connection, None)


class Connection(H11Protocol):
    """uvicorn's connection, which has no deadline for a head or a body."""

    def __init__(self, unfinished: Unfinished, troubles: logging.Logger, **given: Any) -> None:
        """`troubles` is where it tells what went wrong with a request."""
        super().__init__(**given)
        self.logger = troubles
        self.was_let_in = False
        self._unfinished = unfinished
        self._deadline: asyncio.TimerHandle | None = None
        self._awaits_head = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look()

    def data_received(self, data: bytes) -> None:
        # uvicorn's own count has the requests of connections that are gone, while they are given up; 0 refuses.
        self.limit_concurrency = 0 if len(self.connections) > MOST_CONNECTIONS else None
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._settle()

    def end(self) -> None:
        """At once: whoever sends half of a request reads no answer."""
        self._settle()
        self.transport.abort()

    def _look(self) -> None:
        """What is awaited now: a head, whose deadline stays as it is; the next piece of a body; or nothing."""
        if self.transport.is_closing():
            self._settle()
        elif self.conn.their_state is h11.IDLE:
            if not self._awaits_head:
                self._await(HEAD_S)
                self._awaits_head = True
        else:
            self.was_let_in = True
            if self.conn.their_state is h11.SEND_BODY:
                self._await(BODY_PIECE_S)
            else:
                self._settle()

    def _await(self, seconds: float) -> None:
        self._settle()
        self._deadline = self.loop.call_later(seconds, self.end)
        self._unfinished.add(self)

    def _settle(self) -> None:
        """Nothing is awaited."""
        self._awaits_head = False
        self._unfinished.discard(self)
        if self._deadline:
            self._deadline.cancel()
            self._deadline = None
