"""Client of a call: which one it is, its selection, and how large a result it accepts."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Protocol

from mcp.server.mcpserver import Context
from mcp.types import ClientCapabilities, Implementation

from ...core.client import OURS, STRANGER, Client, client_named, introduced
from ...services.session import Session, current

# What the SDK tells of a call; None for a call of our own.
CallContext = Context[None, Any] | None

STATE = "remote_sandbox_mcp.services.session"
# Size of a result besides its content: other fields, and the first line of its text.
BESIDES = 1000
LEAST_ROOM = 1000
# A call that has already waited for something else, such as a hub that died, still waits this long.
LEAST_PATIENCE_S = 5.0

# The client whose call is being answered.
calling: ContextVar[Client] = ContextVar("calling", default=STRANGER)
# The name of a front end of ours that makes the call itself, without the protocol; empty for all others.
own_front: ContextVar[str] = ContextVar("own_front", default="")


def introduction(context: CallContext) -> Implementation | None:
    """Introduction of the client of a call: its name and version."""
    params = context.session.client_params if context else None
    return params.client_info if params else None


def named_client(context: CallContext) -> str:
    """The name with which the client of a call has introduced itself; empty if it has not."""
    info = introduction(context)
    return info.name if info else ""


def abilities(context: CallContext) -> ClientCapabilities | None:
    """Capabilities of the client of a call; None outside of a request, too."""
    try:
        return context.client_capabilities if context else None
    except (ValueError, LookupError):
        return None


def asked_by(context: CallContext) -> str:
    """Return where a call comes from, for a sentence: a front end of ours has no context that could tell."""
    front = own_front.get()
    return f"the {front}" if front else named_client(context) or "an agent"


def client_of(context: CallContext) -> Client:
    """The client of a call, by the name that it gave when it connected or, since 2026-07-28, with the call."""
    name = named_client(context)
    if heard := introduced.get():
        heard(name)
    if context is None:
        return OURS
    return client_named(name, "progress_token" in (context.request_context.meta or {}))


def patience() -> float:
    """Return the seconds within which this client is to be answered."""
    return calling.get().patience_s


def room() -> int:
    """Return how many characters of content this client accepts in one result."""
    return max(LEAST_ROOM, calling.get().result_chars - BESIDES)


class Clients(Protocol):
    """Distinguishes the clients of a server."""

    def session(self, context: CallContext) -> Session | None:
        """The session of the client that made this call; None where clients cannot be told apart."""


class OneClient:
    """All calls come from one client, as on standard input."""

    def __init__(self, session: Session | None = None) -> None:
        self._session = session or Session()

    def session(self, context: CallContext) -> Session | None:
        return self._session


class HttpSessions:
    """Clients over HTTP: each session (Mcp-Session-Id) is one of ours, which ends with it.

    From 2026-07-28 on the protocol has no sessions: those clients cannot be told apart.
    """

    def session(self, context: CallContext) -> Session | None:
        # The SDK checks the id and keeps one connection for each session; it has no public way to get at it.
        connection = context.session._connection if context else None
        if connection is None or connection.session_id is None:
            return None
        found = connection.state.get(STATE) or connection.state.setdefault(STATE, current().for_one())
        assert isinstance(found, Session)
        return found


class Conversations:
    """Conversations of clients: each call runs in the context of its own, or of the many that came over HTTP."""

    def __init__(self) -> None:
        self._over_http = HttpSessions()

    def session(self, context: CallContext) -> Session | None:
        conversation = current()
        return self._over_http.session(context) if conversation.is_of_many else conversation
