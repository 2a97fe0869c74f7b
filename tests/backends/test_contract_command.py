"""What is behind a command keeps the contract: over an outpost, and over a shell where there is no Python."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from remote_sandbox_mcp.backends.link.sandbox import OutpostSandbox
from remote_sandbox_mcp.backends.shell.sandbox import ShellAlone
from remote_sandbox_mcp.core.commands.command import Environment
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from tests.backends.contract import Contract, JobContract, Opener, PortContract, PythonContract, RunContract
from tests.support.commands import open_door, shell_of
from tests.support.sshd import Fleet, Sshd


@pytest.fixture(scope="module")
def opener(shared_sshd: Sshd) -> Iterator[Opener]:
    async def open_it(environment: Environment) -> Sandbox:
        sandbox = await open_door(shell_of(shared_sshd), environment)
        assert isinstance(sandbox, OutpostSandbox)
        return sandbox

    yield open_it
    shared_sshd.reset()


@pytest.mark.line_only
class TestCommand(Contract, JobContract, PortContract, PythonContract):
    pass


class TestWithoutPython(RunContract):
    """The shell program keeps all of it in other places; here is what depends on how a command is started."""

    @pytest.fixture(scope="class")
    @classmethod
    def opener(cls, fleet: Fleet) -> Opener:
        bare = fleet.machine(python=False)

        async def open_it(environment: Environment) -> Sandbox:
            sandbox = await open_door(shell_of(bare), environment)
            assert isinstance(sandbox, ShellAlone)
            return sandbox

        return open_it
