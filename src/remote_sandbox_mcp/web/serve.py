"""Serving MCP over HTTP: one port, any number of clients, and an end within a second."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import signal
import socket
from collections.abc import Generator
from typing import Any, NoReturn

import uvicorn
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from ..app import App
from ..core.errors import ConfigError
from ..mcp_server.clients import Sessions
from ..mcp_server.server import build
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


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises ConfigError."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        return socket.create_server(address[:2], family=family, backlog=256)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            why = "another program listens there; end it, or choose another port with --port"
        else:
            why = f"{error.strerror}; check --host and --port"
        raise ConfigError(f"unable to listen on {host}, port {port}: {why}.") from error


def serve(app: App, listener: socket.socket, terms: Terms) -> None:
    """Serve until a signal comes; the process ends here."""
    asyncio.run(_serve(app, listener, terms))


class Web(uvicorn.Server):
    """Leaves signals to us, and has more connections wait in the kernel than it accepts at once."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(WAITING_IN_KERNEL)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


async def _serve(app: App, listener: socket.socket, terms: Terms) -> NoReturn:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    manager = StreamableHTTPSessionManager(
        build(app, Sessions())._lowlevel_server,
        max_request_body_size=LARGEST_REQUEST,
        session_idle_timeout=IDLE_S,
        max_sessions=MOST_SESSIONS,
    )
    web = _web(Gate(manager.handle_request, terms))
    serving = asyncio.ensure_future(_run(manager, web, listener))
    reviving = asyncio.ensure_future(revive(app))
    await asyncio.wait((serving, asyncio.ensure_future(stopped.wait())), return_when=asyncio.FIRST_COMPLETED)
    reviving.cancel()
    await leave(app, await _wind_down(web, serving), FAREWELL_S)


def _web(gate: Gate) -> Web:
    connection: Any = functools.partial(Connection, Unfinished())
    return Web(
        uvicorn.Config(
            gate, http=connection, backlog=ACCEPTED_AT_ONCE, ws="none",
            lifespan="off", interface="asgi3", log_config=None, access_log=False, proxy_headers=False,
            server_header=False, date_header=False,
        )
    )  # fmt: skip


async def _run(manager: StreamableHTTPSessionManager, web: Web, listener: socket.socket) -> None:
    async with manager.run():
        await web.serve(sockets=[listener])


async def _wind_down(web: Web, serving: asyncio.Future[None]) -> BaseException | None:
    """Take no more, send what is on its way, then give up every call in progress, and its command with it."""
    web.should_exit = True
    await asyncio.wait((serving,), timeout=GRACE_S)
    # It takes a call that we give up for one that has failed.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    for task in list(web.server_state.tasks):
        task.cancel()
    serving.cancel()
    await asyncio.wait((serving, *web.server_state.tasks), timeout=WIND_DOWN_S)
    return serving.exception() if serving.done() and not serving.cancelled() else None
