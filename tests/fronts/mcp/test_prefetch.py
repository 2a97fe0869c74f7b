"""What a first call asks for is opened while the SDK is loaded: once, for that call alone, and with the same result."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.fronts.mcp.prefetch import Opening, sandbox_in
from remote_sandbox_mcp.services.fleet import Fleet
from remote_sandbox_mcp.services.session import KeptSelection
from tests.fronts.mcp.test_handshake import COMMAND, LEGACY
from tests.support.door import Door
from tests.support.server import environment, until

# A hub up to the point at which it reads a client's first call.
HUB_BEFORE_A_CALL = """
import asyncio, os, sys
from remote_sandbox_mcp.hub import conversation, serve
from remote_sandbox_mcp.services.hub_contact.place import HubPlace

async def look(*_):
    print(sorted({"mcp", "mcp_types", "pydantic"} & set(sys.modules)))

async def begin():
    conversation.converse = look
    await serve.Hub(HubPlace(os.environ))._converse(serve.Caller({}, 1, None, None, None))

asyncio.run(begin())
"""

# The SDK as a server loads it, and what is made of it then and with its first use.
SDK_AS_LOADED = """
from remote_sandbox_mcp.fronts.mcp import prefetch
prefetch.load(".stdio")
from mcp_types import CallToolRequestParams as Params
from pydantic import BaseModel, TypeAdapter
print(Params.__pydantic_complete__)
answers = {"a": {"action": "accept", "content": {"code": "1"}}}
params = Params.model_validate({"name": "exec_bash", "inputResponses": answers})
print(params.input_responses["a"].content, Params.__pydantic_complete__)

class Late(BaseModel):
    number: "Number"

Number = int
Late.model_rebuild()
print(Late.__pydantic_complete__)
"""


def call(tool: str = "exec_bash", **arguments: Any) -> dict[str, Any]:
    return {"method": "tools/call", "params": {"name": tool, "arguments": arguments}}


@pytest.mark.parametrize(
    ("message", "named"),
    [
        pytest.param(call(command="ls", sandbox_name="gpu1"), "gpu1", id="named"),
        pytest.param(call("run_command", command="ls", sandbox_id="gpu1"), "gpu1", id="by its id"),
        pytest.param(call(command="ls"), "", id="the one that is meant"),
        pytest.param(call("list_remote_files"), "", id="a list of files"),
        pytest.param(call(sandbox_name="gpu1"), None, id="no command"),
        pytest.param(call(command=" "), None, id="an empty command"),
        pytest.param(call(command=["ls"]), None, id="a command of another kind"),
        pytest.param(call(command="ls", sandbox_name=["gpu1"]), None, id="a name of another kind"),
        pytest.param(call("select_sandbox", sandbox_name="gpu1"), None, id="a tool that opens nothing"),
        pytest.param(call("no_such_tool", sandbox_name="gpu1"), None, id="no tool"),
        pytest.param({"method": "tools/call", "params": {"name": ["exec_bash"]}}, None, id="a tool of another kind"),
        pytest.param({"method": "tools/call", "params": [1]}, None, id="no parameters"),
        pytest.param({"method": "tools/call"}, None, id="nothing"),
    ],
)
def test_only_a_call_that_would_open_a_sandbox_has_one_opened(message: dict[str, Any], named: str | None) -> None:
    assert sandbox_in(message) == named


async def test_the_selected_sandbox_is_opened_and_no_other() -> None:
    default, chosen = Door("default"), Door("chosen")
    app = App(Fleet([default.member, chosen.member]), identity="these")
    selection = KeptSelection(app.identity)
    await selection.choose("chosen")
    opening = Opening(app, selection)
    for message in (call("list_sandboxes"), call(command="ls", sandbox_name="sbx-unknown"), call(command="ls")):
        opening.take(message)
    await until(lambda: chosen.member.sandbox, "the selected one to be open")
    assert (default.knocks, chosen.knocks) == (0, 1)
    assert not app.has_disposables


async def test_what_opening_needs_is_loaded_before_the_sdk() -> None:
    door = Door("gpu1")
    loaded: list[str] = []
    door.member.prepare = lambda: loaded.append("asyncssh")
    app = App(Fleet([door.member]), identity="these")
    opening = Opening(app, KeptSelection(app.identity))
    opening.take(call("list_sandboxes"))
    assert not opening.is_asked
    opening.take(call(command="ls", sandbox_name="gpu1"))
    await opening.prepared()
    assert (opening.is_asked, loaded) == (True, ["asyncssh"])
    assert door.member.opening


def test_a_hub_reads_a_first_call_before_it_loads_the_sdk(tmp_path: Path) -> None:
    words = [sys.executable, "-c", HUB_BEFORE_A_CALL]
    found = subprocess.run(words, env=environment(tmp_path, ()), capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_validators_of_the_sdk_are_made_with_their_first_use(tmp_path: Path) -> None:
    words = [sys.executable, "-c", SDK_AS_LOADED]
    found = subprocess.run(words, env=environment(tmp_path, ()), capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == ["False", "{'code': '1'} True", "True"]


@pytest.mark.parametrize("words", [(), ("--no-hub",)], ids=["hub", "no hub"])
def test_a_first_call_is_one_login_which_begins_while_the_sdk_is_loaded(tmp_path: Path, words: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as machine:
        login = {"name": "gpu1", "host": "127.0.0.1", "port": machine.getsockname()[1], "user": "me", "password": "x"}
        environment = {"REMOTE_SANDBOX_LIST": json.dumps([login]), "REMOTE_SANDBOX_MCP_HOME": str(tmp_path / "state")}
        environment |= {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "REMOTE_SANDBOX_HUB_IDLE_S": "1"}
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
        with subprocess.Popen([COMMAND, *words], env=environment, **pipes) as process:
            try:
                begun = {"method": "notifications/initialized"}
                asked = [LEGACY[0] | {"id": 1}, begun, call(command="true", sandbox_name="gpu1") | {"id": 2}]
                process.stdin.write(b"".join(json.dumps({"jsonrpc": "2.0"} | it).encode() + b"\n" for it in asked))
                # Nothing is remembered at a first start, so the first answer comes when the SDK has been loaded.
                ready = select.select([machine, process.stdout], [], [], 60)[0]
                assert ready == [machine]
                # The call finds the login on its way: one that had failed before would be made anew for it.
                login_line = machine.accept()[0]
                assert json.loads(process.stdout.readline())["id"] == 1
                login_line.close()
                # A connection that is cut during the login is made once more.
                machine.accept()[0].close()
                told = json.loads(process.stdout.readline())["result"]
                assert told["isError"]
                assert "unable to open gpu1" in told["content"][0]["text"]
                assert not select.select([machine], [], [], 0)[0]
            finally:
                process.stdin.close()
                process.wait(10)
