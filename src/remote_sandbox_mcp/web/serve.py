"""Serving MCP over HTTP: one port, any number of clients, and an end within a second."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import signal
import socket
from collections.abc import Generator
from typing import Any, NoReturn

import uvicorn
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from ..app import App
from ..mcp_server.clients import Sessions
from ..mcp_server.server import SandboxServer, build
from ..mcp_server.stdio import leave
from ..mcp_server.watchdog import revive
from .connections import Connection, Unfinished
from .gate import Gate
from .terms import Terms

# Files may come in a call, in base64.
LARGEST_REQUEST = 64 << 20
MOST_SESSIONS = 2000
# So few are accepted in one turn of the loop that each is heard before it can be the oldest unfinished one; the others
# wait in the kernel.
ACCEPTED_AT_ONCE, WAITING_IN_KERNEL = 50, 4096
# A client that has gone without a word is forgotten after this long; one that comes back begins anew.
IDLE_S = 4 * 3600
# At the end: for answers on their way, for calls to give up their commands, for lines to be closed.
GRACE_S, WIND_DOWN_S, FAREWELL_S = 0.25, 0.2, 0.2


def serve(app: App, listener: socket.socket, terms: Terms) -> None:
    """Serve until a signal comes; the process ends here."""
    asyncio.run(_serve(app, listener, terms))


async def _serve(app: App, listener: socket.socket, terms: Terms) -> NoReturn:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    http = HttpServer(build(app, Sessions()), listener, terms)
    serving = http.begin()
    reviving = asyncio.ensure_future(revive(app))
    await asyncio.wait((serving, asyncio.ensure_future(stopped.wait())), return_when=asyncio.FIRST_COMPLETED)
    reviving.cancel()
    await leave(app, await http.wind_down(), FAREWELL_S)


class HttpServer:
    """One listening socket at which a server is reached over HTTP. A process may have several."""

    def __init__(
        self, server: SandboxServer, listener: socket.socket, terms: Terms, unfinished: Unfinished | None = None
    ) -> None:
        """`unfinished` is given where several share their limits."""
        self._listener = listener
        self._manager = StreamableHTTPSessionManager(
            server._lowlevel_server,
            max_request_body_size=LARGEST_REQUEST,
            session_idle_timeout=IDLE_S,
            max_sessions=MOST_SESSIONS,
        )
        self._web = _web(Gate(self._manager.handle_request, terms), unfinished)
        self._serving: asyncio.Future[None] | None = None

    def begin(self) -> asyncio.Future[None]:
        """Serve until wind_down; what is returned ends sooner only where serving fails."""
        self._serving = asyncio.ensure_future(self._run())
        return self._serving

    async def _run(self) -> None:
        async with self._manager.run():
            await self._web.serve(sockets=[self._listener])

    async def wind_down(self) -> BaseException | None:
        """Take no more, send what is on its way, then give up every call in progress, and its command with it."""
        assert self._serving is not None
        web, serving = self._web, self._serving
        web.should_exit = True
        await asyncio.wait((serving,), timeout=GRACE_S)
        # It takes a call that we give up for one that has failed.
        web.troubles.disabled = True
        for task in list(web.server_state.tasks):
            task.cancel()
        serving.cancel()
        await asyncio.wait((serving, *web.server_state.tasks), timeout=WIND_DOWN_S)
        web.hang_up()
        return serving.exception() if serving.done() and not serving.cancelled() else None


class Web(uvicorn.Server):
    """Leaves signals to us, and has more connections wait in the kernel than it accepts at once."""

    def __init__(self, config: uvicorn.Config, troubles: logging.Logger) -> None:
        super().__init__(config)
        self.servers = []
        self.troubles = troubles

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(WAITING_IN_KERNEL)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    def hang_up(self) -> None:
        """Nothing is left of it, whatever clients do: the process may go on with other work."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def _web(gate: Gate, unfinished: Unfinished | None = None) -> Web:
    # One for each server, so that it can be silenced while others are served.
    troubles = logging.Logger("uvicorn.error")
    troubles.parent = logging.getLogger("uvicorn.error")
    connection: Any = functools.partial(Connection, unfinished or Unfinished(), troubles)
    return Web(
        uvicorn.Config(
            gate, http=connection, backlog=ACCEPTED_AT_ONCE, ws="none",
            lifespan="off", interface="asgi3", log_config=None, access_log=False, proxy_headers=False,
            server_header=False, date_header=False,
        ),
        troubles,
    )  # fmt: skip
