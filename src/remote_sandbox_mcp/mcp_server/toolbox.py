"""The tools of the server, each made when it is first called or listed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from mcp.server.mcpserver.tools import Tool, ToolManager
from mcp.types import CallToolResult, ToolAnnotations

from .schemas import listed_input, listed_output

ToolFunction = Callable[..., Awaitable[CallToolResult]]
# Claude Code keeps tools behind a search, but for those that say this of themselves: the ones that work begins with.
ALWAYS_LOADED = {"anthropic/alwaysLoad": True}
FIRST_TOOLS = frozenset({"list_sandboxes", "exec_bash", "read_remote_file"})


@dataclass(frozen=True)
class Offer:
    """A tool that may be called."""

    function: ToolFunction
    title: str
    annotations: ToolAnnotations


@dataclass(frozen=True)
class Parameters:
    """The names of all that a tool takes, of those that the list shows, and of those that a call must give."""

    all: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()
    required: tuple[str, ...] = ()


class Toolbox(ToolManager):
    """Making the schemas of all tools takes a good part of a start, and a client's first call needs those of one."""

    def __init__(self) -> None:
        super().__init__()
        # In the order of the list.
        self._offers: dict[str, Offer] = {}
        self._parameters: dict[str, Parameters] = {}

    def offer(self, offer: Offer) -> None:
        self._offers[offer.function.__name__] = offer

    def has(self, name: str) -> bool:
        return name in self._offers

    def parameters(self, name: str) -> Parameters:
        """None at all for a tool that is not there."""
        return self._parameters[name] if self.get_tool(name) else Parameters()

    def get_tool(self, name: str) -> Tool | None:
        if name in self._offers and name not in self._tools:
            self._make(name, self._offers[name])
        return super().get_tool(name)

    def list_tools(self) -> list[Tool]:
        return [tool for name in self._offers if (tool := self.get_tool(name))]

    def _make(self, name: str, offer: Offer) -> None:
        """The list shows of its schemas what an agent needs."""
        made = self.add_tool(
            offer.function,
            title=offer.title,
            description=" ".join((offer.function.__doc__ or "").split()),
            annotations=offer.annotations,
            meta=ALWAYS_LOADED if name in FIRST_TOOLS else None,
        )
        taken, required = made.parameters["properties"], made.parameters.get("required", ())
        made.parameters = listed_input(made.parameters) | {"additionalProperties": False}
        made.fn_metadata.output_schema = listed_output(made.fn_metadata.output_schema)
        self._parameters[name] = Parameters(tuple(taken), tuple(made.parameters["properties"]), tuple(required))
