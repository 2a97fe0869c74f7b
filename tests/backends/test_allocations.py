"""Allocations of a real Slurm cluster as sandboxes: submitted, pending, used, ended by whoever may, and cancelled."""

from __future__ import annotations

import asyncio
import os
import pwd
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.backends.slurm.allocation import PlainAllocation
from remote_sandbox_mcp.backends.slurm.order import step_line, submission
from remote_sandbox_mcp.backends.slurm.provider import SlurmProvider
from remote_sandbox_mcp.backends.ssh.machine import open_machine
from remote_sandbox_mcp.core.commands.command import Command, Completed
from remote_sandbox_mcp.core.errors import BadArgument, ConnectError, SandboxError, Unsupported
from remote_sandbox_mcp.core.jobs.job import JobOrder
from remote_sandbox_mcp.core.sandboxes.disposable import Disposable, Limits, SandboxOrder
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from remote_sandbox_mcp.core.sandboxes.slurm import Cluster as Settings
from tests.support.allocations import make, provider_on, started
from tests.support.server import entry, serve, until
from tests.support.slurm import Cluster


@pytest.fixture
async def provider(slurm: Cluster, tmp_path: Path) -> AsyncIterator[SlurmProvider]:
    machine = await open_machine(slurm.login.machine(), tmp_path / "known_hosts")
    made = provider_on(machine)
    yield made
    await made.close()
    await machine.close()


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
        limits=Limits(cpu=2, memory_mb=300, gpus=1, gpu_memory_mb=40960, cards=("a100:2",)),
        slurm={"partition": "high"},
    )
    assert made.limits.told[-1] == "gpu_memory: Slurm has no option for it; name a type of GPU, as gpu='a100:2'"
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
        # Its title is cut where the job's number has more digits.
        assert f"slurmstepd: [{made.key}.b" in chain, chain
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
        assert made["expires_at"] > made["created_at"]
        assert "the queue ends it 15 min after its start, used or not" in made["notes"][0]
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


async def test_one_that_is_pending_says_why_outlives_its_server_and_starts_later(
    slurm: Cluster, tmp_path: Path
) -> None:
    """Three servers of one user: the first is killed while it waits for the queue, the second is the hub."""
    blocker = slurm.sbatch("sleep 600", "--nodes=2", "--exclusive", "--time=30")
    slurm.await_state(blocker, "RUNNING")
    cluster, heard = entry(slurm.login, name="cluster", slurm={"rate_s": 0.5}), []

    async def hear(done: float, total: float | None, message: str | None) -> None:
        heard.append(message or "")

    async with serve(tmp_path, cluster, hub=False) as first:
        waiting = asyncio.ensure_future(
            first.call("create_sandbox", progress=hear, on="cluster", name="box", timeout=900)
        )
        await until(lambda: any("is pending: Resources, expected to start at " in it for it in heard), "a reason", 20)
        os.kill(first.pid, signal.SIGKILL)
        with pytest.raises(Exception):  # noqa: B017
            await waiting
    async with serve(tmp_path, cluster) as second, serve(tmp_path, cluster, hub=False) as third:
        refused = await second.fail("exec_bash", command="hostname", sandbox_name="box")
        assert "box is pending: Resources, expected to start at " in refused["error"]
        (box,) = [it for it in (await third.call("list_sandboxes"))["sandboxes"] if it["name"] == "box"]
        assert (box["status"], box["connection_alive"], box.get("expires_at")) == ("pending", False, None), box
        assert box["reason"].startswith("Resources")
        # Of a call that is given up, nothing is left in the queue.
        given_up = asyncio.ensure_future(second.call("create_sandbox", on="cluster", timeout=900))
        await until(lambda: len(slurm.squeue()) == 3, "the second to be in the queue")
        given_up.cancel()
        await until(lambda: len(slurm.squeue()) == 2, "the second to be taken out of the queue")
        slurm.admin("scancel", blocker)

        async def said() -> str:
            answer = await second.ask("exec_bash", command="hostname", sandbox_name="box")
            return "" if answer.is_error else str((answer.structured_content or {})["stdout"])

        assert await until(said, "the sandbox to start", 30) in ("n1\n", "n2\n")
        assert await third.output("echo here", sandbox_name="box") == "here\n"
        (box,) = [it for it in (await third.call("list_sandboxes"))["sandboxes"] if it["name"] == "box"]
        assert box["status"] == "running"
        assert box["expires_at"]
        await third.call("delete_sandbox", sandbox_id="box")


