"""The plugins' skill over MCP (SEP-2640), for clients that load skills from servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver.resources import TextResource
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
        listing = MethodBinding("skills/list", PaginatedRequestParams, _list)
        return listing, MethodBinding("skills/get", SkillParams, _get)


async def _list(_: ServerRequestContext[Any, Any], params: PaginatedRequestParams) -> dict[str, Any]:
    return {"skills": [entry()], **CACHED}


async def _get(_: ServerRequestContext[Any, Any], params: SkillParams) -> dict[str, Any]:
    if params.uri != MAIN:
        raise MCPError(INVALID_PARAMS, f"there is one skill, {MAIN}")
    return {"skill": entry()}


def files() -> dict[str, str]:
    """The files of the skill, by name."""
    found = sorted(FOLDER.rglob("*.md"))
    return {file.relative_to(FOLDER).as_posix(): file.read_bytes().decode() for file in found}


def frontmatter(text: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in text.split("---\n")[1].splitlines())


def entry() -> Mapping[str, Any]:
    """The skill with its files, as clients are told of it."""
    raw = {ADDRESS + name: text.encode() for name, text in files().items()}
    told = [{"uri": uri, "digest": f"sha256:{sha256(it).hexdigest()}", "size": len(it)} for uri, it in raw.items()]
    return {"uri": MAIN, "frontmatter": frontmatter(raw[MAIN].decode()), "resources": told}


def resources() -> Iterator[TextResource]:
    for path, text in files().items():
        about = frontmatter(text) if ADDRESS + path == MAIN else {}
        name, description = about.get("name", path), about.get("description")
        yield TextResource(uri=ADDRESS + path, name=name, description=description, mime_type=MARKDOWN, text=text)
