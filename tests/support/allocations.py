"""Allocations of the tests' cluster: a provider over its login node, and sandboxes in one allocation."""

from __future__ import annotations

from pathlib import Path

from remote_sandbox_mcp.backends.command.way import MachineWay
from remote_sandbox_mcp.backends.slurm.allocation import LoginWay
from remote_sandbox_mcp.backends.slurm.provider import SlurmProvider
from remote_sandbox_mcp.backends.slurm.queue import ClusterQueue
from remote_sandbox_mcp.backends.ssh.machine import open_machine
from remote_sandbox_mcp.core.commands.command import Environment
from remote_sandbox_mcp.core.sandboxes.disposable import (
    Disposable,
    DisposableRules,
    Limits,
    SandboxOrder,
    new_disposable_id,
)
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from remote_sandbox_mcp.core.sandboxes.slurm import Cluster as Settings
from tests.support.server import until
from tests.support.slurm import Cluster

# The tests ask often.
OFTEN = Settings(rate_s=0.2)
MARK = "0123456789abcdef"
# The cluster ends what uses more memory than it has asked for; a hundred megabytes unless told.
MUCH = Limits(memory_mb=2000)


def provider_on(machine: Sandbox, settings: Settings = OFTEN, environment: Environment | None = None) -> SlurmProvider:
    async def opened() -> Sandbox:
        return machine

    way = LoginWay(MachineWay("cluster", opened), Environment())
    return SlurmProvider(ClusterQueue("cluster", settings, way), environment or Environment(), DisposableRules(), MARK)


async def make(provider: SlurmProvider, **order: object) -> Disposable:
    given = {"timeout_s": 600.0} | order
    return await provider.create(new_disposable_id(), SandboxOrder(**given))  # type: ignore[arg-type]


async def started(provider: SlurmProvider, made: Disposable) -> Disposable:
    async def runs() -> Disposable | None:
        seen = await provider.inspect(made)
        return seen if seen.status == "running" else None

    found: Disposable = await until(runs, "the allocation to start", 20)
    return found


class Place:
    """One allocation for many sandboxes: each is opened over a login of its own."""

    def __init__(self, cluster: Cluster, known_hosts: Path) -> None:
        self._cluster = cluster
        self._known_hosts = known_hosts
        self._made: Disposable | None = None

    async def open(self, environment: Environment) -> Sandbox:
        machine = await open_machine(self._cluster.login.machine(), self._known_hosts)
        provider = provider_on(machine, environment=environment)
        if self._made is None:
            self._made = await started(provider, await make(provider, limits=MUCH))
        sandbox = await provider.open(self._made)
        close = sandbox.close

        async def close_all() -> None:
            await close()
            await provider.close()
            await machine.close()

        sandbox.close = close_all  # type: ignore[method-assign]
        return sandbox
