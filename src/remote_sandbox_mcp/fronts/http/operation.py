"""Addresses for those who operate a server: /healthz says whether it works, /metrics has numbers for Prometheus."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress

from ... import __version__
from ...app import App
from ...local.waiting import within
from ...views.live.metrics import metrics_text
from ...views.live.service import JOBS, Live
from ...views.live.watcher import MACHINES
from ..page.http import NOT_KEPT, Receive, Scope, Send

PATHS = ("/healthz", "/metrics")
# For machines that have not answered yet.
FIRST_S = 2.0


class Operation:
    """ASGI application of these addresses, for requests that have passed the gate."""

    def __init__(self, app: App, live: Live) -> None:
        self._app = app
        self._live = live

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/metrics":
            kind, body = b"text/plain; version=0.0.4; charset=utf-8", await self._metrics()
        else:
            kind, body = b"application/json", self._health()
        headers = [NOT_KEPT, (b"content-type", kind), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _health(self) -> bytes:
        problems = self._app.standing_problems()
        health = {"status": "degraded" if problems else "ok", "version": __version__, "problems": len(problems)}
        return f"{json.dumps(health)}\n".encode()

    async def _metrics(self) -> bytes:
        """Read the numbers as a viewer: machines are asked meanwhile."""
        until = time.monotonic() + FIRST_S
        with self._live.looking((MACHINES, JOBS)) as viewer:
            while not self._is_settled() and (rest := until - time.monotonic()) > 0:
                with suppress(asyncio.TimeoutError):
                    await within(viewer.changes(), rest)
        rows = self._live.rows
        return metrics_text(self._app.history.tally, rows(MACHINES).values(), rows(JOBS).values()).encode()

    def _is_settled(self) -> bool:
        machines = self._live.rows(MACHINES).values()
        return self._live.knows(JOBS) and bool(machines) and all(row["state"] != "asking" for row in machines)
