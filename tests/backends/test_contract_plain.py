"""An SSH machine without Python keeps the contract, over plain channels."""

from __future__ import annotations

import pytest

from remote_sandbox_mcp.backends.ssh.machine import open_machine
from remote_sandbox_mcp.backends.ssh.plain import PlainSandbox
from remote_sandbox_mcp.core.command import Environment
from remote_sandbox_mcp.core.sandbox import Sandbox
from tests.backends.contract import Contract, Opener
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


class TestPlain(Contract):
    pass
