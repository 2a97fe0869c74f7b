"""The OpenSandbox MCP server's guide: 使用示例, 示例工作流, and the configuration of a client."""

from __future__ import annotations

import pytest

from remote_sandbox_mcp.core.sandboxes.secret import Secret
from remote_sandbox_mcp.fronts.http.gate import Asked, HttpGate
from remote_sandbox_mcp.fronts.http.listener import LOOPBACK_NAMES, Terms
from tests.support.fakes.sandbox import FakeSandbox
from tests.support.server import Caller

KEY = "your-api-key-here"


async def nobody(scope: object, receive: object, send: object) -> None:
    raise AssertionError("nothing may pass here")


@pytest.mark.parametrize(
    ("name", "value"),
    [("apiKey", KEY), ("api-key", KEY), ("X-API-Key", KEY), ("Authorization", KEY), ("Authorization", f"Bearer {KEY}")],
    ids=str,
)
def test_the_key_of_mcp_json_lets_in(name: str, value: str) -> None:
    """MCP配置, .mcp.json for HTTP: "apiKey"."""
    gate = HttpGate(nobody, Terms(host="127.0.0.1", port=3000, key=Secret(KEY), hosts=LOOPBACK_NAMES))
    headers = ((b"host", b"localhost:3000"), (name.lower().encode(), value.encode()))
    assert gate.decide(Asked("POST", "/", headers)) is None
    wrong = ((b"host", b"localhost:3000"), (name.lower().encode(), f"{value}x".encode()))
    assert gate.decide(Asked("POST", "/", wrong)) is not None


async def test_run_command_without_an_id_runs_in_the_sandbox_created_last(
    local_tools: Caller,
) -> None:
    """示例2: upload_files names the sandbox, run_command only the command."""
    first = (await local_tools.call("create_sandbox"))["sandbox_id"]
    made = (await local_tools.call("create_sandbox"))["sandbox_id"]
    await local_tools.call("upload_files", sandbox_id=made, files=[{"path": "/tmp/script.sh", "text": "echo here\n"}])
    answer = await local_tools.ask("run_command", command="sh /tmp/script.sh")
    fields = answer.structured_content or {}
    assert (fields["stdout"], fields["sandbox"]) == ("here\n", made)
    await local_tools.call("select_sandbox", sandbox_name=first)
    assert ((await local_tools.ask("run_command", command="true")).structured_content or {})["sandbox"] == first


async def test_after_delete_sandbox_a_command_is_not_run_in_it(tools: Caller, fake: FakeSandbox) -> None:
    made = (await tools.call("create_sandbox"))["sandbox_id"]
    await tools.call("delete_sandbox", sandbox_id=made)
    await tools.call("run_command", command="ls")
    assert [command.script for command in fake.commands] == ["ls"]