async def test_a_pending_one_is_taken_out_of_the_queue(provider: SlurmProvider, slurm: Cluster) -> None:
    slurm.await_state(slurm.sbatch("sleep 600", "--nodes=2", "--exclusive"), "RUNNING")
    made = await make(provider)
    seen = await until(lambda: looked(provider, made, "pending"), "it to be pending", 10)
    with pytest.raises(ConnectError, match=r"is pending: .*; try again later, or delete_sandbox takes it out"):
        await provider.open(seen)
    await provider.delete(made)
    assert slurm.await_state(made.key, "CANCELLED")["StartTime"] in ("Unknown", slurm.job(made.key)["EndTime"])


async def looked(provider: SlurmProvider, made: Disposable, status: str) -> Disposable | None:
    seen = await provider.inspect(made)
    return seen if seen.status == status and seen.reason != "not looked at by the queue yet" else None


async def ended(provider: SlurmProvider, made: Disposable, seconds: float = 20.0) -> tuple[str, str]:
    async def is_over() -> Disposable | None:
        seen = await provider.inspect(made)
        return seen if seen.status not in ("running", "pending") else None

    seen = await until(is_over, "its end", seconds)
    return seen.status, seen.reason


async def test_each_end_is_told_as_what_it_is(provider: SlurmProvider, slurm: Cluster) -> None:
    """Also to a command that ran in it."""
    preempted = await make(provider, slurm={"partition": "low", "nodelist": "n1"}, limits=Limits(cpu=4))
    lost = await make(provider, slurm={"nodelist": "n2"})
    cancelled = await make(provider, slurm={"nodelist": "n2"})
    late = await make(provider, slurm={"nodelist": "n2"}, timeout_s=1.0)
    await asyncio.gather(*(started(provider, it) for it in (preempted, lost, cancelled)))
    assert await ended(provider, late) == ("expired", "")
    sandbox = await provider.open(preempted)
    # One that ends by the queue's first signal is told as ended by that.
    running = asyncio.ensure_future(sandbox.run(Command("trap '' TERM; touch begun; sleep 600")))
    await until((slurm.login.home / "begun").exists, "the command to run")
    slurm.admin("scancel", cancelled.key)
    slurm.sbatch("sleep 600", "--partition=high", "--nodelist=n1")
    with pytest.raises(SandboxError, match="was preempted: the queue gave its place to another job"):
        await running
    await sandbox.close()
    assert await ended(provider, preempted) == ("gone", "was preempted: the queue gave its place to another job")
    assert await ended(provider, cancelled) == ("gone", "was cancelled in the queue, by its user or an administrator")
    slurm.crash("n2")
    assert await ended(provider, lost) == ("gone", "was lost because its node failed (n2)")


async def test_its_time_is_renewed_up_to_the_time_limit(provider: SlurmProvider, slurm: Cluster) -> None:
    made = await make(provider, timeout_s=3.0, slurm={"time": "5"})
    seen = await started(provider, made)
    begun = time.time()
    renewed = await provider.renew(seen, 100.0)
    assert 95 < renewed.expires - begun < 105
    capped = await provider.renew(renewed, 5000.0)
    assert 280 < capped.expires - seen.started <= 300
    assert "only an administrator may lengthen that" in capped.notes[-1]
    await until(lambda: time.time() > begun + 4, "its first time to be over", 10)
    assert (await provider.inspect(made)).status == "running"
    with pytest.raises(Unsupported, match="is an allocation of cluster, which only an administrator can suspend"):
        await provider.pause(made)


