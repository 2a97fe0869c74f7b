"""Serving MCP: from the first instruction to the first answer."""

from __future__ import annotations

import os
import signal
import stat
import sys

from ..config import paths
from ..config.paths import NO_HUB

# A front runs through here and stays as long as its client, so this must stay small.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from socket import socket

    from ..config.schema import Configuration
    from ..config.source import ConfigSource
    from ..fronts.http.listener import Terms
    from ..fronts.mcp.handshake import Handshake
    from ..services.hub_contact.hello import Handover

# How often threads switch while modules load, so that the first questions do not wait.
TURN_S = 0.0005


def run(config: str, *, hub: bool = True) -> int:
    """Serve, through the hub where possible; does not return. `config` is empty for the default file."""
    handover: Handover | None = None
    if hub and _is_stream(0) and _is_stream(1) and not os.environ.get(NO_HUB):
        from ..hub import front

        handover = front.run(config)
        if handover is None:
            return 0
    from pathlib import Path

    return _serve_here(Path(config) if config else None, handover)


def _serve_here(config: Path | None, handover: Handover | None) -> int:
    """Serve in this process; does not return."""
    leave_on_signal()
    from ..local.processes import loading

    loading.begin()
    handshake = _start_handshake(config, handover)
    turn = sys.getswitchinterval()
    sys.setswitchinterval(TURN_S)
    import asyncio

    from ..fronts.mcp import prefetch

    def loaded() -> None:
        sys.setswitchinterval(turn)
        loading.end()

    asyncio.run(prefetch.serve(configured(config), handshake, loaded))
    return 0


def run_http(config: Path | None, host: str | None, port: int | None, *, without_key: bool, hub: bool = True) -> int:
    """Serve over HTTP, through the hub where there is one; does not return unless it cannot listen. Raises ConfigError.

    This process holds the listening socket in any case.
    """
    from dataclasses import replace

    from ..fronts.http.listener import agree, listen

    configuration = configured(config).current
    http = configuration.settings.http
    http = replace(http, host=host or http.host, port=http.port if port is None else port)
    terms = agree(http, paths.state_folder(), without_key=without_key)
    forget_key()
    with listen(terms.host, terms.port) as listener:
        _print_address(terms, listener.getsockname()[1])
        serve_http(listener, terms, configuration, config, hub=hub)
    return 0


def forget_key() -> None:
    """Drop the key from our variables: it is part of the terms now, and programs that we start must not inherit it."""
    from ..config.schema import SERVICE_VARIABLES

    for name in SERVICE_VARIABLES["http"]["api_key"]:
        os.environ.pop(name, None)


def serve_http(
    listener: socket, terms: Terms, configuration: Configuration, config: Path | None, *, hub: bool = True
) -> None:
    """Serve on this socket, through the hub where there is one; the process ends here."""
    if hub and not os.environ.get(NO_HUB):
        _serve_http_by_hub(listener, terms, configuration, config)
        return
    leave_on_signal()
    from ..app import compose
    from ..fronts.http import serve

    serve.serve(compose(configuration), listener, terms)


def _serve_http_by_hub(listener: socket, terms: Terms, configuration: Configuration, config: Path | None) -> None:
    """Let hubs serve, and serve here while there is none; does not return."""
    import logging

    from ..hub import http_front

    returning = http_front.HubReturn()
    while True:
        returning.hand_over()
        problem = http_front.run(listener, terms.as_fields(), str(config or ""))
        leave_on_signal()
        logging.getLogger(__name__).warning("serving without a hub: %s", problem)
        from ..app import compose
        from ..fronts.http import serve

        # A duplicate, because it is closed at the end: clients that connect meanwhile wait in the kernel.
        serve.serve(compose(configuration), listener.dup(), terms, serve.WithoutHub(problem, returning.wait))
        leave_on_signal()


def leave_on_signal() -> None:
    """Exit with 0 on a signal, until the event loop handles signals: before that there is nothing to clean up."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(0))


def _print_address(terms: Terms, port: int) -> None:
    """Print the address and, if we made it, the key: the only place that shows it."""
    host = f"[{terms.host}]" if ":" in terms.host else terms.host
    page = f", and the page at http://{host}:{port}/ui/" if terms.key else ""
    lines = [f"remote-sandbox-mcp: serving MCP at http://{host}:{port} and http://{host}:{port}/mcp{page}"]
    if terms.kept_in and terms.key:
        header = f"Authorization: Bearer {terms.key.reveal()}"
        lines.append(f"remote-sandbox-mcp: clients send {header} (kept in {terms.kept_in})")
    # In one write: a reader that waits for the first line may end us right after it.
    print("".join(f"{line}\n" for line in lines), end="", file=sys.stderr, flush=True)


def configured(config: Path | None) -> ConfigSource:
    """Read the configuration, report its problems, and begin the log."""
    from ..config.source import ConfigSource
    from ..fronts.mcp import logs

    source = ConfigSource(config)
    configuration = source.read()
    unlogged = logs.begin(configuration.settings.logging)
    _complain(*configuration.problems, *([unlogged] if unlogged else []))
    return source


def _complain(*problems: str) -> None:
    """Import what makes them harmless only if there are any: most starts have none."""
    if problems:
        from .verb import complain

        complain(*problems)


def _start_handshake(config: Path | None, handover: Handover | None) -> Handshake | None:
    """Begin to answer from the cache, if input and output are pipes that can be polled."""
    if not (_is_stream(0) and _is_stream(1)):
        return None
    from pathlib import Path

    from ..core.errors import ConfigError
    from ..fronts.mcp import handshake

    try:
        folder = paths.state_folder()
    except ConfigError as problem:
        _complain(str(problem))
        folder = Path(os.devnull)
    memory = handshake.first_memory(folder, config)
    listener = handshake.Handshake(memory, handover)
    listener.start()
    return listener


def _is_stream(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
