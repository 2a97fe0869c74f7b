"""How often a cluster's queue is asked, and what is made of an answer that does not come."""

from __future__ import annotations

import ast
import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from remote_sandbox_mcp.backends.command.console import ConsoleOutput
from remote_sandbox_mcp.backends.command.way import CommandEnding
from remote_sandbox_mcp.backends.slurm.allocation import USUAL_FOLDERS, LoginWay
from remote_sandbox_mcp.backends.slurm.order import program
from remote_sandbox_mcp.backends.slurm.provider import SlurmProvider
from remote_sandbox_mcp.backends.slurm.queue import ClusterQueue
from remote_sandbox_mcp.core.commands.command import Environment
from remote_sandbox_mcp.core.errors import SandboxError
from remote_sandbox_mcp.core.jobs.queue import SEPARATOR
from remote_sandbox_mcp.core.sandboxes.disposable import Disposable, DisposableRules
from remote_sandbox_mcp.core.sandboxes.slurm import Cluster

BOX = Disposable(id="sb-0123456789ab", provider="slurm:cluster", key="7")


class StandInQueue:
    """Answers as squeue does, from memory, and counts the questions."""

    def __init__(self) -> None:
        self.lines: dict[str, str] = {}
        self.is_away = False
        self.asked = 0
        self.offset_s = 0.0
        self.has_begun = False
        self.queue = ClusterQueue("cluster", Cluster(rate_s=600.0), None)  # type: ignore[arg-type]
        self.queue.console.run = self.run  # type: ignore[method-assign]

    def submit(self, number: str, disposable_id: str) -> None:
        fields = (number, "PENDING", "Priority", "N/A", "N/A", "main", "", f"rsmcp-mark-{disposable_id}")
        self.lines[number] = SEPARATOR.join(fields)

    async def run(self, script: str | Sequence[str], *_: object, **__: object) -> ConsoleOutput:
        if not isinstance(script, str):
            return ConsoleOutput(0, "", b"")
        if script.startswith("[ -e "):
            return ConsoleOutput(0 if self.has_begun else 1, "", b"")
        if "sacct" in script:
            return ConsoleOutput(1, "", b"Slurm accounting storage is disabled")
        self.asked += 1
        if self.is_away:
            return ConsoleOutput(1, "", b"slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
        return ConsoleOutput(0, "\n".join((str(int(time.time() + self.offset_s)), *self.lines.values())), b"")


async def test_all_who_ask_share_one_question() -> None:
    stand_in = StandInQueue()
    stand_in.submit("7", BOX.id)
    providers = [SlurmProvider(stand_in.queue, Environment(), DisposableRules(), "mark") for _ in range(3)]
    await asyncio.gather(*(provider.list() for provider in providers))
    for provider in providers:
        seen = await provider.inspect(BOX)
        assert (seen.status, seen.reason) == ("pending", "Priority")
    assert stand_in.asked == 1


async def test_what_is_newer_than_the_last_answer_is_asked_for_before_it_is_said_to_be_gone() -> None:
    stand_in = StandInQueue()
    provider = SlurmProvider(stand_in.queue, Environment(), DisposableRules(), "mark")
    assert await provider.list() == []
    stand_in.submit("7", BOX.id)
    assert (await provider.inspect(BOX)).status == "pending"
    assert stand_in.asked == 2


async def test_one_that_has_begun_is_known_by_its_sign_and_the_queue_is_asked_once_for_that() -> None:
    stand_in = StandInQueue()
    stand_in.submit("7", BOX.id)
    provider = SlurmProvider(stand_in.queue, Environment(), DisposableRules(), "mark")
    for _ in range(3):
        assert (await provider.inspect(BOX)).status == "pending"
    assert stand_in.asked == 1
    stand_in.lines["7"] = stand_in.lines["7"].replace("PENDING", "RUNNING")
    stand_in.has_begun = True
    provider._asked_at.clear()
    assert (await provider.inspect(BOX)).status == "running"
    assert (await provider.inspect(BOX)).status == "running"
    assert stand_in.asked == 2


async def test_one_that_was_cancelled_here_is_gone_whatever_the_queue_said_before() -> None:
    stand_in = StandInQueue()
    stand_in.submit("7", BOX.id)
    provider = SlurmProvider(stand_in.queue, Environment(), DisposableRules(), "mark")
    assert [it.id for it in await provider.list()] == [BOX.id]
    stand_in.queue.console.ask = stand_in.run  # type: ignore[method-assign, assignment]
    await provider.delete(BOX)
    assert await provider.list() == []
    assert (await provider.inspect(BOX)).status == "gone"


async def test_a_controller_that_is_away_ends_no_sandbox_and_is_not_asked_again_and_again() -> None:
    stand_in = StandInQueue()
    stand_in.is_away = True
    provider = SlurmProvider(stand_in.queue, Environment(), DisposableRules(), "mark")
    for _ in range(5):
        with pytest.raises(SandboxError, match="the queue of cluster said: slurm_load_jobs error: Unable to contact"):
            await provider.inspect(BOX)
    assert stand_in.asked == 1


async def test_a_job_of_that_number_with_another_name_is_not_ours() -> None:
    stand_in = StandInQueue()
    stand_in.submit("7", "sb-ffffffffffff")
    provider = SlurmProvider(stand_in.queue, Environment(), DisposableRules(), "mark")
    assert (await provider.inspect(BOX)).status == "gone"


async def test_a_cluster_whose_clock_is_wrong_ends_no_sandbox_too_early() -> None:
    stand_in = StandInQueue()
    stand_in.offset_s = -7200.0
    began = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() + stand_in.offset_s))
    stand_in.lines["7"] = SEPARATOR.join(("7", "RUNNING", "None", began, "N/A", "main", "n1", f"rsmcp-mark-{BOX.id}"))
    seen = await SlurmProvider(stand_in.queue, Environment(), DisposableRules(), "mark").inspect(BOX)
    assert abs(seen.started - time.time()) < 5


