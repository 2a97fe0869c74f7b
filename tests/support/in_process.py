"""The real server in the test's own process, over the real configuration.

For tests that reach into the server, to do something at a moment that nobody else can tell. All others start the
installed command.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.server.mcpserver.tools import Tool

from remote_sandbox_mcp.app import Stock, compose
from remote_sandbox_mcp.config.source import ConfigSource
from remote_sandbox_mcp.fronts.mcp.clients import OneClient
from remote_sandbox_mcp.fronts.mcp.server import build
from remote_sandbox_mcp.fronts.mcp.upkeep import Upkeep
from remote_sandbox_mcp.services.session import Session
from tests.support.server import AGENT, Entry, Server, environment, write_config
from tests.support.signatures import SIGNATURES


@asynccontextmanager
async def serve_here(
    home: Path,
    *entries: Entry,
    mode: str = "auto",
    local: bool = False,
    env: dict[str, str] | None = None,
    config: str = "",
    elicitation: Any = None,
) -> AsyncIterator[Server]:
    """As `serve`, without a process; one at a time, since the variables of this process become those of the server.

    What a test does to a machine meanwhile goes into a thread: on the loop it would keep the server from noticing.
    """
    # What tasks of earlier tests have left to say is said now, and not into the log of this server.
    gc.collect()
    file = write_config(home, local=local, config=config)
    with pytest.MonkeyPatch.context() as patch, logged(home / "stderr") as log:
        for name, value in environment(home, entries, env).items():
            patch.setenv(name, value)
        patch.setattr(Tool, "from_function", SIGNATURES.tool_of)
        source, stock = ConfigSource(file), Stock()
        for problem in source.read().problems:
            log.write(f"remote-sandbox-mcp: {problem}\n")
        members = stock.take(source.current)
        app = compose(source.current, members=members, are_lent=True)
        served = build(app, OneClient(Session()))
        upkeep = Upkeep(served, source, stock, members)
        # Closed by hand, so that a failed assertion comes through without the groups that the SDK wraps around it.
        stack = AsyncExitStack()
        connecting = Client(served, mode=mode, elicitation_callback=elicitation, client_info=AGENT)
        server = Server(await stack.enter_async_context(connecting), home)
        try:
            yield server
        finally:
            await stack.aclose()
            await app.close()
            await upkeep.close()
    assert "Traceback" not in server.stderr, server.stderr


@contextmanager
def logged(file: Path) -> Iterator[Any]:
    """A file that gets all that is logged meanwhile, and whatever is written to it."""
    ours = logging.getLogger("remote_sandbox_mcp")
    with file.open("a", buffering=1) as opened:
        handler = logging.StreamHandler(opened)
        logging.root.addHandler(handler)
        before = ours.level
        ours.setLevel(logging.INFO)
        try:
            yield opened
        finally:
            ours.setLevel(before)
            logging.root.removeHandler(handler)
