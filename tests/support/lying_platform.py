"""An OpenSandbox platform and its agent (execd) that lie: a real HTTP server that says whatever it is told to."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from remote_sandbox_mcp.backends.opensandbox.order import ID, MARK
from remote_sandbox_mcp.core.sandboxes.disposable import Platform
from remote_sandbox_mcp.core.sandboxes.secret import Secret

KEY = "the-key-of-the-platform"
INSTALLATION = "tests"
BOX_ID = "sb-0123456789ab"


@dataclass(frozen=True)
class Asked:
    """One request that came in."""

    method: str
    path: str
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Slowly:
    """Sent at once, and then one byte at a time, each after so many seconds."""

    head: bytes
    data: bytes
    pause_s: float


@dataclass(frozen=True)
class Flood:
    """Sent once, and then the same piece again and again."""

    head: bytes
    piece: bytes


Reply = Callable[[Asked], "bytes | Slowly | Flood"]


def answer(body: object, status: str = "200 OK", kind: str = "application/json", more: str = "") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n{more}Connection: close\r\n\r\n"
    )
    return head.encode("latin-1", "replace") + data


def events(*said: object) -> bytes:
    return answer(b"".join(json.dumps(event).encode() + b"\n\n" for event in said), kind="text/event-stream")


INFO: dict[str, Any] = {
    "id": "key-1",
    "status": {"state": "Running"},
    "entrypoint": ["sh"],
    "createdAt": "2026-11-16T21:39:16Z",
    "expiresAt": "2026-11-17T21:39:16Z",
    "image": {"uri": "sandbox:test"},
    "metadata": {MARK: INSTALLATION, ID: BOX_ID},
}
PAGES = {"page": 1, "pageSize": 100, "totalItems": 1, "totalPages": 1, "hasNextPage": False}
RAN = (
    {"type": "init", "text": "1", "timestamp": 1},
    {"type": "stdout", "text": "bridge 8000", "timestamp": 1},
    {"type": "execution_complete", "execution_time": 1, "timestamp": 1},
)


@dataclass
class LyingPlatform:
    """One address for the platform and the agent; what is asked of it is kept."""

    reply: Reply | None = None
    asked: list[Asked] = field(default_factory=list)
    host: str = "127.0.0.1"
    sent: int = 0
    _server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"{self.host}:{self._server.sockets[0].getsockname()[1]}"

    def settings(self, *, use_server_proxy: bool = False, timeout_s: float = 1.0) -> Platform:
        return Platform(
            server_url=f"http://{self.address}",
            api_key=Secret(KEY),
            use_server_proxy=use_server_proxy,
            request_timeout_s=timeout_s,
            ready_timeout_s=timeout_s,
        )

    def honest(self, asked: Asked) -> bytes:
        """What is said by one that does not lie."""
        path = asked.path.partition("?")[0]
        for part, said in self.truths().items():
            method, _, end = part.partition(" ")
            if asked.method == method and (path.endswith(end) or (end == "*" and "/sandboxes/" in path)):
                return said
        return answer({}, "404 Not Found")

    def truths(self) -> dict[str, bytes]:
        """By method and the end of the path."""
        return {
            "POST /command": events(*RAN),
            "GET /files/download": answer(b"here\nover\n", kind="application/octet-stream"),
            "DELETE /files": answer({}),
            "GET /ping": answer({}),
            "GET /policy": answer({"policy": {"defaultAction": "deny"}, "enforcementMode": "dns+nft"}),
            "POST /sandboxes": answer(INFO, "202 Accepted"),
            "GET /sandboxes": answer({"items": [INFO], "pagination": PAGES}),
            "GET /endpoints/44772": answer({"endpoint": self.address}),
            "GET /endpoints/18080": answer({"endpoint": self.address}),
            "GET /endpoints/8000": answer({"endpoint": self.address}),
            "POST /renew-expiration": answer({"expiresAt": "2026-11-17T21:39:16Z"}),
            "POST /pause": answer({}, "202 Accepted"),
            "POST /resume": answer({}, "202 Accepted"),
            "DELETE *": answer(b"", "204 No Content"),
            "GET *": answer(INFO),
        }

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, path, _ = head[0].split(" ", 2)
            pairs = (line.partition(": ") for line in head[1:] if line)
            headers = {name.lower(): value for name, _, value in pairs}
            await reader.readexactly(int(headers.get("content-length", "0")))
            asked = Asked(method, path, headers)
            self.asked.append(asked)
            await self._say(writer, (self.reply or self.honest)(asked))
        with suppress(OSError):
            writer.close()
            await writer.wait_closed()

    async def _say(self, writer: asyncio.StreamWriter, said: bytes | Slowly | Flood) -> None:
        for part, pause_s in pieces_of(said):
            writer.write(part)
            await writer.drain()
            self.sent += len(part)
            await asyncio.sleep(pause_s)


def pieces_of(said: bytes | Slowly | Flood) -> Iterator[tuple[bytes, float]]:
    if isinstance(said, Slowly):
        yield said.head, 0.0
        yield from ((bytes([byte]), said.pause_s) for byte in said.data)
    elif isinstance(said, Flood):
        yield said.head, 0.0
        yield from itertools.repeat((said.piece, 0.0))
    else:
        yield said, 0.0


@asynccontextmanager
async def lying_platform(reply: Reply | None = None, host: str = "127.0.0.1") -> AsyncIterator[LyingPlatform]:
    platform = LyingPlatform(reply, host=host)
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        serving.add(task)
        try:
            await platform._serve(reader, writer)
        except asyncio.CancelledError:
            writer.close()
        finally:
            serving.discard(task)

    platform._server = await asyncio.start_server(serve, host, 0)
    try:
        yield platform
    finally:
        platform._server.close()
        for task in list(serving):
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
