"""remote-sandbox-mcp 0.7, README, section 7, and the OpenSandbox MCP server's guide: results as programs read them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from mcp.types import CallToolResult, Implementation

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.config.schema import Settings
from remote_sandbox_mcp.core.errors import FileProblem, SandboxError, Unreachable
from remote_sandbox_mcp.services.fleet import Fleet
from tests.fronts.mcp.conftest import connected, member
from tests.fronts.mcp.test_tool_list import GOOD
from tests.support.config_reading import read
from tests.support.fakes.sandbox import FakeSandbox
from tests.support.images import png
from tests.support.server import error_of, text_of

# What the Python SDK calls itself, and with it all programs that do not say otherwise.
STRANGER = Implementation(name="mcp", version="0.1.0")
KNOWN = ("claude-code", "codex-mcp-client", "cursor-vscode", "Visual Studio Code", "claude-ai", "goose")
LARGE = bytes(range(256)) * 8000


async def asked(app: App, who: str, tool: str, **given: Any) -> CallToolResult:
    async with connected(app, who=Implementation(name=who, version="1")) as tools:
        return await tools.client.call_tool(tool, given)


@pytest.mark.parametrize("who", ["mcp", "mcp-inspector", "my-script", *KNOWN])
async def test_the_text_of_a_result_is_json_for_programs_and_prose_for_models(app: App, who: str) -> None:
    """Section 7: every tool returns JSON."""
    answer = await asked(app, who, "list_remote_files", remote_path="~")
    if who in KNOWN:
        assert text_of(answer).startswith("on fake: 2 entries in /home/fake")
    else:
        assert json.loads(text_of(answer)) == answer.structured_content
        assert json.loads(text_of(answer))["sandbox"] == "fake"


@pytest.mark.parametrize("who", ["mcp", "cursor-vscode"])
@pytest.mark.parametrize("text", ["json", "prose"])
async def test_the_operator_chooses_the_text(fake: FakeSandbox, who: str, text: str) -> None:
    app = App(Fleet([member(fake)]), settings=Settings(result_text=text))
    answer = text_of(await asked(app, who, "exec_bash", command="ls"))
    assert answer.startswith("{" if text == "json" else "on fake: exit")


def test_config_toml_chooses_the_text(tmp_path: Path) -> None:
    assert read(tmp_path, '[results]\ntext = "JSON"').settings.result_text == "json"
    (problem,) = read(tmp_path, '[results]\ntext = "xml"').problems
    assert "must be one of prose, json" in problem


@pytest.mark.parametrize("problem", [Unreachable("no route"), FileProblem("no disk"), SandboxError("no")], ids=str)
@pytest.mark.parametrize("tool", GOOD)
async def test_an_error_has_fields_for_programs_that_fit_the_output_schema(
    app: App, fake: FakeSandbox, other: FakeSandbox, tool: str, problem: SandboxError
) -> None:
    """0.7.6 returns {"error": ...}, and connection_error: true."""
    async with connected(app, who=STRANGER) as tools:
        schemas = {it.name: it.output_schema or {} for it in (await tools.client.list_tools()).tools}
        fake.fail(problem)
        other.fail(problem)
        for given in (GOOD[tool], {"nonsense": 1}):
            answer = await tools.client.call_tool(tool, given)
            fields = answer.structured_content or {}
            jsonschema.validate(fields, schemas[tool])
            if answer.is_error:
                assert fields == error_of(answer)
                assert fields["error"] == text_of(answer)
                assert fields.get("connection_error", False) is (fields["code"] == "unreachable")


@pytest.mark.parametrize("tool", GOOD)
async def test_every_output_schema_allows_an_error(app: App, tool: str) -> None:
    """The TypeScript SDK throws away what does not fit."""
    async with connected(app) as tools:
        schemas = {it.name: it.output_schema or False for it in (await tools.client.list_tools()).tools}
    fields = {"error": "no", "code": "unreachable", "connection_error": True, "outcome": "unknown"}
    jsonschema.validate(fields | {"tmux_session": "t", "sandbox": "fake", "workspace": "moved"}, schemas[tool])


@pytest.mark.parametrize("who", KNOWN)
async def test_known_clients_get_an_error_as_a_sentence_alone(app: App, fake: FakeSandbox, who: str) -> None:
    fake.fail(Unreachable("no route"))
    answer = await asked(app, who, "exec_bash", command="true", sandbox_name="fake")
    assert (answer.is_error, answer.structured_content) == (True, None)
    assert error_of(answer)["connection_error"] is True


@pytest.mark.parametrize(
    ("who", "more", "is_whole"),
    [("mcp", {}, True), ("codex", {"content": True}, True), ("codex", {}, False), ("cursor", {}, False)],
    ids=str,
)
async def test_download_files_is_whole(fake: FakeSandbox, who: str, more: dict[str, Any], is_whole: bool) -> None:
    """示例2, download_files: files with path, content (base64) and size."""
    fake.files["/home/fake/large"] = LARGE
    app = App(Fleet([member(fake)]))
    fields = (await asked(app, who, "download_files", sandbox_id="fake", paths=["large"], **more)).structured_content
    (file,) = (fields or {})["files"]
    content = base64.b64decode(file["content"], validate=True)
    assert (file["size"], content == LARGE, file.get("truncated", False)) == (len(LARGE), is_whole, not is_whole)
    assert LARGE.startswith(content)
    note = (fields or {}).get("note", "")
    assert all(word in note for word in ("content=true", "local_dir")) is not is_whole


@pytest.mark.parametrize(
    ("who", "more"), [("mcp", {}), ("claude-code", {"content": True}), ("claude-code", {})], ids=str
)
async def test_download_files_has_the_content_of_an_image(app: App, fake: FakeSandbox, who: str, more: Any) -> None:
    fake.files["/home/fake/plot"] = png()
    answer = await asked(app, who, "download_files", sandbox_id="fake", paths=["plot"], **more)
    (file,) = (answer.structured_content or {})["files"]
    assert file["mime_type"] == "image/png"
    assert [part.type for part in answer.content] == ["text", "image"]
    assert file.get("content") == (base64.b64encode(png()).decode() if who == "mcp" or more else None)
