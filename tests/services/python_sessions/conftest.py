"""Python sessions in the embedded sandbox: code in it may do its worst."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.backends.bubblewrap.local import describe, open_local
from remote_sandbox_mcp.core.commands.interpreter import PythonOrder
from remote_sandbox_mcp.core.sandboxes.machine import LocalPlace
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from remote_sandbox_mcp.services.fleet import Fleet, Member
from remote_sandbox_mcp.services.sessions.python import PythonReport
from tests.support.means import require_local

Run = Callable[..., Awaitable[PythonReport]]


@pytest.fixture(scope="module")
async def app(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[App]:
    require_local()
    place, folder = LocalPlace(), tmp_path_factory.mktemp("state")
    app = App(Fleet([Member(place.name, lambda: describe(place), lambda: open_local(place, folder))]))
    yield app
    await app.close()


@pytest.fixture
async def sandbox(app: App) -> Sandbox:
    return await app.fleet.get()


@pytest.fixture
def run(app: App) -> Run:
    async def run(code: str, **given: Any) -> PythonReport:
        return await app.pythons.run(PythonOrder(code=code, **given))

    return run
