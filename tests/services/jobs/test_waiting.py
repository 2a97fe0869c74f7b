"""The waiting list over machines in memory: placed, kept in order, started once, also after deaths and cuts."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from remote_sandbox_mcp.config.schema import Settings
from remote_sandbox_mcp.core.errors import BadArgument, NotStarted, Unreachable
from remote_sandbox_mcp.core.jobs.cards import CardRequest
from remote_sandbox_mcp.core.jobs.job import JobWait, NoCards
from remote_sandbox_mcp.core.jobs.watch import WatchOrder
from remote_sandbox_mcp.core.task import outcome_of
from remote_sandbox_mcp.services.fleet import Fleet, Member
from remote_sandbox_mcp.services.jobs.service import JobService, Wanted, Which
from remote_sandbox_mcp.services.jobs.values import Begun
from tests.support.fakes.jobs import FakeCard
from tests.support.fakes.sandbox import FakeSandbox

ANYWHERE = ("any",)


def gpu_machine(name: str, cards: int, **fields: Any) -> FakeSandbox:
    sandbox = FakeSandbox(name=name)
    sandbox.jobs.cards = [FakeCard(f"GPU-{name}-{number}", **fields) for number in range(cards)]
    return sandbox


@dataclass
class Lab:
    """Machines that outlive each service, and the service of now."""

    machines: dict[str, FakeSandbox]
    jobs: JobService = field(init=False)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A new process begins, with nothing but the state folder."""

        def member(fake: FakeSandbox) -> Member:
            async def opener() -> Any:
                await fake.open()
                return fake

            return Member(fake.description.name, lambda: fake.description, opener)

        self.jobs = JobService(Fleet(map(member, self.machines.values())), Settings(), None)

    async def start(self, session: str, cards: int = 1, *places: str, **fields: Any) -> Begun:
        request = CardRequest(cards, fields.pop("memory_mb", 0)) if cards else None
        wanted = Wanted(command=f"run {session}", session=session, places=places or ANYWHERE, cards=request, **fields)
        return await self.jobs.start(wanted, nobody)

    async def look(self) -> float:
        """A round of the watchdog, however recent the last one was."""
        self.jobs.waiting._sights.clear()
        self.jobs.waiting._due = 0.0
        return await self.jobs.waiting.tick("")

    async def state(self, session: str) -> str:
        return outcome_of(await self.jobs.check(Which(session=session))).state.value

    def started(self, name: str) -> list[str]:
        return [order.session for order in self.machines[name].jobs.started]

    def end(self, name: str, session: str, exit_code: int = 0) -> None:
        jobs = self.machines[name].jobs
        jobs.end(next(order.job_id for order in jobs.started if order.session == session), exit_code)


async def nobody() -> str:
    return ""


@asynccontextmanager
async def lab_of(*machines: FakeSandbox) -> AsyncIterator[Lab]:
    lab = Lab({machine.description.name: machine for machine in machines})
    try:
        yield lab
    finally:
        await lab.jobs.close()


async def test_a_job_gets_free_cards_of_the_best_machine_for_itself() -> None:
    async with lab_of(gpu_machine("gpu1", 2), gpu_machine("gpu2", 4), gpu_machine("cpu", 0)) as lab:
        begun = await lab.start("train", 2)
        assert (begun.sandbox, begun.pending) == ("gpu2", None)
        assert begun.started.cards == ("GPU-gpu2-0", "GPU-gpu2-1")
        assert lab.machines["gpu2"].jobs.started[0].cards == CardRequest(2)
        assert await lab.state("train") == "running"
        assert (await lab.start("second", 2, "gpu1", "cpu")).sandbox == "gpu1"


async def test_without_gpus_the_most_idle_machine_is_taken_and_nothing_waits() -> None:
    async with lab_of(FakeSandbox(name="silent"), gpu_machine("cpu", 0)) as lab:
        lab.machines["silent"].fail(Unreachable("unable to reach silent: no answer"))
        assert (await lab.start("build", 0)).sandbox == "cpu"
        lab.machines["cpu"].fail(Unreachable("unable to reach cpu: no answer"))
        with pytest.raises(NoCards, match="no machine has what test asks for"):
            await lab.start("test", 0)
        assert not lab.jobs.registry.waiting.open()


async def test_a_job_that_finds_no_place_waits_says_why_and_starts_when_there_is_one() -> None:
    async with lab_of(gpu_machine("gpu1", 2)) as lab:
        lab.machines["gpu1"].jobs.cards[0].used_by = "bob"  # type: ignore[index]
        await lab.start("first")
        begun = await lab.start("train")
        assert begun.pending
        assert begun.pending.queue
        assert begun.pending.queue.reason == "gpu1: 2 of 2 used by bob, me"
        assert begun.sandbox == "any"
        assert await lab.state("train") == "pending"
        listed = {each.session: (each.sandbox, each.state) for each in await lab.jobs.list()}
        assert listed == {"first": ("gpu1", "running"), "train": ("any", "pending")}
        assert await lab.look() < math.inf
        assert lab.started("gpu1") == ["first"]
        lab.end("gpu1", "first")
        assert await lab.look() == math.inf
        assert lab.started("gpu1") == ["first", "train"]
        assert await lab.state("train") == "running"
        assert not [*lab.jobs.registry.waiting.database.file.with_name("waiting").glob("*.json")]


