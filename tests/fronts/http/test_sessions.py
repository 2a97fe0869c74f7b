"""What a server keeps of HTTP sessions: a selection each, for as long as the session lives."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any

import httpx2
import pytest
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.fronts.mcp.clients import Conversations, HttpSessions
from remote_sandbox_mcp.fronts.mcp.server import build
from remote_sandbox_mcp.services.fleet import Fleet
from remote_sandbox_mcp.services.session import MOST_ALONE, Selection, Session, begin
from tests.fronts.mcp.conftest import member
from tests.support.fakes.sandbox import FakeSandbox
from tests.support.server import until

SESSIONS = 200
IDLE_S = 0.5
HEADERS = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-06-18"}


def selections() -> int:
    gc.collect()
    return sum(isinstance(it, Selection) for it in gc.get_objects())


async def ask(line: httpx2.AsyncClient, session: str, method: str, **params: Any) -> httpx2.Response:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    headers = HEADERS | ({"Mcp-Session-Id": session} if session else {})
    return await line.post("/mcp", json=message, headers=headers)


async def select_in_a_new_session(line: httpx2.AsyncClient) -> str:
    who = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    session = (await ask(line, "", "initialize", **who)).headers["mcp-session-id"]
    chosen = await ask(line, session, "tools/call", name="select_sandbox", arguments={"sandbox_name": "fake"})
    assert json.loads(chosen.text)["result"]["structuredContent"]["active_sandbox"] == "fake"
    return session


async def test_many_sessions_leave_nothing_when_they_end_or_are_idle() -> None:
    app, before = App(Fleet([member(FakeSandbox())])), selections()
    server = build(app, HttpSessions())
    manager = StreamableHTTPSessionManager(
        server._lowlevel_server, json_response=True, session_idle_timeout=IDLE_S, max_sessions=SESSIONS
    )
    transport = httpx2.ASGITransport(manager.handle_request)
    async with manager.run(), httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as line:
        for number in range(SESSIONS):
            session = await select_in_a_new_session(line)
            if number % 2:
                ended = await line.delete("/mcp", headers=HEADERS | {"Mcp-Session-Id": session})
                assert ended.status_code == 200
        await until(lambda: not manager._server_instances and selections() == before, "the selections to go")
    await app.close()


async def test_clients_that_cannot_be_told_apart_have_so_many_calls_at_work_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They share a process with others, from whom they must not take everything."""
    app = App(Fleet([member(FakeSandbox())]))
    server, at_work, go_on = build(app, Conversations()), 0, asyncio.Event()

    async def work(*_: object) -> Any:
        nonlocal at_work
        at_work += 1
        await go_on.wait()

    monkeypatch.setattr(server, "_make", work)
    monkeypatch.setattr("remote_sandbox_mcp.fronts.mcp.server.outcome_of", str)
    begin(Session(is_of_many=True))
    calls = [asyncio.ensure_future(server.call_tool("list_sandboxes", {})) for _ in range(MOST_ALONE + 20)]
    await until(lambda: at_work >= MOST_ALONE, "the calls to be at work")
    await asyncio.sleep(0)
    assert at_work == MOST_ALONE
    go_on.set()
    await asyncio.gather(*calls)
    await app.close()
