"""The local sandbox keeps the contract without namespaces, too: confined by Landlock."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote_sandbox_mcp.backends.bubblewrap import landlock
from remote_sandbox_mcp.backends.bubblewrap.local import open_local, why_not
from remote_sandbox_mcp.core.commands.command import Environment
from remote_sandbox_mcp.core.sandboxes.machine import LocalPlace
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from tests.backends.contract import Contract, JobContract, Opener, PortContract, PythonContract
from tests.support.means import IS_ROOT


@pytest.fixture(scope="module")
def opener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opener]:
    if reason := asyncio.run(why_not("landlock")):
        pytest.skip(reason)
    state_folder = tmp_path_factory.mktemp("state")
    usual, landlock.REACHABLE = landlock.REACHABLE, Path(tempfile.mkdtemp(prefix="rsmcp-reachable-"))

    async def open_it(environment: Environment) -> Sandbox:
        return await open_local(LocalPlace(environment=environment, walls="landlock"), state_folder)

    yield open_it
    shutil.rmtree(landlock.REACHABLE)
    landlock.REACHABLE = usual


class TestLandlock(Contract, JobContract, PythonContract, PortContract):
    terminals = IS_ROOT