async def test_one_that_does_not_want_to_wait_is_refused_with_the_reasons() -> None:
    async with lab_of(gpu_machine("gpu1", 1)) as lab:
        await lab.start("first")
        with pytest.raises(NoCards, match="gpu1: 1 of 1 used by me") as refused:
            await lab.start("train", waits=False)
        assert isinstance(refused.value, NotStarted)
        assert [each.session for each in await lab.jobs.list()] == ["first"]


async def test_a_wait_goes_on_until_the_job_has_started_and_ended() -> None:
    async with lab_of(gpu_machine("gpu1", 1)) as lab:
        await lab.start("first")
        await lab.start("train")
        timed_out = await lab.jobs.wait(Which(session="train"), JobWait(seconds=0))
        assert (timed_out.why, timed_out.seen.state.value) == ("timeout", "pending")
        waiting = asyncio.ensure_future(lab.jobs.wait(Which(session="train", sandbox="any"), JobWait(seconds=60)))
        lab.end("gpu1", "first")
        await lab.look()
        lab.end("gpu1", "train", 3)
        waited = await waiting
        assert (waited.why, waited.seen.exit_code) == ("ended", 3)


async def test_a_stopped_job_leaves_the_list_and_never_starts() -> None:
    async with lab_of(gpu_machine("gpu1", 1)) as lab:
        await lab.start("first")
        await lab.start("train")
        seen = await lab.jobs.stop(Which(session="train"))
        assert outcome_of(seen).state.value == "stopped"
        lab.end("gpu1", "first")
        assert await lab.look() == math.inf
        assert lab.started("gpu1") == ["first"]
        assert await lab.state("train") == "stopped"
        assert (await lab.jobs.wait(Which(session="train"), JobWait(seconds=9))).why == "ended"
        # The name may be used again, and then the new job is meant.
        await lab.start("train")
        assert await lab.state("train") == "running"


async def test_those_who_wait_start_in_order_and_one_may_be_put_ahead() -> None:
    async with lab_of(gpu_machine("gpu1", 1)) as lab:
        await lab.start("first")
        for name, priority in (("a", 0), ("b", 0), ("c", 7), ("d", 0)):
            await lab.start(name, priority=priority)
        assert await lab.jobs.put_ahead(Which(session="d")) == ("d", 8)
        seen = await lab.jobs.check(Which(session="b"))
        assert seen.queue
        assert seen.queue.reason.startswith("3 jobs ahead of it. ")
        for ended in ("first", "d", "c", "a", "b"):
            lab.end("gpu1", ended)
            await lab.look()
        assert lab.started("gpu1") == ["first", "d", "c", "a", "b"]
        with pytest.raises(NotStarted, match="b does not wait"):
            await lab.jobs.put_ahead(Which(session="b"))


async def test_a_new_job_does_not_pass_those_who_wait() -> None:
    async with lab_of(gpu_machine("gpu1", 2)) as lab:
        await lab.start("first")
        await lab.start("large", 2)
        begun = await lab.start("small")
        assert begun.pending
        assert begun.pending.queue
        assert "kept for large" in begun.pending.queue.reason
        lab.end("gpu1", "first")
        await lab.look()
        assert lab.started("gpu1") == ["first", "large"]


async def test_one_probe_per_machine_however_many_wait() -> None:
    async with lab_of(gpu_machine("gpu1", 1), gpu_machine("gpu2", 1)) as lab:
        for number in range(12):
            await lab.start(f"job{number}")
        before = [machine.looks for machine in lab.machines.values()]
        await lab.look()
        assert [machine.looks for machine in lab.machines.values()] == [count + 1 for count in before]
        # Nothing has changed, and it is not time to look again.
        for _ in range(5):
            await lab.jobs.waiting.tick("")
        assert [machine.looks for machine in lab.machines.values()] == [count + 1 for count in before]


async def test_the_end_of_a_job_that_anybody_has_noted_makes_the_list_look_again() -> None:
    async with lab_of(gpu_machine("gpu1", 1)) as lab:
        await lab.start("first")
        await lab.start("train")
        await lab.look()
        lab.end("gpu1", "first")
        await lab.jobs.check(Which(session="first"))
        await lab.jobs.waiting.tick("")
        assert lab.started("gpu1") == ["first", "train"]


