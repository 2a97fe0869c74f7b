"""Reference pages of the documentation, made from the program: its tools, keys, errors and Python API."""

from __future__ import annotations

import ast
import asyncio
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mcp import Client
from mcp.types import Tool

from remote_sandbox_mcp import api
from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.config import schema
from remote_sandbox_mcp.core import errors
from remote_sandbox_mcp.fronts.mcp.server import build
from remote_sandbox_mcp.services.fleet import Fleet

SOURCE = Path(__file__).parents[1] / "src/remote_sandbox_mcp"
# Tables of config.toml and the readers of their keys.
TABLES = {
    "server": schema.SERVER_READERS,
    "results": schema.RESULT_READERS,
    "machines.NAME": {key: schema._MACHINE_READERS.get(key) for key in schema.MACHINE_KEYS},
    "local": schema.LOCAL_READERS,
    "watch": schema.WATCH_READERS,
    "notify": schema.NOTIFY_READERS,
    "hooks.NAME": schema.HOOK_READERS,
    "opensandbox": schema.OPENSANDBOX_READERS,
    "disposable": schema.DISPOSABLE_READERS,
    "http": schema.HTTP_READERS,
    "logging": schema.LOGGING_READERS,
}


def pages() -> dict[str, str]:
    return {
        "tool-parameters": tools(),
        "keys": keys(),
        "errors": all_errors(),
        "python-reference": python(),
    }


def tools() -> str:
    """Every listed tool as a client sees it."""
    listed = asyncio.run(_listed())
    parts = [
        "# Parameters of all tools\n\nMade from the server: what a client is told of each tool. "
        "[Tools](tools.md) explains them.\n"
    ]
    for tool in listed:
        parts.append(f"\n## {tool.name}\n\n{_plain(tool.description or '')}\n\n{_table(tool)}")
    return "".join(parts)


async def _listed() -> list[Tool]:
    async with Client(build(App(Fleet([])))) as client:
        return (await client.list_tools()).tools


def _table(tool: Tool) -> str:
    properties: Mapping[str, Mapping[str, Any]] = tool.input_schema["properties"]
    required = tool.input_schema.get("required", ())
    rows = [
        f"| `{name}` | {_kind(each)} | {'required' if name in required else _shown(each.get('default'))} | "
        f"{_cell(str(each.get('description', '')))} |\n"
        for name, each in properties.items()
    ]
    return (
        "| parameter | type | default | meaning |\n|---|---|---|---|\n" + "".join(rows) if rows else "No parameters.\n"
    )


def _kind(given: Mapping[str, Any]) -> str:
    if "enum" in given:
        return ", ".join(f"`{each}`" for each in given["enum"])
    if "anyOf" in given:
        return " or ".join(_kind(each) for each in given["anyOf"])
    kind = str(given.get("type", "any"))
    return f"list of {_kind(given['items'])}" if kind == "array" and given.get("items") else kind


def _shown(default: Any) -> str:
    return (
        ""
        if default in (None, "", [], {}, ())
        else f"`{str(default).lower() if isinstance(default, bool) else default}`"
    )


def keys() -> str:
    """Every key of config.toml, and what is said of a value that it does not take."""
    parts = [
        "# Keys of config.toml\n\nMade from the program's schema. [Configuration](configuration.md) explains them.\n"
    ]
    for table, readers in TABLES.items():
        parts.append(f"\n## `[{table}]`\n\n| key | what it takes |\n|---|---|\n")
        parts += [f"| `{key}` | {_takes(reader)} |\n" for key, reader in sorted(readers.items())]
    return "".join(parts)


def _takes(reader: Any) -> str:
    if reader is None:
        return "a secret, or where it is kept: `env:`, `file:`, `command:`, `keyring:`"
    said = inspect.getdoc(reader)
    if said:
        return _cell(said.partition("\n\n")[0])
    name = getattr(reader, "__name__", "")
    return {"flag": "true or false", "text": "a text"}.get(name, name.strip("_").replace("_", " "))


def all_errors() -> str:
    """The tree of errors, the word that programs see for each, and every sentence that is raised as one."""
    tree = (errors.__doc__ or "").partition("\n\n")[2].rstrip()
    parts = [
        "# Errors\n\nMade from the source. A failure is one sentence; a result has the code of its kind, for programs. "
        "[Troubleshooting](troubleshooting.md) says what to do about the frequent ones.\n",
        f"\n## Kinds\n\n```\n{tree}\n```\n\n| kind | code |\n|---|---|\n",
    ]
    kinds = {
        name: it for name, it in vars(errors).items() if inspect.isclass(it) and issubclass(it, errors.SandboxError)
    }
    parts += [f"| {name} | `{kind.code}` |\n" for name, kind in kinds.items()]
    sentences = sorted({found for file in SOURCE.rglob("*.py") for found in _raised(file, {*kinds})})
    for kind in kinds:
        of_kind = [text for name, text in sentences if name == kind]
        if of_kind:
            parts.append(f"\n## {kind}\n\n" + "".join(f"- {_plain(text)}\n" for text in of_kind))
    return "".join(parts)


def _raised(file: Path, kinds: set[str]) -> Iterator[tuple[str, str]]:
    """The sentences of one file: `...` stands for what is filled in."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds and node.args:
            first = node.args[0]
            if isinstance(first, ast.JoinedStr):
                text = "".join(str(it.value) if isinstance(it, ast.Constant) else "..." for it in first.values)
            elif isinstance(first, ast.Constant):
                text = str(first.value)
            else:
                continue
            if len(text.replace("...", "").strip()) > 10:
                yield node.func.id, text


def python() -> str:
    """The public classes of the Python API, with their methods."""
    parts = ["# Python API: all names\n\nMade from the source. [Python API](python-api.md) explains them.\n"]
    for name, it in vars(api).items():
        if inspect.isclass(it) and it.__module__ == api.__name__ and not name.startswith("_"):
            parts.append(f"\n## {name}\n\n{_said(it)}\n")
            for method, function in vars(it).items():
                if not method.startswith("_") and inspect.isroutine(function):
                    parts.append(
                        f"\n### `{name}.{method}`\n\n```python\n{method}{_signature(function)}\n```\n\n"
                        f"{_said(function)}\n"
                    )
    return "".join(parts)


def _signature(function: Any) -> str:
    try:
        return str(inspect.signature(function)).replace("remote_sandbox_mcp.api.", "")
    except (TypeError, ValueError):
        return "(...)"


def _said(it: Any) -> str:
    return _plain(inspect.getdoc(it) or "")


def _plain(text: str) -> str:
    return text.replace("*", "\\*").replace("<", "&lt;").replace("_", "\\_")


def _cell(text: str) -> str:
    return " ".join(_plain(text).split()).replace("|", "\\|")
