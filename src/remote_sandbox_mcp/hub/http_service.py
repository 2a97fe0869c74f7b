"""HTTP in the hub: served on sockets that fronts hand over, each for as long as its front lives."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import time
from typing import TYPE_CHECKING, Any

from ..core.errors import ConfigError
from ..fronts.http.listener import Terms, address_of, listener_among, read_terms
from ..services.session import Session, begin
from .houses import House, Houses, client_of
from .passing import Caller

if TYPE_CHECKING:
    from ..fronts.http.connections import Unfinished
    from ..fronts.http.serve import HttpServer

log = logging.getLogger(__name__)

# Further log lines are dropped, because the front does not read them.
MOST_UNSENT = 1 << 20
# Time for calls in progress before another configuration serves; and for the rest of them at the end.
MOVE_S, WIND_DOWN_S = 10.0, 0.2


class HttpServices:
    """All sockets at which HTTP is served. Unfinished requests to any of them are counted together."""

    def __init__(self, houses: Houses) -> None:
        self._houses = houses
        self._services: dict[asyncio.Task[Any], HttpService] = {}
        self._unfinished: Unfinished | None = None

    async def serve(self, front: Caller) -> None:
        """Take the front's socket and serve on it until the front goes, or the hub ends."""
        task = asyncio.current_task()
        assert task is not None
        try:
            terms = read_terms(dict(front.said.get("http") or {}))
            listener = listener_among(await front.passed("socket"), terms)
        except ConfigError as problem:
            log.warning("HTTP is not served for process %d: %s", front.pid, problem)
            await front.say({"refused": str(problem)})
            return
        with listener:
            self._services[task] = service = HttpService(self._houses, listener, terms, front)
            log.info("HTTP is served on %s for process %d", service.address, front.pid)
            try:
                await service.run(self._limits())
            finally:
                del self._services[task]
                log.info("HTTP is no longer served on %s for process %d", service.address, front.pid)

    def _limits(self) -> Unfinished:
        # On the event loop, not in a thread: two threads that import modules at once can deadlock.
        from ..fronts.http.connections import Unfinished

        self._unfinished = self._unfinished or Unfinished()
        return self._unfinished

    def needs(self) -> list[str]:
        """Explain why this process is needed, as sentences."""
        services = self._services.values()
        return [f"it serves HTTP on {service.address} for pid {service.front.pid}" for service in services]

    def facts(self) -> list[dict[str, Any]]:
        return [service.fields() for service in self._services.values()]

    async def leave(self, limit_s: float) -> None:
        """Wait until all have wound down, which they do once the hub is leaving."""
        if self._services:
            await asyncio.wait(tuple(self._services), timeout=limit_s)


class HttpService:
    """HTTP on one socket, for one front."""

    def __init__(self, houses: Houses, listener: socket.socket, terms: Terms, front: Caller) -> None:
        self._houses = houses
        self._listener = listener
        self._terms = terms
        self.front = front
        self.address = address_of(listener)
        self._since = time.time()
        self._http: HttpServer | None = None

    def fields(self) -> dict[str, Any]:
        page = {"page": f"http://{self.address}/ui/"} if self._terms.key else {}
        return {"address": self.address, "process": self.front.pid, "since": self._since, **page}

    async def run(self, unfinished: Unfinished) -> None:
        """Serve until the front is gone, the hub is leaving, or the front must come again for another configuration."""
        from ..fronts.mcp.logs import FrontLog

        front = self.front
        config, session = client_of(front.said, is_of_many=True)
        house = await self._houses.enter(config, session)
        session.log = own_log = FrontLog(house.log, LineLog(front.writer))
        ends = [asyncio.ensure_future(end) for end in (_gone(front.reader), session.moved.wait(), front.leaving.wait())]
        serving = asyncio.ensure_future(self._serve(house, session, unfinished))
        try:
            await asyncio.wait((serving, *ends), return_when=asyncio.FIRST_COMPLETED)
            if session.moved.is_set():
                await asyncio.wait((asyncio.ensure_future(session.calls.settled()),), timeout=MOVE_S)
                await front.say({"again": True})
            await self._wind_down(serving)
        finally:
            for end in ends:
                end.cancel()
            own_log.close()
            self._houses.leave_house(house, session)

    async def _serve(self, house: House, session: Session, unfinished: Unfinished) -> None:
        server, _ = await house.made()
        # Imported here for the same reason: not in a thread.
        from ..fronts.http.serve import HttpServer

        # Connections are accepted, and requests answered, in this task's context.
        begin(session)
        self._http = HttpServer(server, self._listener, self._terms, house.live(self._houses.about), unfinished)
        await self.front.say({"serving": True})
        await self._http.begin()

    async def _wind_down(self, serving: asyncio.Future[None]) -> None:
        """End the service. Calls that need longer to stop their commands are not waited for: the hub goes on."""
        if self._http:
            await self._http.wind_down()
        serving.cancel()
        await asyncio.wait((serving,), timeout=WIND_DOWN_S)
        if serving.done() and not serving.cancelled() and (failed := serving.exception()):
            raise failed


class LineLog(logging.Handler):
    """Sends log lines to the front, from whichever thread they come."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        super().__init__()
        self._writer = writer
        self._loop = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        self._loop.call_soon_threadsafe(self._send, self.format(record))

    def _send(self, text: str) -> None:
        transport = self._writer.transport
        if not transport.is_closing() and transport.get_write_buffer_size() < MOST_UNSENT:
            self._writer.write(json.dumps({"log": text}).encode() + b"\n")


async def _gone(reader: asyncio.StreamReader) -> None:
    """Wait until the front is gone; while it lives, it sends nothing."""
    with contextlib.suppress(ConnectionError):
        while await reader.read(1 << 16):
            pass