async def test_a_machine_that_has_less_than_it_seemed_is_passed_over() -> None:
    async with lab_of(gpu_machine("gpu1", 4), gpu_machine("gpu2", 2)) as lab:
        lab.machines["gpu1"].jobs.refuse(NoCards("0 of 4 GPUs are free, not 1"))
        assert (await lab.start("train")).sandbox == "gpu2"
        begun = await lab.start("other", 2)
        assert begun.pending
        assert begun.pending.queue
        assert begun.pending.queue.reason == "gpu1: 0 of 4 GPUs are free, not 1. gpu2: 1 of 2 used by me; 1 free"


async def test_another_process_starts_it_after_a_restart() -> None:
    async with lab_of(gpu_machine("gpu1", 1)) as lab:
        await lab.start("first")
        order = WatchOrder(resume_command="again --token 0123456789abcdef", auto_resume=True)
        await lab.start("train", watch=order, cwd="/data", log_file="train.log", run_for_s=3600.0)
        await lab.jobs.close()
        lab.begin()
        lab.end("gpu1", "first")
        await lab.look()
        started = lab.machines["gpu1"].jobs.started[-1]
        assert (started.session, started.script, started.cwd) == ("train", "run train", "/data")
        assert (started.log_file, started.cards, started.run_for_s) == ("train.log", CardRequest(1), 3600.0)
        (watch,) = await lab.jobs.watching.list()
        assert (watch.sandbox, watch.job_id, watch.policy.auto_resume) == ("gpu1", started.job_id, True)


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_after_lost_contact_only_the_same_machine_is_asked_with_the_same_id(cut: str) -> None:
    async with lab_of(gpu_machine("gpu1", 2), gpu_machine("gpu2", 1)) as lab:
        gpu1, gpu2 = lab.machines["gpu1"], lab.machines["gpu2"]
        gpu1.jobs.cut = [cut]
        begun = await lab.start("train")
        assert begun.pending
        assert begun.pending.queue
        assert "contact was lost while it was being started" in begun.pending.queue.reason
        gpu1.fail(Unreachable("unable to reach gpu1: no answer"))
        for _ in range(3):
            await lab.look()
        assert gpu2.jobs.attempts == []
        assert await lab.state("train") == "pending"
        gpu1.fail(None)
        await lab.look()
        assert (lab.started("gpu1"), lab.started("gpu2")) == (["train"], [])
        assert {*gpu1.jobs.attempts} == {begun.started.job_id}
        assert await lab.state("train") == "running"
        assert await lab.look() == math.inf


async def test_after_lost_contact_another_machine_is_taken_once_the_first_one_has_said_no() -> None:
    async with lab_of(gpu_machine("gpu1", 2), gpu_machine("gpu2", 1)) as lab:
        gpu1 = lab.machines["gpu1"]
        gpu1.jobs.cut = ["before"]
        await lab.start("train")
        for card in gpu1.jobs.cards or ():
            card.used_by = "bob"
        await lab.look()
        assert (lab.started("gpu1"), lab.started("gpu2")) == ([], ["train"])


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_one_whose_start_was_begun_is_stopped_where_it_may_run(cut: str) -> None:
    async with lab_of(gpu_machine("gpu1", 1)) as lab:
        lab.machines["gpu1"].jobs.cut = [cut]
        await lab.start("train")
        assert outcome_of(await lab.jobs.stop(Which(session="train"))).state.value == "stopped"
        assert lab.jobs.registry.waiting.open() == ()
        assert len(lab.machines["gpu1"].jobs.free()) == 1


class Died(BaseException):
    """The process was killed."""


def dies_in(step: str) -> Callable[[Lab], None]:
    """The process is killed before it does this, or after."""

    when, _, name = step.partition(" ")

    def arrange(lab: Lab) -> None:
        rows, sandbox = lab.jobs.registry.waiting, lab.machines["gpu1"]
        target: Any = sandbox.jobs if name == "start" else lab.jobs.registry.records if name == "add" else rows
        real = getattr(target, name)

        def sync(*args: Any, **fields: Any) -> Any:
            if when == "after":
                real(*args, **fields)
            raise Died

        async def asynchronous(*args: Any, **fields: Any) -> Any:
            if when == "after":
                await real(*args, **fields)
            raise Died

        setattr(target, name, asynchronous if name == "start" else sync)

        def undo() -> None:
            setattr(target, name, real)

        lab.__dict__["undo"] = undo

    return arrange


STEPS = [f"{when} {name}" for name in ("try_on", "add", "start", "remove") for when in ("before", "after")]


