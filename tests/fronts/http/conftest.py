"""The installed command serving over HTTP, and the official client talking to it."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.support.server import AGENT, Caller, Entry, arguments, environment
from tests.support.sshd import wait_until
from tests.support.warm import NURSERY, Forked, start_hub

# Beside other work: alone it takes a second or two.
START_S = 60.0


class Service:
    """A server process; `said` is all that it has printed, on whichever stream."""

    def __init__(self, process: subprocess.Popen[bytes] | Forked, home: Path) -> None:
        self.process = process
        self.home = home

    @property
    def said(self) -> str:
        return (self.home / "said").read_text(errors="replace")

    @property
    def port(self) -> int:
        found = re.search(r"serving MCP at http://\S+?:(\d+) ", self.said)
        assert found, self.said
        return int(found[1])

    @property
    def key(self) -> str:
        found = re.search(r"Bearer (\S+)", self.said)
        return found[1] if found else ""

    def ask(self, method: str = "POST", path: str = "/mcp", body: bytes = b"{}", **headers: str) -> tuple[int, Any]:
        """A request by hand: the status, and the headers of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_S)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            answer.read()
            return answer.status, answer.headers
        finally:
            connection.close()

    def leave(self, how: signal.Signals = signal.SIGTERM) -> tuple[float, int]:
        """End it: the seconds that took, and the exit code."""
        begun = time.monotonic()
        self.process.send_signal(how)
        code = self.process.wait(20)
        return time.monotonic() - begun, code


@contextmanager
def service(
    home: Path,
    *words: str,
    entries: tuple[Entry, ...] = (),
    local: bool = True,
    env: dict[str, str] | None = None,
    config: str = "",
    cwd: Path | None = None,
) -> Iterator[Service]:
    """The command on a free port, unless the words say otherwise; its modules are loaded already, as are its hub's."""
    home.mkdir(exist_ok=True)
    command = [*arguments(home, local=local, config=config), "--mode", "http", *(words or ("--port", "0"))]
    given = environment(home, entries, env)
    if "--no-hub" not in words:
        start_hub(given)
    with (home / "said").open("wb") as said, open(os.devnull, "rb") as nothing:
        process = NURSERY.start(command, given, (nothing.fileno(), said.fileno(), said.fileno()), cwd=str(cwd or ""))
    running = Service(process, home)
    try:
        wait_until(
            lambda: "serving MCP at" in running.said or process.poll() is not None, what="the server", seconds=START_S
        )
        yield running
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
    assert "Traceback" not in running.said, running.said


@asynccontextmanager
async def connected(
    served: Service,
    *,
    mode: str = "auto",
    path: str = "/mcp",
    headers: dict[str, str] | None = None,
    elicitation: Any = None,
    roots: Any = None,
) -> AsyncIterator[Caller]:
    """The official client; what fails inside comes out as it is."""
    given = {"Authorization": f"Bearer {served.key}"} if headers is None else headers
    stack = AsyncExitStack()
    # It asks no server with a certificate, and to load all that would be trusted takes longer than most calls.
    line = await stack.enter_async_context(httpx2.AsyncClient(headers=given, timeout=30, verify=False))
    url = f"http://127.0.0.1:{served.port}{path}"
    transport = streamable_http_client(url, http_client=line)
    connecting = Client(
        transport, mode=mode, elicitation_callback=elicitation, list_roots_callback=roots, client_info=AGENT
    )
    client = await stack.enter_async_context(connecting)
    try:
        yield Caller(client)
    finally:
        await stack.aclose()
