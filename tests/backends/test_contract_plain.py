"""An SSH machine without Python keeps the contract, over plain channels."""

from __future__ import annotations

import pytest

from remote_sandbox_mcp.backends.ssh.machine import open_machine
from remote_sandbox_mcp.backends.ssh.plain import PlainSandbox
from remote_sandbox_mcp.core.commands.command import Environment
from remote_sandbox_mcp.core.errors import Unsupported
from remote_sandbox_mcp.core.jobs.job import JobQuery
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from tests.backends.contract import Contract, JobContract, Opener, PythonContract
from tests.support.sshd import Fleet


@pytest.fixture(scope="module")
def opener(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Opener:
    known_hosts = tmp_path_factory.mktemp("state") / "known_hosts"
    sshd = fleet.machine(python=False)

    async def open_it(environment: Environment) -> Sandbox:
        sandbox = await open_machine(sshd.machine(environment=environment), known_hosts)
        assert isinstance(sandbox, PlainSandbox)
        return sandbox

    return open_it


class TestPlain(Contract, JobContract, PythonContract):
    # It is on no PATH there.
    PYTHON = "/usr/bin/python3"

    async def test_text_reaches_a_job(self, sandbox: Sandbox, session: str) -> None:
        """The one thing that jobs cannot have here is told."""
        with pytest.raises(Unsupported, match="that needs tmux and python3, and there is no python3 on the machine"):
            await sandbox.jobs.send(JobQuery(session=session), text="x")
