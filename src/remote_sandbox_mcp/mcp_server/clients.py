"""Which client a call comes from, as far as that can be told, and what it has selected."""

from __future__ import annotations

from typing import Any, Protocol

from mcp.server.mcpserver import Context

from ..selection import Selection

STATE = "remote_sandbox_mcp.selection"


class Clients(Protocol):
    """Tells the clients of a server apart."""

    def selection(self, context: Context[None, Any] | None) -> Selection | None:
        """That of the client whose call this is; None where it cannot be told from others."""
        ...


class OneClient:
    """All calls come from the same client, as over standard input."""

    def __init__(self, selection: Selection | None = None) -> None:
        self._selection = selection or Selection()

    def selection(self, context: Context[None, Any] | None) -> Selection | None:
        return self._selection


class Sessions:
    """Clients over HTTP: each session (Mcp-Session-Id) has a selection of its own, which ends with the session.

    From 2026-07-28 on the protocol has no sessions: those clients cannot be told apart.
    """

    def selection(self, context: Context[None, Any] | None) -> Selection | None:
        # The SDK checks the id and keeps one connection for each session; it has no public way to get at it.
        connection = context.session._connection if context else None
        if connection is None or connection.session_id is None:
            return None
        found = connection.state.setdefault(STATE, Selection())
        assert isinstance(found, Selection)
        return found
