"""Ports on loopback for tests: one that was given to a test process is given to no other before that process ends."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

HOST = "127.0.0.1"
# Below the ports that the system gives to outgoing connections.
_SINGLE = range(20_000, 27_000)
_BLOCKS = range(27_000, 32_700, 100)
# Names of sockets without a file: the kernel frees them with the process, however it ends.
_reserved: list[socket.socket] = []


def free_port() -> int:
    """Give a port that nobody listens on, and that is this process's own among all that run tests here."""
    while True:
        port = random.choice(_SINGLE)
        if _reserve(port) and _can_listen(port):
            return port


def free_block() -> int:
    """Give the first of a hundred ports in a row that are this process's own, for a program that chooses among them."""
    while True:
        first = random.choice(_BLOCKS)
        if _reserve(first) and all(map(_can_listen, range(first, first + 100))):
            return first


@contextmanager
def silent_port() -> Iterator[int]:
    """A port that accepts connections and never says a word."""
    with socket.create_server((HOST, 0), backlog=128) as server:
        yield server.getsockname()[1]


@contextmanager
def closed_port() -> Iterator[int]:
    """A port that refuses connections, and that nobody else can begin to listen on."""
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        yield sock.getsockname()[1]


def _reserve(port: int) -> bool:
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0remote-sandbox-mcp-tests-port-{port}")
    except OSError:
        name.close()
        return False
    _reserved.append(name)
    return True


def _can_listen(port: int) -> bool:
    with socket.socket() as sock, suppress(OSError):
        sock.bind((HOST, port))
        return True
    return False
