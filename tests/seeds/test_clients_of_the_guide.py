"""Steps 3 and 5 of the guide: a client that is configured exactly as it says gets a working server, or one sentence."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from remote_sandbox_mcp.cli.main import parser
from remote_sandbox_mcp.core.serving import Http
from tests.fronts.http.conftest import service
from tests.support.ports import free_port
from tests.support.server import environment, text_of

from .promise import shown_by

KEY = "your-api-key-here"
STDIO = """{"mcpServers": {"opensandbox": {"type": "stdio", "command": "python",
            "args": ["-m", "remote_sandbox_mcp.server"], "env": {"OPENSANDBOX_SERVER": "http://localhost:8080"}}}}"""
HTTP = """{"mcpServers": {"opensandbox": {"type": "http", "url": "http://localhost:3000",
           "apiKey": "your-api-key-here"}}}"""


@asynccontextmanager
async def client_of(text: str, home: Path, **changed: Any) -> AsyncIterator[Client]:
    """A client as .mcp.json configures it; `changed` is what differs on this machine: a port, the path of Python."""
    (entry,) = json.loads(text)["mcpServers"].values()
    entry |= changed
    if entry["type"] == "stdio":
        env = environment(home, ()) | entry["env"]
        started = StdioServerParameters(command=entry["command"], args=entry["args"], env=env)
        with (home / "stderr").open("a") as errlog:
            async with Client(stdio_client(started, errlog)) as client:
                yield client
        return
    line = httpx2.AsyncClient(headers={"apiKey": entry["apiKey"]}, timeout=60, verify=False)
    transport = streamable_http_client(entry["url"], http_client=line)
    async with line, Client(transport, mode="legacy") as client:
        yield client


@asynccontextmanager
async def over_http(home: Path, *words: str) -> AsyncIterator[str]:
    """The address of a server that was started as step 5 says, but for the port."""
    port = free_port()
    with service(home, *(words or ("--port", str(port))), env={"REMOTE_SANDBOX_API_KEY": KEY}) as served:
        yield f"http://localhost:{served.port}"


def read_text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


async def starts_by_stdio(home: Path) -> object:
    # Nobody answers at port 8080 of the guide, so create_sandbox says so.
    env = {"OPENSANDBOX_SERVER": f"http://localhost:{free_port()}"}
    async with client_of(STDIO, home, command=sys.executable, env=env) as client:
        names = {it.name for it in (await client.list_tools()).tools}
        return names >= {"create_sandbox", "run_command", "upload_files", "download_files", "delete_sandbox"}


async def says_that_the_platform_is_away(home: Path) -> object:
    url = f"http://localhost:{free_port()}"
    async with client_of(STDIO, home, command=sys.executable, env={"OPENSANDBOX_SERVER": url}) as client:
        unnamed = text_of(await client.call_tool("create_sandbox", {}))
        assert "name one as image, or set OPENSANDBOX_DEFAULT_IMAGE" in unnamed
        answer = await client.call_tool("create_sandbox", {"image": "nvda-vision:latest"})
        return answer.is_error and f"{url} does not answer" in text_of(answer)


async def connects_without_a_path(home: Path) -> object:
    async with over_http(home) as url, client_of(HTTP, home, url=url) as client:
        made = (await client.call_tool("create_sandbox", {})).structured_content or {}
        ran = (await client.call_tool("run_command", {"command": "echo works"})).structured_content or {}
        await client.call_tool("delete_sandbox", {"sandbox_id": made["sandbox_id"]})
        return ran["stdout"] == "works\n"


async def serves_on_its_port(home: Path) -> object:
    port = free_port()
    async with over_http(home, "--port", str(port)) as url:
        return url.endswith(f":{port}")


async def refuses_another_key(home: Path) -> object:
    async with over_http(home) as url, httpx2.AsyncClient(headers={"apiKey": "another"}, verify=False) as line:
        answer = await line.post(url, json={})
    told = ("Authorization: Bearer KEY", 'in .mcp.json: "headers": {"Authorization": "Bearer KEY"}')
    return answer.status_code == 401 and all(words in answer.text for words in told)


async def has_the_port_of_the_guide(home: Path) -> object:
    return (Http().port, parser().parse_args(["--mode", "http"]).port) == (3000, None)


CHECKS: dict[str, Callable[[Path], Awaitable[object]]] = {
    ".mcp.json stdio": starts_by_stdio,
    ".mcp.json http": connects_without_a_path,
    ".mcp.json apiKey": connects_without_a_path,
    "--mode http": connects_without_a_path,
    "--port": serves_on_its_port,
    "--port=3000": has_the_port_of_the_guide,
    "platform that does not answer": says_that_the_platform_is_away,
    "wrong apiKey": refuses_another_key,
}


@pytest.mark.parametrize("promise", shown_by("test_clients_of_the_guide.py::test_promise"))
async def test_promise(promise: str, tmp_path: Path) -> None:
    assert await CHECKS[promise](tmp_path)


async def test_the_server_is_called_as_an_accepted_config_json_of_the_project_says(tmp_path: Path) -> None:
    """Step 2: server.name and server.version; over both transports, also where the first answers are remembered."""
    from remote_sandbox_mcp import __version__
    from tests.config.test_services import SEED
    from tests.e2e.test_projects import config

    from .scene import TRANSPORTS, session

    project = tmp_path / "project"
    project.mkdir()
    (project / "config.json").write_text(json.dumps(SEED))
    for is_accepted in (False, True):
        for transport in TRANSPORTS:
            async with session(transport, tmp_path, cwd=project) as caller:
                seen = caller.client.server_info
                assert seen
                told = (await caller.fail("create_sandbox"))["error"]
            ours, guides = ("remote-sandbox-mcp", __version__, None), ("opensandbox", "0.1.0", "any")
            assert (seen.name, seen.version, seen.description) == (guides if is_accepted else ours)
            assert ("config allow" in told) == (not is_accepted)
            assert ("http://localhost:8080" in told) == is_accepted
        # logging.file of the guide, at its level.
        assert ("INFO create_sandbox: " in read_text(project / "mcp-server.log")) == is_accepted
        assert config(tmp_path, project, "allow", "--yes").returncode == 0
