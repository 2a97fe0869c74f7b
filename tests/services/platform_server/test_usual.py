"""A server at the usual address is offered where nothing else is configured; this computer alone is asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from remote_sandbox_mcp.config.schema import Configuration, Settings
from remote_sandbox_mcp.core.sandboxes.disposable import Platform
from remote_sandbox_mcp.services.platform_server import life
from tests.support.ports import HOST, closed_port, free_port


@contextmanager
def answering(status: int, body: Any) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path.startswith("/v1/sandboxes") else 404)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer((HOST, free_port()), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "is_one"),
    [
        (200, {"items": [], "pagination": {"totalItems": 0}}, True),
        (401, {"code": "MISSING_API_KEY", "message": "no key"}, True),
        (401, {"detail": "who are you"}, False),
        (200, ["something", "else"], False),
        (404, {"error": "not found"}, False),
    ],
)
async def test_it_is_known_by_its_answer(
    monkeypatch: pytest.MonkeyPatch, status: int, body: object, is_one: bool
) -> None:
    with answering(status, body) as port:
        monkeypatch.setattr(life, "USUAL", f"http://localhost:{port}")
        assert await life.find_usual(Configuration()) == (life.USUAL if is_one else "")
        configured = Configuration(settings=Settings(platform=Platform(server_url="http://gpu1.example.org")))
        assert await life.find_usual(configured) == ""


async def test_nobody_there_is_no_offer(monkeypatch: pytest.MonkeyPatch) -> None:
    with closed_port() as port:
        monkeypatch.setattr(life, "USUAL", f"http://localhost:{port}")
        assert await life.find_usual(Configuration()) == ""


@pytest.mark.xdist_group("platform")
async def test_the_real_server_is_known(platform: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life, "USUAL", f"http://localhost:{platform.port}")
    assert await life.find_usual(Configuration()) == life.USUAL
