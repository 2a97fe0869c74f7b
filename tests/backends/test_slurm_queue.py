"""How often a cluster's queue is asked, and what is made of an answer that does not come."""

from __future__ import annotations

import asyncio

import pytest

from remote_sandbox_mcp.backends.command.console import Said
from remote_sandbox_mcp.backends.slurm.provider import SlurmProvider
from remote_sandbox_mcp.backends.slurm.queue import Queue
from remote_sandbox_mcp.core.command import Environment
from remote_sandbox_mcp.core.disposable import Disposable, Rules
from remote_sandbox_mcp.core.errors import SandboxError
from remote_sandbox_mcp.core.queue import SEPARATOR
from remote_sandbox_mcp.core.slurm import Cluster

BOX = Disposable(id="sb-0123456789ab", provider="slurm:cluster", key="7")


class StandInQueue:
    """Answers as squeue does, from memory, and counts the questions."""

    def __init__(self) -> None:
        self.lines: dict[str, str] = {}
        self.is_away = False
        self.asked = 0
        self.queue = Queue("cluster", Cluster(rate_s=600.0), None)  # type: ignore[arg-type]
        self.queue.console.run = self.run  # type: ignore[method-assign]

    def submit(self, number: str, disposable_id: str) -> None:
        fields = (number, "PENDING", "Priority", "N/A", "N/A", "main", "", f"rsmcp-mark-{disposable_id}")
        self.lines[number] = SEPARATOR.join(fields)

    async def run(self, script: str, *_: object, **__: object) -> Said:
        if "sacct" in script:
            return Said(1, "", b"Slurm accounting storage is disabled")
        self.asked += 1
        if self.is_away:
            return Said(1, "", b"slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
        return Said(0, "\n".join(self.lines.values()), b"")


async def test_all_who_ask_share_one_question() -> None:
    stand_in = StandInQueue()
    stand_in.submit("7", BOX.id)
    providers = [SlurmProvider(stand_in.queue, Environment(), Rules(), "mark") for _ in range(3)]
    await asyncio.gather(*(provider.list() for provider in providers))
    for provider in providers:
        seen = await provider.look(BOX)
        assert (seen.status, seen.reason) == ("pending", "Priority")
    assert stand_in.asked == 1


async def test_what_is_newer_than_the_last_answer_is_asked_for_before_it_is_said_to_be_gone() -> None:
    stand_in = StandInQueue()
    provider = SlurmProvider(stand_in.queue, Environment(), Rules(), "mark")
    assert await provider.list() == []
    stand_in.submit("7", BOX.id)
    assert (await provider.look(BOX)).status == "pending"
    assert stand_in.asked == 2


async def test_a_controller_that_is_away_ends_no_sandbox_and_is_not_asked_again_and_again() -> None:
    stand_in = StandInQueue()
    stand_in.is_away = True
    provider = SlurmProvider(stand_in.queue, Environment(), Rules(), "mark")
    for _ in range(5):
        with pytest.raises(SandboxError, match="the queue of cluster said: slurm_load_jobs error: Unable to contact"):
            await provider.look(BOX)
    assert stand_in.asked == 1


async def test_a_job_of_that_number_with_another_name_is_not_ours() -> None:
    stand_in = StandInQueue()
    stand_in.submit("7", "sb-ffffffffffff")
    provider = SlurmProvider(stand_in.queue, Environment(), Rules(), "mark")
    assert (await provider.look(BOX)).status == "gone"