async def test_work_goes_on_while_the_login_node_the_controller_or_the_nodes_daemon_is_away(
    provider: SlurmProvider, slurm: Cluster
) -> None:
    made = await started(provider, await make(provider, slurm={"nodelist": "n1"}))
    sandbox, tmp = await provider.open(made), slurm.folder / "nodes/n1/tmp"
    running = asyncio.ensure_future(say(sandbox, "echo begun >begun; sleep 1; echo over"))
    await until((slurm.login.home / "begun").exists, "the command to run")
    slurm.login.kill_sessions()
    assert await running == "over\n"
    slurm.stop_controller()
    slurm.kill_slurmd("n1")
    try:
        assert await say(sandbox, "echo here") == "here\n"
    finally:
        slurm.start_controller()
        slurm.start_slurmd("n1")
    # By a step of its own.
    other = await provider.open(made)
    assert await say(other, "echo here") == "here\n"
    await other.close()
    await sandbox.close()
    assert list(tmp.glob(f"*{made.id}*"))
    await provider.delete(made)
    await until(lambda: not list(tmp.glob(f"*{made.id}*")), "the holder to remove what was written for it")


async def test_other_users_of_the_node_cannot_get_in_or_in_between(provider: SlurmProvider, slurm: Cluster) -> None:
    made = await make(provider, slurm={"nodelist": "n1"})
    seen = await started(provider, made)
    tmp, prefix = slurm.folder / "nodes/n1/tmp", f"rsmcp-{made.id}."
    (own,) = await until(lambda: list(tmp.glob(f"{prefix}*/socket")), "the holder to listen")
    assert own.parent.stat().st_mode & 0o777 == 0o700
    assert own.parent.stat().st_uid == pwd.getpwnam(slurm.login.user).pw_uid
    # Made by another user, with a socket that would be handed all that is typed.
    trap = tmp / f"{prefix}aaaaaaaa"
    trap.mkdir(mode=0o777)
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as intruding:
        with short_path(trap) as path:
            listening.bind(path)
        (trap / "socket").chmod(0o777)
        listening.listen()
        listening.setblocking(False)
        # Root passes every folder, and is another user all the same.
        with short_path(own.parent) as path:
            intruding.connect(path)
        intruding.settimeout(10)
        with suppress(ConnectionError):
            socket.send_fds(intruding, [b"L\x0e\x00\x00\x00touch intruded"], [0, 1, 2])
            assert intruding.recv(10) == b""
        sandbox = await provider.open(seen)
        assert await say(sandbox, "echo here") == "here\n"
        await sandbox.close()
        with pytest.raises(BlockingIOError):
            listening.accept()
    assert not (slurm.login.home / "intruded").exists()


@contextmanager
def short_path(folder: Path) -> Iterator[str]:
    """The socket in a folder, by a path that is short enough for one."""
    fd = os.open(folder, os.O_PATH)
    try:
        yield f"/proc/self/fd/{fd}/socket"
    finally:
        os.close(fd)


async def test_two_allocations_on_one_node_do_not_meet(provider: SlurmProvider, slurm: Cluster) -> None:
    made = [await make(provider, slurm={"nodelist": "n1"}) for _ in range(2)]
    one, other = [await provider.open(await started(provider, it)) for it in made]
    order = JobOrder(job_id="job-0123456789ab", session="work", script="echo $SLURM_JOB_ID; exec sleep 600")
    begun = await one.jobs.start(order)
    assert begun.session == "work"
    assert await other.jobs.list() == []
    await provider.delete(made[0])
    await until(lambda: slurm.state(made[0].key) == "CANCELLED", "the first to end", 10)
    assert await say(other, "echo here") == "here\n"
    await one.close()
    await other.close()


