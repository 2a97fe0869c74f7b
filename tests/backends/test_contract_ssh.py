"""An SSH machine with Python keeps the contract, over an outpost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from remote_sandbox_mcp.backends.link.sandbox import OutpostSandbox
from remote_sandbox_mcp.backends.ssh.machine import open_machine
from remote_sandbox_mcp.core.commands.command import Environment
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from tests.backends.contract import Contract, JobContract, Opener, WholePythonContract
from tests.support.sshd import Sshd


@pytest.fixture(scope="module")
def opener(shared_sshd: Sshd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opener]:
    known_hosts = tmp_path_factory.mktemp("state") / "known_hosts"

    async def open_it(environment: Environment) -> Sandbox:
        sandbox = await open_machine(shared_sshd.machine(environment=environment), known_hosts)
        assert isinstance(sandbox, OutpostSandbox)
        return sandbox

    yield open_it
    shared_sshd.reset()


class TestSsh(Contract, JobContract, WholePythonContract):
    pass
