"""A machine over OpenSSH's client keeps the contract: with logins of its own, and over a connection of the user's."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote_sandbox_mcp.backends.link.sandbox import OutpostSandbox
from remote_sandbox_mcp.core.commands.command import Environment
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from tests.backends.contract import Contract, JobContract, Opener, PortContract, RunContract, SessionContract
from tests.support.means import require_program
from tests.support.openssh import logins, master, open_it, over_openssh
from tests.support.sshd import Sshd


@pytest.fixture(scope="module")
def opener(shared_sshd: Sshd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opener]:
    require_program("ssh")
    own = tmp_path_factory.mktemp("state") / "known_hosts"

    async def open_machine(environment: Environment) -> Sandbox:
        sandbox = await open_it(over_openssh(shared_sshd, environment=environment), own)
        assert isinstance(sandbox, OutpostSandbox)
        return sandbox

    yield open_machine
    shared_sshd.reset()


@pytest.mark.line_only
class TestOpenSsh(Contract, JobContract, PortContract):
    pass


class TestOverControlMaster(RunContract, SessionContract, PortContract):
    """All of it goes over one connection, which somebody else has logged in to.

    Files and jobs are the outpost's, whose line is the same as above; here is what depends on how lines are opened.
    """

    @pytest.fixture(scope="class")
    @classmethod
    def opener(cls, shared_sshd: Sshd) -> Iterator[Opener]:
        require_program("ssh")
        # Not in pytest's folder: the path of a socket must be short.
        with tempfile.TemporaryDirectory() as folder, master(shared_sshd, Path(folder) / "cm"):
            before = logins(shared_sshd)

            async def open_machine(environment: Environment) -> Sandbox:
                machine = over_openssh(shared_sshd, control_path=f"{folder}/cm", environment=environment)
                return await open_it(machine, Path(folder) / "known_hosts")

            yield open_machine
            assert logins(shared_sshd) == before
