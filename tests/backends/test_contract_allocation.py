"""An allocation of a Slurm cluster keeps the contract."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from remote_sandbox_mcp.backends.link.sandbox import OutpostSandbox
from remote_sandbox_mcp.core.commands.command import Environment
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from tests.backends.contract import Contract, JobContract, Opener, PortContract, PythonContract
from tests.support.allocations import Place
from tests.support.slurm import Cluster


@pytest.fixture(scope="module")
def opener(shared_slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opener]:
    place = Place(shared_slurm, tmp_path_factory.mktemp("state") / "known_hosts")

    async def open_it(environment: Environment) -> Sandbox:
        sandbox = await place.open(environment)
        assert isinstance(sandbox, OutpostSandbox)
        return sandbox

    yield open_it
    shared_slurm.reset()


@pytest.mark.line_only
class TestAllocation(Contract, JobContract, PortContract, PythonContract):
    pass
