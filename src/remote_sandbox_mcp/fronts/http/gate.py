"""Checks every HTTP request before its body is read: Host, Origin and key.

A web page can have any name resolve to this machine, and so reach it from the user's own browser; but it can neither
change the Host that its browser sends, nor hide its Origin.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from ..page.app import PageApp
from ..page.http import is_page
from . import operation
from .listener import Terms

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]
Header = tuple[bytes, bytes]

PATHS = ("/", "/mcp", "/mcp/")
CHALLENGE = 'Bearer realm="remote-sandbox-mcp"'
NO_PAGE = "there is no page without a key: leave --no-auth out, or use remote-sandbox-mcp dashboard"
# Beside Authorization; names of headers are in small letters here, and apiKey is what some clients send.
KEY_HEADERS = ("x-api-key", "api-key", "apikey")
PREFLIGHT = (
    (b"access-control-allow-methods", b"GET, POST, DELETE"),
    (b"access-control-allow-headers", b"authorization, content-type, last-event-id, mcp-protocol-version, "
     b"mcp-session-id, mcp-method, mcp-name, x-api-key, api-key, apikey"),
    (b"access-control-max-age", b"600"),
)  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """The parts of a request on which the decision is based."""

    method: str
    path: str
    headers: tuple[Header, ...]

    def all(self, name: str) -> list[str]:
        return [value.decode("latin-1") for key, value in self.headers if key == name.encode()]

    def one(self, name: str) -> str:
        """The header's value; empty where it is missing, or given more than once."""
        values = self.all(name)
        return values[0].strip() if len(values) == 1 else ""


@dataclass(frozen=True)
class HttpAnswer:
    """An answer that is sent in place of the server's."""

    status: int
    text: str = ""
    headers: tuple[Header, ...] = ()


class HttpGate:
    """ASGI application around the one that serves MCP, and the page, which has a key check of its own."""

    def __init__(
        self, app: AsgiApp, terms: Terms, page: PageApp | None = None, operation: AsgiApp | None = None
    ) -> None:
        self._app = app
        self._page = page
        self._operation = operation
        self._terms = terms
        self._digest = None if terms.key is None else _digest(terms.key.reveal().encode())

    def may_upgrade(self, scope: Scope) -> bool:
        """Whether a request may become a WebSocket, which only the page has."""
        return self._page is not None and self.decide(_asked(scope)) is None and self._page.may_upgrade(scope)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = _asked(scope)
        if answer := self.decide(asked):
            await _say(answer, send)
            return
        if self._page and is_page(asked.path):
            await self._page(scope, receive, send)
            return
        if self._operation and asked.path in operation.PATHS:
            await self._operation(scope, receive, send)
            return
        if (origin := asked.one("origin")) in self._terms.origins:
            send = _sharing(send, origin)
        await self._app(scope, receive, send)

    def decide(self, asked: Asked) -> HttpAnswer | None:
        """The answer to a request that is refused; None where it may pass."""
        origin = asked.one("origin")
        if not self._is_our_name(asked.one("host")):
            return HttpAnswer(421, "this server is not called by that name; its operator can allow it under [http]")
        if asked.all("origin") and not self._is_allowed_page(origin, asked.one("host")):
            return HttpAnswer(403, "web pages of that origin may not call this server; its operator can allow it")
        if is_page(asked.path):
            return self._decide_page(asked, origin)
        if asked.path in operation.PATHS:
            is_read = asked.method in ("GET", "HEAD")
            return None if is_read and self._has_key(asked) else _unknown(asked) if is_read else HttpAnswer(405)
        if asked.path not in PATHS:
            return HttpAnswer(404, "MCP is served at / and /mcp")
        if asked.method == "OPTIONS" and origin in self._terms.origins:
            return HttpAnswer(204, headers=(*PREFLIGHT, *_shared(origin)))
        return None if self._has_key(asked) else _unknown(asked)

    def _decide_page(self, asked: Asked, origin: str) -> HttpAnswer | None:
        """Origins that the operator allows are for MCP: the page is used by itself alone."""
        if asked.all("origin") and not _is_own_page(origin, asked.one("host")):
            return HttpAnswer(403, "only the page itself may ask for this")
        return None if self._page else HttpAnswer(404, NO_PAGE)

    def _is_our_name(self, host: str) -> bool:
        name = host.lower()
        without_port = name.rpartition(":")[0] if name.rpartition(":")[2].isdigit() else name
        return bool(name) and (name in self._terms.hosts or without_port in self._terms.hosts)

    def _is_allowed_page(self, origin: str, host: str) -> bool:
        """Whether a web page of this origin may call us: the server's own origin, or one that the operator allows."""
        return origin.lower() in self._terms.origins or _is_own_page(origin, host)

    def _has_key(self, asked: Asked) -> bool:
        digest = self._digest
        if digest is None:
            return True
        # Compare digests, and all of them, so that the time taken reveals nothing about the key.
        return any([hmac.compare_digest(_digest(given), digest) for given in _given(asked)])


def _asked(scope: Scope) -> Asked:
    return Asked(scope.get("method", "GET"), scope["path"], tuple(scope["headers"]))


def _is_own_page(origin: str, host: str) -> bool:
    return origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")


def _given(asked: Asked) -> list[bytes]:
    """The keys of a request: with or without the word Bearer, and in the headers that other servers take."""
    words = (value.split(None, 1) for value in asked.all("authorization"))
    bearers = [pair[-1] for pair in words if len(pair) == 1 or (pair and pair[0].lower() == "bearer")]
    others = (value for name in KEY_HEADERS for value in asked.all(name))
    return [value.strip().encode("latin-1") for value in (*bearers, *others)]


def _unknown(asked: Asked) -> HttpAnswer:
    challenge = f'{CHALLENGE}, error="invalid_token"' if _given(asked) else CHALLENGE
    return HttpAnswer(
        401,
        "the key is missing or wrong; send it as Authorization: Bearer KEY, or as X-API-Key: KEY; in .mcp.json: "
        '"headers": {"Authorization": "Bearer KEY"}, because many clients ignore "apiKey"',
        ((b"www-authenticate", challenge.encode()),),
    )


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()


async def _say(answer: HttpAnswer, send: Send) -> None:
    body = f"{answer.text}\n".encode() if answer.text else b""
    # The body was not read, so the connection cannot be reused.
    headers = [*answer.headers, (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
    if body:
        headers.append((b"content-type", b"text/plain; charset=utf-8"))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _shared(origin: str) -> tuple[Header, ...]:
    return (
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", b"mcp-session-id"),
        (b"vary", b"origin"),
    )


def _sharing(send: Send, origin: str) -> Send:
    """Add the CORS headers that let this page, and no other, read the answer."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *_shared(origin)]}
        await send(message)

    return sending
