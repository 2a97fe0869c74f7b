"""What the SDK makes of a tool's function, made once in a process and in all that are forked from it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

from mcp.server.mcpserver.tools import Tool


class Signatures:
    """Reads each signature once: to read them all takes most of the time of starting a server in memory."""

    def __init__(self) -> None:
        self._read = Tool.from_function
        self._known: dict[tuple[object, ...], Tool] = {}

    def tool_of(self, function: Callable[..., Any], **how: Any) -> Tool:
        """As Tool.from_function, whose place this takes."""
        plain: Any = inspect.unwrap(function)
        # Each server has functions of its own, which differ in the server that they use and in nothing else.
        key = (
            plain.__code__,
            function.__name__,
            function.__doc__,
            repr((plain.__defaults__, plain.__kwdefaults__, how)),
        )
        if key not in self._known:
            self._known[key] = self._read(function, **how)
        known = self._known[key]
        # The server puts shorter schemas in the place of these.
        own = {"fn": function, "fn_metadata": known.fn_metadata.model_copy()}
        return known.model_copy(update={**own, "parameters": copy.deepcopy(known.parameters)})


SIGNATURES = Signatures()


def read_all_for_forks() -> None:
    """Read those of every tool: servers of processes that are forked from this one find them."""
    from remote_sandbox_mcp.app import App
    from remote_sandbox_mcp.fronts.mcp.server import build
    from remote_sandbox_mcp.services.fleet import Fleet

    Tool.from_function = SIGNATURES.tool_of  # type: ignore[method-assign, assignment]
    tools = build(App(Fleet([])))._toolbox
    for name in tools._offers:
        tools.get_tool(name)
