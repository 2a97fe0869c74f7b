"""Which client a call comes from, as far as that can be told, what it has selected, and what it can take."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol

from mcp.server.mcpserver import Context

from ..core.client import STRANGER, Client, client_named
from ..session import Session, current

STATE = "remote_sandbox_mcp.session"
# What a result has besides its content: other fields, and the first line of its text.
BESIDES = 1000
LEAST_ROOM = 1000

# The program whose call is answered now.
calling: ContextVar[Client] = ContextVar("calling", default=STRANGER)
# Told how the client calls itself, for who shows who is connected.
introduced: ContextVar[Callable[[str], None] | None] = ContextVar("introduced", default=None)


def client_of(context: Context[None, Any] | None) -> Client:
    """By the name that it gave when it connected or, from 2026-07-28 on, that comes with the call."""
    params = context.session.client_params if context else None
    name = params.client_info.name if params else ""
    if heard := introduced.get():
        heard(name)
    return client_named(name)


def room() -> int:
    """How many characters of content this client takes in one result."""
    return max(LEAST_ROOM, calling.get().result_chars - BESIDES)


class Clients(Protocol):
    """Tells the clients of a server apart."""

    def session(self, context: Context[None, Any] | None) -> Session | None:
        """That of the client whose call this is; None where it cannot be told from others."""
        ...


class OneClient:
    """All calls come from the same client, as over standard input."""

    def __init__(self, session: Session | None = None) -> None:
        self._session = session or Session()

    def session(self, context: Context[None, Any] | None) -> Session | None:
        return self._session


class Sessions:
    """Clients over HTTP: each session (Mcp-Session-Id) is one of ours, which ends with it.

    From 2026-07-28 on the protocol has no sessions: those clients cannot be told apart.
    """

    def session(self, context: Context[None, Any] | None) -> Session | None:
        # The SDK checks the id and keeps one connection for each session; it has no public way to get at it.
        connection = context.session._connection if context else None
        if connection is None or connection.session_id is None:
            return None
        found = connection.state.get(STATE) or connection.state.setdefault(STATE, current().for_one())
        assert isinstance(found, Session)
        return found


class Conversations:
    """Each call is made in the context of the conversation that it belongs to, or of many that came over HTTP."""

    def __init__(self) -> None:
        self._over_http = Sessions()

    def session(self, context: Context[None, Any] | None) -> Session | None:
        conversation = current()
        return self._over_http.session(context) if conversation.is_of_many else conversation