@pytest.mark.parametrize("step", STEPS)
async def test_a_process_that_dies_at_any_step_leaves_a_job_that_starts_exactly_once(step: str) -> None:
    async with lab_of(gpu_machine("gpu1", 2), gpu_machine("gpu2", 1)) as lab:
        dies_in(step)(lab)
        with pytest.raises(Died):
            await lab.start("train", watch=WatchOrder())
        await lab.jobs.close()
        lab.__dict__["undo"]()
        lab.begin()
        for _ in range(2):
            await lab.look()
        assert lab.started("gpu1") + lab.started("gpu2") == ["train"]
        assert await lab.state("train") == "running"
        assert len(await lab.jobs.watching.list("active")) == 1
        assert await lab.look() == math.inf


async def test_processes_that_start_at_once_give_each_card_to_one_job() -> None:
    async with lab_of(gpu_machine("gpu1", 3)) as lab:
        others = [Lab(lab.machines) for _ in range(3)]
        begun = await asyncio.gather(*(other.start(f"job{n}") for n, other in enumerate([lab, *others, *others])))
        assert sorted(len(each.started.cards) for each in begun) == [0, 0, 0, 0, 1, 1, 1]
        assert len(lab.started("gpu1")) == 3
        for other in others:
            await other.jobs.close()


# After others


async def test_a_job_starts_after_the_good_end_of_another_and_gpus_do_not_wait_for_it() -> None:
    async with lab_of(gpu_machine("gpu1", 2)) as lab:
        await lab.start("prepare", 0)
        begun = await lab.start("train", 2, after=("prepare",))
        assert begun.pending
        assert begun.pending.queue
        assert begun.pending.queue.reason == "it starts after prepare has ended"
        # It has no place in the line while it cannot start.
        assert not (await lab.start("other")).pending
        lab.end("gpu1", "other")
        await lab.look()
        assert lab.started("gpu1") == ["prepare", "other"]
        lab.end("gpu1", "prepare")
        await lab.look()
        assert lab.started("gpu1") == ["prepare", "other", "train"]


async def test_one_without_gpus_may_wait_for_another_as_well_and_a_chain_starts_in_order() -> None:
    async with lab_of(gpu_machine("gpu1", 1)) as lab:
        await lab.start("a", 0, "gpu1")
        await lab.start("b", 0, "gpu1", after=("a",))
        await lab.start("c", 0, "gpu1", after=("b", "a"))
        for name in "abc":
            assert lab.started("gpu1")[-1] == name
            lab.end("gpu1", name)
            await lab.look()


async def test_a_job_ends_with_the_reason_when_the_other_one_failed_and_so_do_those_behind_it() -> None:
    async with lab_of(gpu_machine("gpu1", 1)) as lab:
        await lab.start("prepare", 0)
        await lab.start("train", after=("prepare",), watch=WatchOrder(notify_local=False))
        await lab.start("report", 0, after=("train",))
        lab.end("gpu1", "prepare", 3)
        await lab.look()
        await lab.look()
        seen = await lab.jobs.check(Which(session="train"))
        assert outcome_of(seen).text(0.0) == (
            "stopped: train was not started: it was to start after prepare, which failed with exit code 3"
        )
        assert "which was stopped" in outcome_of(await lab.jobs.check(Which(session="report"))).reason
        assert lab.started("gpu1") == ["prepare"]
        (event,) = await lab.jobs.watching.events()
        assert (event.type.value, event.payload["outcome"]) == ("completed", "stopped")
        assert await lab.look() == math.inf


async def test_a_start_after_one_that_failed_already_is_refused_at_once() -> None:
    async with lab_of(gpu_machine("gpu1", 1)) as lab:
        await lab.start("prepare", 0)
        lab.end("gpu1", "prepare", 1)
        with pytest.raises(NotStarted, match="which failed with exit code 1"):
            await lab.start("train", after=("prepare",))
        assert [each.session for each in await lab.jobs.list()] == ["prepare"]


async def test_mistakes_are_refused_before_anything_is_written() -> None:
    async with lab_of(gpu_machine("gpu1", 1)) as lab:
        with pytest.raises(BadArgument, match="there is no job 'nothing'"):
            await lab.start("train", after=("nothing",))
        with pytest.raises(BadArgument, match="auto_resume needs"):
            await lab.start("train", watch=WatchOrder(auto_resume=True))
        assert not lab.jobs.registry.exists() or not lab.jobs.registry.waiting.open()
        await lab.start("first")
        await lab.start("train")
        with pytest.raises(NotStarted, match="a job named train waits already"):
            await lab.start("train")


async def test_what_cannot_be_typed_into_or_shown_yet_says_that_it_waits() -> None:
    async with lab_of(gpu_machine("gpu1", 1)) as lab:
        await lab.start("first")
        await lab.start("train")
        for ask in (lab.jobs.send(Which(session="train"), text="x"), lab.jobs.find(Which(session="train"))):
            with pytest.raises(NotStarted, match="train is pending: gpu1: 1 of 1 used by me; it has not started"):
                await ask