@pytest.mark.parametrize(("lived_s", "status"), [(600, "expired"), (30, "gone")])
async def test_one_in_which_a_command_was_killed_for_its_memory_still_ends_when_its_time_is_over(
    lived_s: float, status: str
) -> None:
    stand_in, begun = StandInQueue(), int(time.time()) - 1000
    times = [time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(it)) for it in (begun, begun + lived_s)]
    stand_in.lines["7"] = SEPARATOR.join(("7", "OUT_OF_MEMORY", "None", *times, "main", "n1", f"rsmcp-mark-{BOX.id}"))
    provider = SlurmProvider(stand_in.queue, Environment(), DisposableRules(), "mark")
    assert (await provider.inspect(replace(BOX, expires=begun + 600.0))).status == status


class StandInLine:
    """A program that has ended."""

    complaints = b""

    def __init__(self, status: int) -> None:
        self._status = status

    async def read(self) -> bytes:
        return b""

    async def ending(self) -> CommandEnding:
        return CommandEnding(self._status)

    def close(self) -> None: ...


WAYS = {
    "they are there": ("exec 'sh'", "squeue"),
    "by the table": ("module load slurm", "exec 'bash' '-c' 'module load slurm\nexport PATH='\\''/opt'\\''\nsqueue'"),
    "in a usual folder": ("/opt/slurm/bin", f"exec 'sh' '-c' '{USUAL_FOLDERS}; squeue'"),
    "by a login shell": ("-lc", "exec 'bash' '-lc' 'squeue'"),
    "not at all": ("nowhere", "squeue"),
}


@pytest.mark.parametrize(("needed", "asked"), WAYS.values(), ids=WAYS)
async def test_commands_of_slurm_are_looked_for_once_with_no_more_than_they_need(needed: str, asked: str) -> None:
    lines = []

    class StandInWay:
        what = "the connection to cluster"

        async def open(self, line: str) -> StandInLine:
            lines.append(line)
            return StandInLine(0 if needed in line else 127)

    environment = Environment(init=("module load slurm",), env={"PATH": "/opt", "TOKEN": "secret"})
    way = LoginWay(StandInWay(), environment)  # type: ignore[arg-type]
    for _ in range(2):
        await way.open("squeue")
    assert lines[-2:] == [asked, asked]
    assert len(lines) <= 6
    assert "secret" not in "".join(lines)


@pytest.mark.parametrize("name", ["holder", "relay"])
def test_what_runs_on_nodes_is_python_3_6(name: str) -> None:
    ast.parse(program(name), feature_version=(3, 6))
