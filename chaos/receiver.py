"""A webhook's server that counts what it is sent."""

from __future__ import annotations

import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Receiver:
    """Takes events on a free port of this computer; `received` counts them by their number in the database."""

    def __init__(self) -> None:
        self.received: Counter[int] = Counter()
        counted = self.received

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                counted[int(self.headers["X-RSMCP-Event-Id"].partition("-")[0])] += 1
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/events"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
