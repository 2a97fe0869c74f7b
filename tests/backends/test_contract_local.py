"""The embedded sandbox keeps the contract."""

from __future__ import annotations

import asyncio

import pytest

from remote_sandbox_mcp.backends.bubblewrap.local import open_local, why_not
from remote_sandbox_mcp.core.commands.command import Environment
from remote_sandbox_mcp.core.sandboxes.machine import LocalPlace
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from tests.backends.contract import Contract, JobContract, Opener, PythonContract
from tests.support.means import IS_ROOT, bubblewrap_runs


@pytest.fixture(scope="module")
def opener(tmp_path_factory: pytest.TempPathFactory) -> Opener:
    if reason := asyncio.run(why_not()):
        pytest.skip(reason)
    state_folder = tmp_path_factory.mktemp("state")

    async def open_it(environment: Environment) -> Sandbox:
        return await open_local(LocalPlace(environment=environment), state_folder)

    return open_it


class TestLocal(Contract, JobContract, PythonContract):
    terminals = IS_ROOT or bubblewrap_runs()
