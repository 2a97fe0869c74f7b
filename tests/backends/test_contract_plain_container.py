"""A container without Python keeps the contract, through the platform's own agent and a POSIX shell."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from remote_sandbox_mcp.backends.opensandbox.plain import PlainContainer
from remote_sandbox_mcp.backends.opensandbox.provider import OpenSandboxProvider
from remote_sandbox_mcp.core.commands.command import Environment
from remote_sandbox_mcp.core.errors import Unsupported
from remote_sandbox_mcp.core.jobs.job import JobQuery
from remote_sandbox_mcp.core.sandboxes.disposable import SandboxOrder, new_disposable_id
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from tests.backends.contract import Contract, JobContract, Opener
from tests.support.platform import WITHOUT_PYTHON

# The first of them waits for the platform to come up.
pytestmark = [pytest.mark.xdist_group("platform"), pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
async def opener(provider: OpenSandboxProvider) -> AsyncIterator[Opener]:
    made = await provider.create(new_disposable_id(), SandboxOrder(image=WITHOUT_PYTHON, network=True))

    async def open_it(environment: Environment) -> Sandbox:
        sandbox = await provider.open(made, environment)
        assert isinstance(sandbox, PlainContainer)
        return sandbox

    yield open_it
    await provider.delete(made)


class TestPlainContainer(Contract, JobContract):
    async def test_text_reaches_a_job(self, sandbox: Sandbox, session: str) -> None:
        """The one thing that jobs cannot have here is told."""
        with pytest.raises(Unsupported, match="that needs tmux and python3, and there is no python3"):
            await sandbox.jobs.send(JobQuery(session=session), text="x")
