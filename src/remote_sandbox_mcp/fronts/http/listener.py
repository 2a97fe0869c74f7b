"""Terms of HTTP (address, key, names), checked before anything listens, and the socket."""

from __future__ import annotations

import errno
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...config.secrets import key_in
from ...core.errors import ConfigError
from ...core.permission import is_loopback
from ...core.sandboxes.secret import Secret
from ...core.serving import Http

KEY_FILE = "http.key"
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Terms of every request. `key` None: no key is needed; `kept_in` is the file of a key that we made.

    `seal` is new with each process that listens: what it lets in, it lets in only while that process lives.
    """

    host: str
    port: int
    key: Secret | None
    hosts: tuple[str, ...]
    origins: tuple[str, ...] = ()
    kept_in: Path | None = None
    seal: str = field(default_factory=lambda: secrets.token_hex(16), repr=False, compare=False)

    def as_fields(self) -> dict[str, Any]:
        """Return JSON for another process of the same user, sent over its private socket; includes the key."""
        key = None if self.key is None else self.key.reveal()
        names = {"hosts": self.hosts, "origins": self.origins}
        return {"host": self.host, "port": self.port, "key": key, "seal": self.seal, **names}


def read_terms(fields: Mapping[str, Any]) -> Terms:
    """Terms that another process sent. Raises ConfigError, whose text shows none of the values."""
    key, port = fields.get("key"), fields.get("port")
    if key is not None and not (isinstance(key, str) and key.strip()):
        raise ConfigError("the key with which HTTP is to be served is none")
    hosts, origins = (fields.get(name) for name in ("hosts", "origins"))
    if not isinstance(hosts, list) or not isinstance(origins, list):
        raise ConfigError("the names under which HTTP is to be served are missing")
    return Terms(
        host=str(fields.get("host") or ""),
        port=port if isinstance(port, int) else 0,
        key=None if key is None else Secret(key),
        hosts=tuple(str(name) for name in hosts),
        origins=tuple(str(name) for name in origins),
        # A front of an earlier version sends none.
        seal=str(fields.get("seal") or secrets.token_hex(16)),
    )


def agree(http: Http, state: Path, *, without_key: bool = False) -> Terms:
    """The configured terms. Raises ConfigError where they would let strangers in."""
    if http.api_key is not None and not http.api_key.reveal().strip():
        raise ConfigError("the key of REMOTE_SANDBOX_API_KEY, or of api_key under [http], is empty; set another one.")
    if is_loopback(http.host):
        return _loopback_terms(http, state, without_key)
    if without_key:
        raise ConfigError(f"--no-auth is for this machine alone, and {http.host} is beyond it; leave one of them out.")
    if http.api_key is None:
        raise ConfigError(
            f"to listen on {http.host}, beyond this machine, set a key of your own: REMOTE_SANDBOX_API_KEY, or api_key "
            "under [http] in config.toml."
        )
    if not http.allowed_hosts:
        raise ConfigError(
            f"to listen on {http.host}, beyond this machine, say under which names it is called: allowed_hosts = "
            '["mcp.example.com"] under [http] in config.toml.'
        )
    return Terms(
        host=http.host, port=http.port, key=http.api_key, hosts=http.allowed_hosts, origins=http.allowed_origins
    )


def _loopback_terms(http: Http, state: Path, without_key: bool) -> Terms:
    """The terms on loopback: a key is still needed, because other users of this computer can connect, too."""
    made = http.api_key is None and not without_key
    file = state / KEY_FILE if made else None
    return Terms(
        host=http.host,
        port=http.port,
        key=Secret(key_in(file)) if file else None if without_key else http.api_key,
        hosts=(*LOOPBACK_NAMES, *http.allowed_hosts),
        origins=http.allowed_origins,
        kept_in=file,
    )


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
