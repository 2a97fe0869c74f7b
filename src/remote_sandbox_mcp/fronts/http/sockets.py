"""The WebSocket of a browser that was let in: imported for the first of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from uvicorn.protocols.websockets.wsproto_impl import WSProtocol
from wsproto.events import Ping


class Socket(WSProtocol):
    """uvicorn's WebSocket, which keeps no answers for a peer that does not read."""

    def __init__(self, closed: Callable[[], None], **given: Any) -> None:
        super().__init__(**given)
        self._closed = closed

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._closed()

    def handle_ping(self, event: Ping) -> None:
        if self.writable.is_set():
            super().handle_ping(event)
