"""The server in memory and its client, as the tests of the MCP front have them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.config.schema import Settings
from remote_sandbox_mcp.services.fleet import Fleet
from tests.fronts.mcp.conftest import (
    app,
    connected,
    fake,
    local_tools,
    member,
    other,
    project,
    signatures_read_once,
    tools,
)
from tests.support.fakes.sandbox import FakeSandbox
from tests.support.server import Caller

__all__ = ["app", "fake", "local_tools", "other", "project", "signatures_read_once", "tools"]


@pytest.fixture
async def advanced(fake: FakeSandbox) -> AsyncIterator[Caller]:
    """The client of a server with REMOTE_SANDBOX_EXPOSE_ADVANCED_TOOLS=1."""
    async with connected(App(Fleet([member(fake)]), settings=Settings(expose_advanced_tools=True))) as caller:
        yield caller
