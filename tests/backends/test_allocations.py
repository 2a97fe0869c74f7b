"""Allocations of a real Slurm cluster as sandboxes: submitted, pending, used, ended by whoever may, and cancelled."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from remote_sandbox_mcp.backends.command.host import MachineWay
from remote_sandbox_mcp.backends.slurm.allocation import LoginWay
from remote_sandbox_mcp.backends.slurm.provider import SlurmProvider
from remote_sandbox_mcp.backends.slurm.queue import Queue
from remote_sandbox_mcp.backends.ssh.machine import open_machine
from remote_sandbox_mcp.core.command import Command, Completed, Environment
from remote_sandbox_mcp.core.disposable import Disposable, Limits, Rules, SandboxOrder, new_disposable_id
from remote_sandbox_mcp.core.sandbox import Sandbox
from remote_sandbox_mcp.core.slurm import Cluster as Settings
from tests.support.server import entry, serve, until
from tests.support.slurm import Cluster

# The tests ask often.
OFTEN = Settings(rate_s=0.2)


@pytest.fixture
async def provider(slurm: Cluster, tmp_path: Path) -> AsyncIterator[SlurmProvider]:
    machine = await open_machine(slurm.login.machine(), tmp_path / "known_hosts")
    made = provider_on(machine)
    yield made
    await made.close()
    await machine.close()


def provider_on(machine: Sandbox, settings: Settings = OFTEN, environment: Environment | None = None) -> SlurmProvider:
    async def opened() -> Sandbox:
        return machine

    environment = environment or Environment()
    way = LoginWay(MachineWay("cluster", opened), environment)
    return SlurmProvider(Queue("cluster", settings, way), environment, Rules(), "0123456789abcdef")


async def make(provider: SlurmProvider, **order: object) -> Disposable:
    given = {"timeout_s": 600.0} | order
    return await provider.create(new_disposable_id(), SandboxOrder(**given))  # type: ignore[arg-type]


async def started(provider: SlurmProvider, made: Disposable) -> Disposable:
    async def runs() -> Disposable | None:
        seen = await provider.look(made)
        return seen if seen.status == "running" else None

    return await until(runs, "the allocation to start", 20)


async def say(sandbox: Sandbox, script: str, timeout_s: float = 30.0) -> str:
    seen = await sandbox.run(Command(script, timeout_s=timeout_s))
    assert isinstance(seen, Completed)
    return seen.stdout.head.decode() + seen.stderr.head.decode()


async def test_an_allocation_has_what_was_asked_for_and_its_work_is_in_the_batch_step(
    provider: SlurmProvider, slurm: Cluster
) -> None:
    made = await make(
        provider,
        name="box",
        env={"TOKEN": 'it\'s "secret"\n$HOME'},
        limits=Limits(cpu=2, memory_mb=300, gpus=1, cards=("a100:2",)),
        slurm={"partition": "high"},
    )
    seen = await started(provider, made)
    sandbox = await provider.open(seen)
    try:
        said = await say(sandbox, 'printf %s "$TOKEN"; echo; hostname; echo $CUDA_VISIBLE_DEVICES $SLURM_CPUS_PER_TASK')
        assert said == 'it\'s "secret"\n$HOME\nn1\n0,1 2\n'
        # Every step of srun has a parent of its own, with which all ends that it has started.
        chain = await say(
            sandbox,
            "p=$$; while [ $p -gt 1 ]; do tr '\\0' ' ' </proc/$p/cmdline; echo; "
            "p=$(awk '/^PPid/ {print $2}' /proc/$p/status); done",
        )
        assert f"slurmstepd: [{made.key}.bat" in chain, chain
        assert f"[{made.key}.0" not in chain, chain
        fields = slurm.job(made.key)
        assert (fields["Partition"], fields["TimeLimit"], fields["Requeue"]) == ("high", "00:10:00", "0")
    finally:
        await sandbox.close()
    assert [(it.id, it.key) for it in await provider.list()] == [(made.id, made.key)]
    await provider.delete(made)
    slurm.await_state(made.key, "CANCELLED")
    await provider.delete(made)


async def test_all_tools_work_on_an_allocation_and_the_next_server_finds_it(slurm: Cluster, tmp_path: Path) -> None:
    """The real client and server: made, used by every kind of tool, lost with a killed server, found, deleted."""
    cluster = entry(slurm.login, name="cluster", slurm={"rate_s": 1})
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "test_sum.py").write_text("def test_sum():\n    assert 1 + 1 == 2\n")
    async with serve(tmp_path, cluster, hub=False) as server:
        made = await server.call(
            "create_sandbox", on="cluster", name="box", gpu="a100:1", timeout=900, slurm={"partition": "main"}
        )
        assert (made["provider"], made["on"], made["status"]) == ("slurm", "cluster", "running"), made
        assert await server.output("hostname; echo $CUDA_VISIBLE_DEVICES", sandbox_name="box") == "n1\n0\n"
        await server.call(
            "sync_local_to_remote", local_path=str(tmp_path / "tree"), remote_path="tree", sandbox_name="box"
        )
        started = await server.call(
            "exec_bash_background", command="sleep 600", session_name="work", watch=False, sandbox_name="box"
        )
        assert started["status"] == "started"
        os.kill(server.pid, signal.SIGKILL)
    async with serve(tmp_path, cluster, hub=False) as server:
        job = await server.call("check_background_task", tmux_session="work", sandbox_name="box")
        assert job["running"] is True
        report = await server.call(
            "run_tests", sandbox_id="box", path="tree", command="python3 -m unittest -v 2>&1; true"
        )
        assert report["exit_code"] == 0
        deployed = await server.call(
            "deploy_app", sandbox_id="box", command="exec python3 -m http.server 8123 --bind 127.0.0.1", port=8123
        )
        assert deployed["status"] == "running", deployed
        listed = {it["name"]: it for it in (await server.call("list_sandboxes"))["sandboxes"]}
        assert (listed["box"]["kind"], listed["box"]["host"], listed["box"]["status"]) == (
            "slurm",
            "cluster",
            "running",
        )
        await server.call("delete_sandbox", sandbox_id="box")
    assert not [state for state in slurm.squeue().values() if state != "COMPLETING"]
