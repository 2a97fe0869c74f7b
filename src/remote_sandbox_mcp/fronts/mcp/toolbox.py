"""The server's tools, each built on first use, and what the tool list shows of their schemas."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from mcp.server.mcpserver.tools import Tool, ToolManager
from mcp.types import CallToolResult, Icon, ToolAnnotations
from pydantic import Field

# Hints for clients. Most of them run read-only tools at the same time, and all others one after another.
ASK = ToolAnnotations(read_only_hint=True, open_world_hint=True)
# Tools that may destroy something: made again, the first does it again, and the second does no more.
RUN = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True)
CHANGE = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=True)
# Others, in the same order; the last reaches nothing outside.
MAKE = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=True)
GET = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=True)
SET = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False)

ToolFunction = Callable[..., Awaitable[CallToolResult]]
# Claude Code hides tools behind a search, except for those marked like this: the ones that work begins with.
ALWAYS_LOADED = {"anthropic/alwaysLoad": True}
# Clients that render MCP Apps show the results of these tools as cards; the others ignore the mark.
CARDS = "ui://remote-sandbox/cards.html"
_MARK = "unlisted"
# Marks a parameter that only old configurations send: still accepted, but not listed.
UNLISTED = Field(json_schema_extra={_MARK: True})
# Names that other tools, and models that know those, use for the same parameter: the first that a tool has is meant.
# An empty row is left out of the call.
OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "sandbox_id": ("sandbox_name",),
    "sandbox_name": ("sandbox_id",),
    "timeout": ("timeout_s",),
    "timeout_s": ("timeout",),
    "cmd": ("command",),
    "path": ("remote_path", "paths"),
    "file_path": ("remote_path", "paths"),
    "old_string": ("old_text",),
    "new_string": ("new_text",),
    "query": ("pattern",),
    "workdir": ("cwd",),
    "description": (),
}
# A tool with this parameter has two paths, so that "path" would not say which of them.
TWO_PATHS = "local_path"
# The folder of a command: these beginnings of it mean what ~ means on the far side. No other variable is replaced.
FOLDER = "cwd"
# Pictures of tools by their module, on a field of 8 by 8; clients show them to people, and send models none.
PICTURES = {
    "exec": "M1 0l7 4-7 4z",
    "python": "M0 1l4 3-4 3zM4 6h4v1H4z",
    "jobs": "M0 5h2v3H0zM3 3h2v5H3zM6 0h2v8H6z",
    "files": "M1 0h4l2 2v6H1z",
    "sync": "M2 0l2 3H3v5H1V3H0zM6 8L4 5h1V0h2v5h1z",
    "workspaces": "M0 0h3v3H0zM3 3h2v2H3zM5 5h3v3H5z",
    "sandboxes": "M0 0h8v3H0zM0 5h8v3H0z",
}
OF_CONTAINERS = "M0 0h8v8H0zM2 2v4h4V2z"
_HOME = re.compile(r"\$(?:HOME|\{HOME\})(?=/|$)")


@dataclass(frozen=True, kw_only=True)
class WorkspacePart:
    """The part of a workspace in a tool's calls, by the names of their arguments."""

    # Before the call, what changed here is sent; after it, what changed there comes back.
    sends: bool = False
    brings: bool = False
    # The argument for a folder over there, which is the workspace's own where it is left out.
    folder: str = ""
    # Arguments with shell source, which runs after the workspace's init lines.
    scripts: tuple[str, ...] = ()
    # The shell source that the tool itself makes up runs after the init lines, too.
    prepares: bool = False
    # The argument that names something that has been started before: then nothing is sent.
    handle: str = ""
    # It only reads, and does so even where what changed here could not be sent.
    is_read_only: bool = False


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """Facts about one tool."""

    # It starts a command, job or app: its errors say whether that has happened.
    starts: bool = False
    # The name of what it starts is made from the call, so it is found again where it runs and needs no journal.
    names_its_work: bool = False
    # Repeating it does no harm, but the second answer would be an error: the first one is kept.
    answers_once: bool = False
    # It only waits, so a client may have any number of such calls open.
    only_waits: bool = False
    # A call that leaves out the sandbox means the client's.
    means_selected: bool = True
    # Its result names a new sandbox as sandbox_id.
    makes_sandbox: bool = False
    # Arguments for paths on the sandbox, which may name it, as gpu1:data does: a text, a list of texts, or a list of
    # objects with a `path`.
    paths: tuple[str, ...] = ()
    # Arguments for paths on the user's machine that may be on a second sandbox instead.
    other_paths: tuple[str, ...] = ()
    # None: a workspace has no part in it.
    workspace: WorkspacePart | None = None
    # Work begins with it, so clients that hide tools behind a search show it.
    is_first: bool = False
    # Clients that render MCP Apps show its results as cards.
    is_card: bool = False
    # Fields that the same tool of an earlier program has besides, from the arguments and the fields of a result.
    earlier: Callable[[Mapping[str, Any], dict[str, Any]], dict[str, Any]] | None = None
    # The page may call it.
    is_on_page: bool = False


PLAIN = Declaration()


@dataclass(frozen=True)
class OfferedTool:
    """A tool. Its function's name, signature and docstring become the tool's name, parameters and description."""

    function: ToolFunction
    title: str
    annotations: ToolAnnotations
    # Whether the tool list shows it; it can be called all the same.
    is_listed: bool = True
    declaration: Declaration = PLAIN


@dataclass(frozen=True)
class Parameters:
    """Parameter names of a tool: all, those in the list, and required ones."""

    all: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    # Lists of texts, for which one text may be given.
    lists: tuple[str, ...] = ()