async def test_on_a_node_without_python_commands_and_files_work_and_jobs_say_why_not(provider: SlurmProvider) -> None:
    sandbox = await provider.open(await started(provider, await make(provider, slurm={"partition": "bare"})))
    assert isinstance(sandbox, PlainAllocation)
    assert await say(sandbox, "hostname") == "n3\n"
    assert not sandbox.description.capabilities.survives_disconnect
    with pytest.raises(Unsupported, match="no python3 on its node, so a background job would end with the call"):
        await sandbox.jobs.start(JobOrder(job_id="job-0123456789ab", session="work", script="sleep 600"))
    await sandbox.close()


async def test_what_the_queue_refuses_is_told_in_one_sentence(provider: SlurmProvider, slurm: Cluster) -> None:
    with pytest.raises(SandboxError, match=r"^unable to submit .* cluster: the queue of cluster said: .*Invalid part"):
        await make(provider, slurm={"partition": "nowhere"})
    with pytest.raises(SandboxError, match="Requested node configuration is not available"):
        await make(provider, limits=Limits(gpus=1, cards=("h100:1",)))
    assert slurm.squeue() == {}


async def test_the_accounting_tells_who_has_cancelled_it(slurm_with_accounting: Cluster, tmp_path: Path) -> None:
    machine = await open_machine(slurm_with_accounting.login.machine(), tmp_path / "known_hosts")
    provider = provider_on(machine)
    made = await started(provider, await make(provider))
    slurm_with_accounting.admin("scancel", made.key)

    async def is_told() -> bool:
        return (await provider.inspect(made)).reason == "was cancelled by an administrator"

    await until(is_told, "the accounting to say it", 20)
    await provider.close()
    await machine.close()


HOSTILE: dict[str, dict[str, Any]] = {
    "shell as a card": {"limits": Limits(gpus=1, cards=("a100:1;reboot",))},
    "option as a card": {"limits": Limits(gpus=1, cards=("--uid=0",))},
    "cards by number": {"limits": Limits(gpus=2, cards=("0", "2"))},
    "memory twice": {"limits": Limits(memory_mb=100), "slurm": {"mem_per_cpu": "1G"}},
    "gpus twice": {"limits": Limits(gpus=1), "slurm": {"gres": "gpu:1"}},
    "array": {"slurm": {"array": "0-9"}},
    "requeue": {"slurm": {"requeue": True}},
    "image": {"image": "python:3.12"},
    "no network": {"network": False},
    "hosts": {"hosts": ("example.org",), "network": True},
}


@pytest.mark.parametrize("order", HOSTILE.values(), ids=HOSTILE)
async def test_an_order_that_cannot_be_kept_is_refused_before_the_login_node_is_asked(order: dict[str, Any]) -> None:
    provider = provider_on(None)  # type: ignore[arg-type]
    with pytest.raises((BadArgument, Unsupported)):
        await make(provider, **order)


TIMES = {
    "the sandbox's own": ({}, {}, "--time=11"),
    "a longer one of the operator": ({"time": "4:00:00"}, {}, "--time=4:00:00"),
    "a shorter one of the operator": ({"time": "5"}, {}, "--time=11"),
    "the caller's": ({"time": "4:00:00"}, {"time": "5"}, "--time=5"),
}


@pytest.mark.parametrize(("defaults", "given", "word"), TIMES.values(), ids=TIMES)
def test_the_time_limit_is_as_long_as_it_has_to_be(defaults: dict[str, str], given: dict[str, str], word: str) -> None:
    order = SandboxOrder(timeout_s=610.0, slurm=given)
    words = submission(Settings(defaults), "sb-0123456789ab", order, "mark").words
    assert [it for it in words if it.startswith("--time")] == [word]


def test_a_step_overlaps_only_where_slurm_has_a_word_for_it() -> None:
    old, new = (step_line("7", "sb-0123456789ab", "L", "true", version) for version in ((20, 2), (20, 11)))
    assert "--overlap" not in old
    assert "--overlap" in new
