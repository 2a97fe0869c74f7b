"""A client of the real MCP server in memory, over a sandbox that is scripted or walled in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.server.mcpserver.tools import Tool
from mcp.types import Implementation

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.backends import here
from remote_sandbox_mcp.backends.bubblewrap.local import describe, open_local
from remote_sandbox_mcp.core.sandboxes.machine import LocalPlace
from remote_sandbox_mcp.core.sync.transfer import Lane
from remote_sandbox_mcp.fronts.mcp.server import build
from remote_sandbox_mcp.services.fleet import Fleet, Member
from tests.support.fakes.sandbox import FakeSandbox
from tests.support.means import require_local
from tests.support.server import AGENT, Caller
from tests.support.signatures import SIGNATURES


@pytest.fixture(autouse=True)
def signatures_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tool, "from_function", SIGNATURES.tool_of)


@pytest.fixture(autouse=True)
def project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The client was started in the test's folder, which is its project."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Nearby(FakeSandbox):
    """A scripted sandbox whose files, for transfers, are those of this machine."""

    async def open_lane(self) -> Lane:
        return await here.open_lane()


def member(fake: FakeSandbox) -> Member:
    async def opener() -> FakeSandbox:
        await fake.open()
        return fake

    return Member(fake.description.name, lambda: fake.description, opener)


@asynccontextmanager
async def connected(
    app: App, mode: str = "auto", elicitation: Any = None, who: Implementation = AGENT
) -> AsyncIterator[Caller]:
    """A client in memory; what fails inside comes out as it is."""
    stack = AsyncExitStack()
    client = await stack.enter_async_context(
        Client(build(app), mode=mode, elicitation_callback=elicitation, client_info=who)
    )
    try:
        yield Caller(client)
    finally:
        await stack.aclose()
        await app.close()


@pytest.fixture
def fake() -> FakeSandbox:
    return Nearby(files={"~/notes.txt": b"one\ntwo\nthree\n", "~/src/main.py": b"import os\nprint(os.sep)\n"})


@pytest.fixture
def other() -> FakeSandbox:
    return FakeSandbox(name="other")


@pytest.fixture
def app(fake: FakeSandbox, other: FakeSandbox) -> App:
    return App(Fleet([member(fake), member(other)]))


@pytest.fixture
async def tools(app: App) -> AsyncIterator[Caller]:
    async with connected(app) as caller:
        yield caller


@pytest.fixture
async def local_tools(tmp_path: Path) -> AsyncIterator[Caller]:
    """The same on the embedded sandbox: real commands and real files."""
    require_local()
    place = LocalPlace()
    embedded = Member(place.name, lambda: describe(place), lambda: open_local(place, tmp_path))
    async with connected(App(Fleet([embedded]))) as caller:
        yield caller
