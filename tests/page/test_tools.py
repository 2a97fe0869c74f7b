"""The tools that the page may call."""

from __future__ import annotations

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.fleet import Fleet
from remote_sandbox_mcp.mcp_server.server import build
from remote_sandbox_mcp.page.calls import TOOLS


def test_each_of_them_is_there() -> None:
    server = build(App(Fleet([])))
    assert [name for name in sorted(TOOLS) if not server._toolbox.has(name)] == []
