"""The socket for HTTP: opened here, or passed in by another process of the same user."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence

from ..core.errors import ConfigError
from ..core.permission import is_loopback
from .terms import Terms


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


def listener_among(passed: Sequence[int], terms: Terms) -> socket.socket:
    """The single descriptor that was passed to us, as a socket that fits these terms; others are closed.

    Raises ConfigError where there is not exactly one, or where it is something else.
    """
    if len(passed) != 1:
        _close(passed)
        raise ConfigError(f"one listening socket has to be handed over, and {len(passed)} descriptors were")
    try:
        found = socket.socket(fileno=passed[0])
    except OSError:
        _close(passed)
        raise ConfigError("what was handed over is no socket") from None
    try:
        _check(found, terms)
    except BaseException:
        found.close()
        raise
    found.set_inheritable(False)
    return found


def address_of(listener: socket.socket) -> str:
    """The address of a listening socket as people write it."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _check(found: socket.socket, terms: Terms) -> None:
    is_tcp = found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM
    # The protocol is 0 where the kernel does not report it.
    is_tcp = is_tcp and found.proto in (0, socket.IPPROTO_TCP)
    if not is_tcp or not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise ConfigError("what was handed over is no socket that listens for TCP connections")
    host = found.getsockname()[0]
    is_agreed = not is_loopback(terms.host) and terms.key is not None and bool(terms.hosts)
    if not is_loopback(host) and not is_agreed:
        raise ConfigError(f"what was handed over listens on {host}, beyond this machine, and that was not agreed on")


def _close(passed: Sequence[int]) -> None:
    for fd in passed:
        os.close(fd)
