"""A container of an OpenSandbox platform keeps the contract: real server, engine, containers and SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from remote_sandbox_mcp.backends.opensandbox.container import ContainerSandbox
from remote_sandbox_mcp.backends.opensandbox.provider import OpenSandboxProvider
from remote_sandbox_mcp.core.commands.command import Environment
from remote_sandbox_mcp.core.sandboxes.disposable import SandboxOrder, new_disposable_id
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from tests.backends.contract import Contract, JobContract, Opener, PythonContract

# The first of them waits for the platform to come up.
pytestmark = [pytest.mark.xdist_group("platform"), pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
async def opener(provider: OpenSandboxProvider) -> AsyncIterator[Opener]:
    made = await provider.create(new_disposable_id(), SandboxOrder(network=True))

    async def open_it(environment: Environment) -> Sandbox:
        sandbox = await provider.open(made, environment)
        assert isinstance(sandbox, ContainerSandbox)
        return sandbox

    yield open_it
    await provider.delete(made)


@pytest.mark.line_only
class TestOpenSandbox(Contract, JobContract, PythonContract):
    pass
