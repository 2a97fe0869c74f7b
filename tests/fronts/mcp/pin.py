"""Writes tools.json anew, for a change of the tool list that is meant: python -m tests.fronts.mcp.pin."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mcp import Client
from mcp.types import Tool

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.fronts.mcp.server import build
from remote_sandbox_mcp.services.fleet import Fleet

FILE = Path(__file__).with_name("tools.json")
HOW = "clients rely on this list. If the change is meant: .venv/bin/python -m tests.fronts.mcp.pin, and tell it"


def surface(tools: Iterable[Tool]) -> dict[str, Any]:
    """What a client's calls depend on: the names, the parameters, what they take and what they default to."""
    return {tool.name: {name: _parameter(name, tool) for name in tool.input_schema["properties"]} for tool in tools}


def _parameter(name: str, tool: Tool) -> dict[str, Any]:
    schema = tool.input_schema["properties"][name]
    told = {key: value for key, value in schema.items() if key != "description"}
    return told | ({"required": True} if name in tool.input_schema.get("required", ()) else {})


async def tool_list() -> list[Tool]:
    async with Client(build(App(Fleet([])))) as client:
        return (await client.list_tools()).tools


def write() -> None:
    """One line for each tool, so that a change can be read."""
    lines = [f"  {json.dumps(name)}: {json.dumps(takes)}" for name, takes in surface(asyncio.run(tool_list())).items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    write()
