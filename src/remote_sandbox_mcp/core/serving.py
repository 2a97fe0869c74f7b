"""Settings of the HTTP server, of logging, and of what a server calls itself."""

from __future__ import annotations

from dataclasses import dataclass

from .sandboxes.secret import Secret


@dataclass(frozen=True, kw_only=True)
class Http:
    """Serving over HTTP. Beyond loopback it needs a key, and the host names under which it is called."""

    api_key: Secret | None = None
    host: str = "127.0.0.1"
    port: int = 3000
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Logging:
    """Settings of the server's log; without a file, it goes to standard error."""

    level: str = "WARNING"
    file: str = ""
    max_size_mb: float = 10.0


@dataclass(frozen=True, kw_only=True)
class Announced:
    """Name, version and description that clients are told, where they are configured; empty for its own."""

    name: str = ""
    version: str = ""
    description: str = ""
