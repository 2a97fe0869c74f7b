"""The plugins' skill over MCP (SEP-2640): found, described and read as clients that load skills from servers do it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tests.support.doc_pages import ROOT
from tests.support.hub_desk import desk_in
from tests.support.server import Caller

SKILL = ROOT / "plugin/skills/remote-sandbox"
MAIN = "skill://remote-sandbox/SKILL.md"


async def test_the_server_says_that_it_has_skills(tools: Caller) -> None:
    assert (tools.client.server_capabilities.extensions or {})["io.modelcontextprotocol/skills"] == {}


def test_a_skill_is_found_and_each_of_its_files_is_the_one_that_was_described(tmp_path: Path) -> None:
    with desk_in(tmp_path) as desk, desk.client() as wire:
        wire.initialize()
        answer = wire.ask("skills/list", {})
        (skill,) = answer["result"]["skills"]
        assert answer["result"]["cacheScope"] == "public"
        assert skill["uri"] == MAIN
        assert skill["frontmatter"]["name"] == "remote-sandbox"
        beginning = (SKILL / "SKILL.md").read_text().split("---\n")[1]
        assert "".join(f"{key}: {value}\n" for key, value in skill["frontmatter"].items()) == beginning
        files = {str(file.relative_to(SKILL)): file.read_bytes() for file in SKILL.rglob("*.md")}
        assert [it["uri"] for it in skill["resources"]] == [f"skill://remote-sandbox/{name}" for name in sorted(files)]
        for described in skill["resources"]:
            (content,) = wire.ask("resources/read", {"uri": described["uri"]})["result"]["contents"]
            raw = content["text"].encode()
            assert content["mimeType"] == "text/markdown"
            assert described["digest"] == f"sha256:{hashlib.sha256(raw).hexdigest()}"
            assert described["size"] == len(raw)
        assert wire.ask("skills/get", {"uri": MAIN})["result"]["skill"] == skill
        assert wire.ask("skills/get", {"uri": "skill://other/SKILL.md"})["error"]["code"] == -32602
        listed = {it["uri"]: it for it in wire.ask("resources/list")["result"]["resources"]}
        assert listed[MAIN]["name"] == "remote-sandbox"
        assert listed[MAIN]["description"] == skill["frontmatter"]["description"]
