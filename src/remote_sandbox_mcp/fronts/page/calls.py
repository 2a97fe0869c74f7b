"""Tools that the page may call, and their answers. They are checked and kept in the history as calls of agents are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp.types import CallToolResult, TextContent

from ...services.session import Session, absolute, begin, current
from ..mcp.results import about_error
from ..mcp.server import SandboxServer
from .http import PageRefusal

CLIENT = "page"
ASKS = "this needs an answer of yours that the page cannot give; call it from a terminal or by an agent"


class ToolCaller:
    """Calls tools in a session of its own, whose folder is no workspace."""

    def __init__(self, server: SandboxServer) -> None:
        self._server = server
        self._session: Session | None = None

    @property
    def tools(self) -> frozenset[str]:
        """The tools that the page may call."""
        return frozenset(name for name, tool in self._server.declarations.items() if tool.is_on_page)

    async def call(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Raises PageRefusal for what is no call, or one of another tool."""
        tool, arguments = wanted.get("tool"), wanted.get("arguments", {})
        if not isinstance(tool, str) or not isinstance(arguments, dict):
            raise PageRefusal(400, 'send {"tool": NAME, "arguments": {...}}')
        allowed = self.tools
        if tool not in allowed:
            raise PageRefusal(403, f"the page may not call {tool[:60]!r}; it may call: {', '.join(sorted(allowed))}")
        begin(self._session_for(tool, arguments))
        return fields_of(await self._server.call_as(CLIENT, tool, arguments))

    def _session_for(self, tool: str, arguments: Mapping[str, Any]) -> Session:
        """A call about a workspace is made from its folder: a workspace is decided about by those who work in it."""
        folder = arguments.get("local_path")
        if tool == "link_workspace" and isinstance(folder, str) and folder:
            if self._server.app.workspaces.find(absolute(folder)) is None:
                raise PageRefusal(403, f"{folder[:200]} is not linked; link it from a terminal, or by an agent")
            return self._own(absolute(folder))
        self._session = self._session or self._own("/")
        return self._session

    def _own(self, folder: str) -> Session:
        front = current()
        session = Session(folder=folder, environ=front.environ)
        session.log = front.log
        return session


def fields_of(answer: object) -> dict[str, Any]:
    if not isinstance(answer, CallToolResult):
        return {"is_error": True, "text": ASKS, "structured": {}}
    text = next((block.text for block in answer.content if isinstance(block, TextContent)), "")
    structured = about_error(answer) if answer.is_error else answer.structured_content or {}
    return {"is_error": bool(answer.is_error), "text": text, "structured": structured}