class Toolbox(ToolManager):
    """Builds a tool's schemas on first use: all of them would slow the start, and a first call needs one."""

    def __init__(self) -> None:
        super().__init__()
        # In the order of the tool list.
        self._offers: dict[str, OfferedTool] = {}
        self._parameters: dict[str, Parameters] = {}

    def offer(self, offer: OfferedTool) -> None:
        self._offers[offer.function.__name__] = offer

    def withdraw(self, name: str) -> None:
        del self._offers[name]

    def has(self, name: str) -> bool:
        return name in self._offers

    def declaration(self, name: str) -> Declaration:
        """Facts about a tool; those of a plain one for an unknown name."""
        return self._offers[name].declaration if name in self._offers else PLAIN

    @property
    def declarations(self) -> Mapping[str, Declaration]:
        return {name: offer.declaration for name, offer in self._offers.items()}

    def parameters(self, name: str) -> Parameters:
        """Empty for an unknown tool."""
        return self._parameters[name] if self.get_tool(name) else Parameters()

    def get_tool(self, name: str) -> Tool | None:
        if name in self._offers and name not in self._tools:
            self._make(name, self._offers[name])
        return super().get_tool(name)

    def list_tools(self) -> list[Tool]:
        return [tool for name, offer in self._offers.items() if offer.is_listed and (tool := self.get_tool(name))]

    def _make(self, name: str, offer: OfferedTool) -> None:
        """Build the tool, with schemas reduced to what an agent needs."""
        made = self.add_tool(
            offer.function,
            title=offer.title,
            description=" ".join((offer.function.__doc__ or "").split()),
            annotations=offer.annotations,
            meta=meta_of(offer.declaration),
            icons=[picture(PICTURES.get(offer.function.__module__.rpartition(".")[2], OF_CONTAINERS))],
        )
        taken, required = made.parameters["properties"], made.parameters.get("required", ())
        # SandboxServer refuses unknown arguments, and the schema says so.
        made.parameters = listed_input(made.parameters) | {"additionalProperties": False}
        # A result's fields without our classes' docstrings, which are for readers of the source. None is required: an
        # error, too, may have fields, and clients throw away what is not as the schema says.
        made.fn_metadata.output_schema = _without(
            slim(dict(made.fn_metadata.output_schema or {})), "description", "required"
        )
        lists = tuple(name for name, schema in taken.items() if schema.get("items") == {"type": "string"})
        listed = tuple(made.parameters["properties"])
        self._parameters[name] = Parameters(tuple(taken), listed, tuple(required), lists)


def picture(path: str) -> Icon:
    svg = f"%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 8 8'%3E%3Cpath d='{path}'/%3E%3C/svg%3E"
    return Icon(src=f"data:image/svg+xml,{svg}")


def meta_of(tool: Declaration) -> dict[str, Any] | None:
    """Marks of a tool in the list, for particular clients."""
    first = ALWAYS_LOADED if tool.is_first else {}
    cards = {"ui": {"resourceUri": CARDS}} if tool.is_card else {}
    return first | cards or None


def listed_input(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A tool's parameters without the unlisted ones. Empty defaults are dropped, but for false."""
    slimmed: dict[str, Any] = slim(schema)
    listed = {name: item for name, item in slimmed["properties"].items() if not item.get(_MARK)}
    return slimmed | {"properties": {name: _without_empty_default(item) for name, item in listed.items()}}


def _without_empty_default(parameter: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in parameter.items() if key != "default" or value or value is False}


def slim(schema: Any, shapes: Mapping[str, Any] | None = None) -> Any:
    """A schema without titles and JSON Schema defaults, with its $defs put in place.

    Our shapes are not recursive, so this terminates.
    """
    if isinstance(schema, list):
        return [slim(item, shapes) for item in schema if item != {"type": "null"}]
    if not isinstance(schema, dict):
        return schema
    shapes = schema.get("$defs", shapes)
    if shapes and "$ref" in schema:
        shape = slim(shapes[schema["$ref"].rpartition("/")[2]], shapes)
        return _without(shape, "description") | slim(_without(schema, "$ref"))
    return {
        key: {name: slim(value, shapes) for name, value in item.items()} if key == "properties" else slim(item, shapes)
        for key, item in schema.items()
        if not _says_nothing(key, item)
    }


def _says_nothing(key: str, item: Any) -> bool:
    """Whether an entry can be dropped: titles repeat names, and minimums of 0 or 1 go without saying."""
    if key == "minimum":
        return bool(-1 <= item <= 1)
    return key == "$defs" or (key == "title" and isinstance(item, str)) or (key, item) == ("additionalProperties", True)


def _without(schema: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: item for key, item in schema.items() if key not in keys}


def as_meant(given: Mapping[str, Any], takes: Parameters) -> dict[str, Any]:
    """Arguments under the tool's own names. If both names are given, both stay, and the call is refused."""
    named: dict[str, Any] = {}
    for name, value in given.items():
        if name in takes.all or OTHER_NAMES.get(name) != ():
            named[_own_name(name, {**given, **named}, takes.all)] = value
    meant = {name: _as_list(value) if name in takes.lists else value for name, value in named.items()}
    if isinstance(folder := meant.get(FOLDER), str):
        meant[FOLDER] = _HOME.sub("~", folder, count=1) if _HOME.match(folder) else folder
    return meant


def _as_list(value: Any) -> Any:
    """One text as a list of it; one that is a list in JSON is read later."""
    return [value] if isinstance(value, str) and not value.lstrip().startswith("[") else value


def _own_name(name: str, given: Mapping[str, Any], own: Collection[str]) -> str:
    if name in own or (TWO_PATHS in own and "path" in name):
        return name
    return next((other for other in OTHER_NAMES.get(name, ()) if other in own and other not in given), name)
