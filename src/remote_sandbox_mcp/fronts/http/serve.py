"""Serving MCP over HTTP: one port, any number of clients, and an end within a second."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import signal
import socket
from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass
from typing import Any

import uvicorn
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from ...app import App
from ...local.processes import descriptors
from ...services import session
from ...views.live.service import Live
from ..mcp.clients import HttpSessions
from ..mcp.server import SandboxServer, build, prepare
from ..mcp.stdio import close, leave
from ..page.app import PageApp
from .connections import Connection, Unfinished, most_unfinished
from .gate import HttpGate
from .listener import Terms
from .operation import Operation

log = logging.getLogger(__name__)

# A call may carry files in base64.
LARGEST_REQUEST = 64 << 20
# WebSockets have small messages, and nothing packed that grows. One whose browser has slept for so long is given up.
SOCKETS: Mapping[str, Any] = {"ws_max_size": 64 << 10, "ws_per_message_deflate": False, "ws_ping_timeout": 300.0}
MOST_SESSIONS = 2000
# Few are accepted per turn of the loop, so that each is read before it can become the oldest unfinished one; the others
# wait in the kernel.
ACCEPTED_AT_ONCE, WAITING_IN_KERNEL = 50, 4096
# A client that vanished is forgotten after this long; if it comes back, it starts a new session.
IDLE_S = 4 * 3600
# At the end: for answers being sent, for calls to stop their commands, for connections to close.
GRACE_S, WIND_DOWN_S, ENDING_S = 0.25, 0.2, 0.2
# Before a hub serves again: for calls to end, then for everything that is open to close.
CALLS_S, RETURNING_S = 600.0, 5.0


@dataclass(frozen=True)
class WithoutHub:
    """Reason why this process serves and not the hub, and a wait until a hub can serve again."""

    why: str
    is_over: Callable[[], Coroutine[Any, Any, None]]


def serve(app: App, listener: socket.socket, terms: Terms, without_hub: WithoutHub | None = None) -> None:
    """Serve until a signal comes, which ends the process; returns when a hub can serve again."""
    loop = asyncio.new_event_loop()
    loop.run_until_complete(_serve(app, listener, terms, without_hub))
    # Not asyncio.run(): it would wait for every thread that is still at work.
    loop.close()


async def _serve(app: App, listener: socket.socket, terms: Terms, without_hub: WithoutHub | None) -> None:
    descriptors.raise_limit()
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    live = Live(app, lambda: {"without_hub": without_hub.why} if without_hub else {})
    # Its folder is not that of a client.
    session.begin(session.Session(is_over_http=True))
    await prepare(app)
    server = build(app, HttpSessions())
    http = HttpServer(server, listener, terms, live)
    ends: list[asyncio.Future[Any]] = [http.begin(), asyncio.ensure_future(stopped.wait())]
    reviving = asyncio.ensure_future(app.revive())
    returning = asyncio.ensure_future(_hub_is_back(without_hub, server)) if without_hub else None
    await asyncio.wait((*ends, *([returning] if returning else [])), return_when=asyncio.FIRST_COMPLETED)
    is_end = any(end.done() for end in ends)
    reviving.cancel()
    failed = await http.wind_down()
    await live.close()
    if is_end:
        await leave(app, failed, ENDING_S)
    await close(app, RETURNING_S)
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    if rest:
        await asyncio.wait(rest, timeout=WIND_DOWN_S)


async def _hub_is_back(without_hub: WithoutHub, server: SandboxServer) -> None:
    """Wait until a hub can serve, and then for the end of all calls here."""
    await without_hub.is_over()
    log.warning("a hub answers again; it serves as soon as the calls here have ended")
    await asyncio.wait((asyncio.ensure_future(server.calls.idle()),), timeout=CALLS_S)


class HttpServer:
    """One listening socket at which a server is reached over HTTP. A process may have several."""

    def __init__(
        self,
        server: SandboxServer,
        listener: socket.socket,
        terms: Terms,
        live: Live,
        unfinished: Unfinished | None = None,
    ) -> None:
        """`unfinished` is passed where several servers share their limits. Without a key there is no page."""
        self._listener = listener
        self._manager = StreamableHTTPSessionManager(
            server._lowlevel_server,
            max_request_body_size=LARGEST_REQUEST,
            session_idle_timeout=IDLE_S,
            max_sessions=MOST_SESSIONS,
        )
        self._page = PageApp(server, live, terms.key, terms.seal) if terms.key else None
        self._web = _web(
            HttpGate(self._manager.handle_request, terms, self._page, Operation(server.app, live)), unfinished
        )
        self._serving: asyncio.Future[None] | None = None

    def begin(self) -> asyncio.Future[None]:
        """Serve until wind_down; the future ends earlier only if serving fails."""
        self._serving = asyncio.ensure_future(self._run())
        return self._serving

    async def _run(self) -> None:
        async with self._manager.run():
            await self._web.serve(sockets=[self._listener])

    async def wind_down(self) -> BaseException | None:
        """Accept no more, send pending answers, then cancel every call in progress together with its command."""
        assert self._serving is not None
        web, serving = self._web, self._serving
        # uvicorn looks at this flag ten times a second.
        web.should_exit = True
        if self._page:
            self._page.end()
        await asyncio.wait((serving,), timeout=GRACE_S)
        # uvicorn would log the calls that we cancel as failed.
        web.troubles.disabled = True
        for task in list(web.server_state.tasks):
            task.cancel()
        serving.cancel()
        await asyncio.wait((serving, *web.server_state.tasks), timeout=WIND_DOWN_S)
        # Close everything, whatever the clients do: the process may go on with other work.
        for server in web.servers:
            server.close()
        for connection in list(web.server_state.connections):
            connection.transport.abort()
        return serving.exception() if serving.done() and not serving.cancelled() else None


class Web(uvicorn.Server):
    """uvicorn without its signal handlers, and with more connections waiting in the kernel than it accepts at once."""

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


def _web(gate: HttpGate, unfinished: Unfinished | None = None) -> Web:
    # One logger per server, so that one can be silenced while others go on.
    troubles = logging.Logger("uvicorn.error")
    troubles.parent = logging.getLogger("uvicorn.error")
    connection: Any = functools.partial(Connection, unfinished or Unfinished(), troubles, gate.may_upgrade)
    return Web(
        uvicorn.Config(
            gate, http=connection, backlog=min(ACCEPTED_AT_ONCE, most_unfinished()), ws="none",
            lifespan="off", interface="asgi3", log_config=None, access_log=False, proxy_headers=False,
            server_header=False, date_header=False, **SOCKETS,
        ),
        troubles,
    )  # fmt: skip
