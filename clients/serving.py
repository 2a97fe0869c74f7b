"""The server that the clients talk to: the installed command over stdio, and one that serves over HTTP meanwhile."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

COMMAND = str(Path(sys.executable).with_name("remote-sandbox-mcp"))
START_S = 30.0


def environment(home: Path) -> dict[str, str]:
    """A home of its own: nothing of the person who runs this is seen or touched. Agents may use what is around it."""
    home.mkdir(exist_ok=True)
    place = {"REMOTE_SANDBOX_ALLOWED_ROOTS": str(home.parent)}
    place |= {"HOME": str(home), "REMOTE_SANDBOX_MCP_HOME": str(home / "state"), "PATH": os.environ["PATH"]}
    # A hub that nobody uses is to end soon.
    return place | {"REMOTE_SANDBOX_HUB_IDLE_S": "2"}


def over_stdio(home: Path) -> dict[str, Any]:
    return {"command": COMMAND, "args": [], "env": environment(home)}


@contextmanager
def over_http(home: Path, *, key: bool = True) -> Iterator[dict[str, Any]]:
    """As a client is told: an address and the headers. Without a key, for suites that cannot send one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    secret = secrets.token_hex(16)
    words = [COMMAND, "--mode", "http", "--port", str(port), *([] if key else ["--no-auth"])]
    env = environment(home) | ({"REMOTE_SANDBOX_API_KEY": secret} if key else {})
    with (home / "http.log").open("wb") as log:
        server = subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _until_up(port, server)
        yield {"url": f"http://127.0.0.1:{port}/mcp", "headers": {"Authorization": f"Bearer {secret}"} if key else {}}
    finally:
        server.terminate()
        server.wait(START_S)
        # It would write into a folder that is about to be removed.
        subprocess.run([COMMAND, "hub", "stop"], env=env, capture_output=True, timeout=START_S, check=False)


def _until_up(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/mcp", timeout=1)
            return
        except urllib.error.HTTPError:
            return
        except OSError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not come up on port {port}") from None
            time.sleep(0.05)
