"""A disposable sandbox on this machine keeps the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from remote_sandbox_mcp.backends.bubblewrap.provider import EmbeddedProvider
from remote_sandbox_mcp.core.commands.command import Environment
from remote_sandbox_mcp.core.sandboxes.disposable import Provider, SandboxOrder, new_disposable_id
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from tests.backends.contract import Contract, JobContract, Opener, PortContract
from tests.support.means import IS_ROOT, bubblewrap_runs, require_local


@pytest.fixture(scope="module")
async def opener(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Opener]:
    require_local()
    state_folder = tmp_path_factory.mktemp("state")
    providers: list[Provider] = []

    async def open_it(environment: Environment) -> Sandbox:
        providers.append(EmbeddedProvider(state_folder, environment))
        made = await providers[-1].create(new_disposable_id(), SandboxOrder())
        return await providers[-1].open(made)

    yield open_it
    for provider in providers:
        await provider.close()


@pytest.mark.line_only
class TestEmbedded(Contract, JobContract, PortContract):
    terminals = IS_ROOT or bubblewrap_runs()
