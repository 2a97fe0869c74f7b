"""The plugins' skill over MCP (SEP-2640), for clients that load skills from servers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver.resources import FileResource
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, PaginatedRequestParams, RequestParams

# Links to the files of the plugins; the built program has files.
FOLDER = Path(__file__).parent / "skill"
ADDRESS = "skill://remote-sandbox/"
MAIN = f"{ADDRESS}SKILL.md"
MARKDOWN = "text/markdown"
# It changes with the program alone.
CACHED = {"ttlMs": 3_600_000, "cacheScope": "public"}


class SkillParams(RequestParams):
    uri: str


class Skills(Extension):
    """The methods by which clients find the skill; its files are resources."""

    identifier = "io.modelcontextprotocol/skills"

    def methods(self) -> Sequence[MethodBinding]:
        return (
            MethodBinding("skills/list", PaginatedRequestParams, _list),
            MethodBinding("skills/get", SkillParams, _get),
        )


async def _list(_: ServerRequestContext[Any, Any], params: PaginatedRequestParams) -> dict[str, Any]:
    return {"skills": [entry()], **CACHED}


async def _get(_: ServerRequestContext[Any, Any], params: SkillParams) -> dict[str, Any]:
    if params.uri != MAIN:
        raise MCPError(INVALID_PARAMS, f"there is one skill, {MAIN}")
    return {"skill": entry()}


def entry() -> Mapping[str, Any]:
    """The skill with its files, as clients are told of it."""
    return {"uri": MAIN, "frontmatter": frontmatter(), "resources": [_described(name) for name in names()]}


def frontmatter() -> dict[str, str]:
    lines = (FOLDER / "SKILL.md").read_text(encoding="utf-8").split("---\n")[1].splitlines()
    return {key: value for key, _, value in (line.partition(": ") for line in lines)}


def names() -> list[str]:
    return sorted(file.relative_to(FOLDER).as_posix() for file in FOLDER.rglob("*.md"))


def _described(name: str) -> dict[str, Any]:
    data = (FOLDER / name).read_bytes()
    return {"uri": ADDRESS + name, "digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}


def resources() -> list[FileResource]:
    """The files of the skill."""
    about = frontmatter()
    told = {"SKILL.md": (about["name"], about["description"])}
    shown = {name: told.get(name, (name, None)) for name in names()}
    return [
        FileResource(uri=ADDRESS + path, path=FOLDER / path, name=name, description=description, mime_type=MARKDOWN)
        for path, (name, description) in shown.items()
    ]
