"""A resume of real jobs that a person asks for: after an interruption or the end, once; and none after a stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from remote_sandbox_mcp.backends.link.sandbox import OutpostSandbox
from remote_sandbox_mcp.config.schema import Settings
from remote_sandbox_mcp.core.errors import NotStarted, Unreachable
from remote_sandbox_mcp.core.jobs.watch import Status, Watch, WatchOrder
from remote_sandbox_mcp.services.fleet import Fleet, Member
from remote_sandbox_mcp.services.jobs.service import Begun, JobService, Wanted, Which
from remote_sandbox_mcp.services.jobs.watches import NO_RESUME_COMMAND
from tests.support.fakes.sandbox import FakeSandbox
from tests.support.jobs import FOREVER, in_thread, jobs_on, not_running
from tests.support.sshd import Fleet as Machines
from tests.support.sshd import Sshd

AGAIN = "echo again >> count; sleep 1000"
TRAIN = Which(session="train")


class Scene:
    """The service over one sandbox."""

    def __init__(self, sandbox: OutpostSandbox | FakeSandbox) -> None:
        async def opened() -> Any:
            return sandbox

        self.sandbox = sandbox
        member = Member(sandbox.description.name, lambda: sandbox.description, opened)
        self.service = JobService(Fleet([member]), Settings(), None)

    async def start(self, command: str = FOREVER, **watch: Any) -> Begun:
        order = WatchOrder(notify_local=False, **{"resume_command": AGAIN, **watch})
        return await self.service.start(Wanted(command=command, session="train", watch=order))

    async def resume(self, **more: Any) -> Begun:
        return await self.service.resume(TRAIN, asked_by="ann", **more)

    def watch(self, watch_id: int = 1) -> Watch:
        found = self.service.registry.watches.get(watch_id)
        assert found
        return found

    def events(self) -> list[tuple[str, str]]:
        told = self.service.registry.watches.events(limit=1000)
        return [(event.type.value, str(event.payload.get("asked_by", ""))) for event in told]

    async def tick(self) -> None:
        """A round of the watchdog that looks at everything, an hour from now."""
        supervisor = self.service.supervisor()
        supervisor._clock = supervisor._effects._clock = lambda: self.watch().updated + 3600
        await supervisor.tick()


@pytest.fixture(scope="module")
def user(fleet: Machines) -> Sshd:
    return fleet.machine("resumed")


@pytest.fixture
async def scene(user: Sshd) -> AsyncIterator[Scene]:
    async with jobs_on(user) as (_, sandbox):
        scene = Scene(sandbox)
        yield scene
        await scene.service.close()


async def killed(scene: Scene, user: Sshd, job_id: str) -> None:
    await in_thread(user, "tmux kill-session -t =train")
    await not_running(scene.sandbox.jobs, job_id)


async def test_an_interrupted_job_is_resumed_at_once_and_beyond_its_attempts(scene: Scene, user: Sshd) -> None:
    first = await scene.start(auto_resume=False, max_resume_attempts=0)
    await killed(scene, user, first.started.job_id)
    second = await scene.resume()
    assert (second.started.job_id, second.started.via) == (f"{first.started.job_id}-r1", "tmux")
    assert (second.sandbox, second.watch_id) == ("pipe", first.watch_id)
    assert (scene.watch().job_id, scene.watch().resume_attempts) == (second.started.job_id, 1)
    with pytest.raises(NotStarted, match=r"train on pipe still runs, for .*; to begin it again, stop it first"):
        await scene.resume()
    await killed(scene, user, second.started.job_id)
    third = await scene.resume()
    assert third.started.job_id == f"{first.started.job_id}-r2"
    assert scene.events() == [("resume_started", "ann")] * 2
    assert scene.watch().last_summary == "train on pipe was started again (attempt 2, asked for by ann)"


async def test_a_job_that_ended_is_resumed_and_watched_again(scene: Scene) -> None:
    first = await scene.start("exit 3")
    await not_running(scene.sandbox.jobs, first.started.job_id)
    await scene.tick()
    assert (scene.watch().status, scene.watch().last_exit_code) == (Status.COMPLETED, 3)
    second = await scene.resume()
    assert (scene.watch().status, scene.watch().last_state) == (Status.ACTIVE, "running")
    # A stop ends it, and a person may take that back.
    await scene.service.stop(TRAIN, grace_s=0)
    assert scene.watch().status is Status.COMPLETED
    assert (await scene.resume()).started.job_id == second.started.job_id.replace("-r1", "-r2")


async def test_however_many_ask_at_once_it_is_started_once(scene: Scene, user: Sshd) -> None:
    first = await scene.start(auto_resume=True, resume_delay_s=0, max_resume_attempts=3)
    await killed(scene, user, first.started.job_id)
    everyone = scene.resume(), scene.tick(), scene.resume(), scene.tick(), scene.resume()
    for answer in await asyncio.gather(*everyone, return_exceptions=True):
        if isinstance(answer, Begun):
            assert answer.started.job_id == f"{first.started.job_id}-r1"
        else:
            # Who is late finds it running.
            assert answer is None or "still runs" in str(answer)
    await in_thread(user, "until test -s count; do sleep 0.05; done")
    assert await in_thread(user, "cat count") == "again\n"
    assert scene.watch().resume_attempts == 1
    assert [kind for kind, _ in scene.events()].count("resume_started") == 1


@pytest.mark.parametrize("is_over", [True, False], ids=["over again", "still running"])
async def test_who_asks_late_gets_what_another_has_started(is_over: bool) -> None:
    fake = FakeSandbox(name="box")
    scene = Scene(fake)
    first = await scene.start()
    fake.jobs.end(first.started.job_id, 3)
    looked, may_go_on, look = asyncio.Event(), asyncio.Event(), fake.jobs.inspect

    async def slow(looks: Any) -> Any:
        seen = await look(looks)
        looked.set()
        await may_go_on.wait()
        return seen

    fake.jobs.inspect = slow  # type: ignore[method-assign]
    late = asyncio.ensure_future(scene.resume())
    await looked.wait()
    fake.jobs.inspect = look  # type: ignore[method-assign]
    second = await scene.resume()
    if is_over:
        fake.jobs.end(second.started.job_id)
    may_go_on.set()
    assert (await late).started.job_id == second.started.job_id
    assert len(fake.jobs.started) == 2
    assert scene.events() == [("resume_started", "ann")]
    await scene.service.close()


async def test_a_job_without_a_resume_command_is_given_one(scene: Scene, user: Sshd) -> None:
    begun = await scene.service.start(Wanted(command="exit 1", session="train"))
    await not_running(scene.sandbox.jobs, begun.started.job_id)
    with pytest.raises(NotStarted, match="train on pipe has no resume command: pass one") as refused:
        await scene.resume()
    assert refused.value.reason == NO_RESUME_COMMAND
    begun = await scene.resume(command=AGAIN)
    assert begun.watch_id == scene.watch().id
    assert scene.watch().policy.resume_command == AGAIN


async def test_another_resume_command_leaves_all_else_of_the_watch_as_it_was() -> None:
    fake = FakeSandbox(name="box")
    scene = Scene(fake)
    first = await scene.start(
        auto_resume=True, max_resume_attempts=7, interval_s=77, run_id="run-7", metadata_json='{"team": "a"}',
        checkpoint_path="ckpt.json", resume_plan_json='{"env": {"STEP": "7"}}',
    )  # fmt: skip
    fake.jobs.end(first.started.job_id, 3)
    before = scene.watch()
    begun = await scene.resume(command="other")
    after = scene.watch()
    assert (begun.watch_id, fake.jobs.started[-1].script, fake.jobs.started[-1].env) == (1, "other", {"STEP": "7"})
    assert after.policy == replace(before.policy, resume_command="other")
    assert (after.run_id, after.metadata, after.status) == ("run-7", {"team": "a"}, Status.ACTIVE)
    assert scene.service.registry.watches.get(2) is None

    fake.jobs.end(begun.started.job_id, 3)
    fake.jobs.refuse(NotStarted("a syntax error"))
    with pytest.raises(NotStarted, match="a syntax error"):
        await scene.resume(command="(")
    assert scene.watch().policy.resume_command == "other"
    await scene.service.close()


async def test_a_first_resume_command_that_is_refused_is_not_kept() -> None:
    fake = FakeSandbox(name="box")
    scene = Scene(fake)
    first = await scene.start(resume_command="")
    fake.jobs.end(first.started.job_id, 3)
    fake.jobs.refuse(NotStarted("a syntax error"))
    with pytest.raises(NotStarted, match="a syntax error"):
        await scene.resume(command="(")
    assert scene.watch().policy.resume_command == ""
    await scene.service.close()


async def test_a_refused_attempt_leaves_the_watch_as_it_was(scene: Scene) -> None:
    first = await scene.start("exit 3", resume_plan_json='{"cwd": "/nowhere"}')
    await not_running(scene.sandbox.jobs, first.started.job_id)
    await scene.tick()
    with pytest.raises(NotStarted, match=r"train on pipe was not started again: .*/nowhere"):
        await scene.resume()
    after = scene.watch()
    assert (after.status, after.last_state, after.resume_attempts) == (Status.COMPLETED, "failed", 0)
    assert scene.events() == [("completed", ""), ("resume_failed", "ann")]


async def test_a_session_of_a_person_that_was_stopped_is_not_resumed(scene: Scene, user: Sshd) -> None:
    await in_thread(user, "tmux new-session -d -s train 'while echo begun >> hand.log; do sleep 0.1; done'")
    order = WatchOrder(notify_local=False, auto_resume=True, resume_command=AGAIN, resume_delay_s=0)
    log_file = str(user.home / "hand.log")
    watch, _ = await scene.service.watching.begin(Which(session="train", log_file=log_file), order)
    await scene.service.stop(TRAIN, grace_s=0)
    assert scene.watch(watch.id).status in (Status.COMPLETED, Status.CANCELLED)
    await scene.tick()
    await scene.tick()
    assert ("resume_started", "") not in scene.events()
    assert await in_thread(user, "cat count") == ""


async def test_a_stop_ends_a_watch_that_was_begun_after_the_job() -> None:
    fake = FakeSandbox(name="box")
    scene = Scene(fake)
    await scene.service.start(Wanted(command=FOREVER, session="train"))
    watch, _ = await scene.service.watching.begin(TRAIN, WatchOrder(notify_local=False, resume_command=AGAIN))
    await scene.service.start(Wanted(command=FOREVER, session="other", watch=WatchOrder(notify_local=False)))
    await scene.service.stop(TRAIN)
    assert (scene.watch(watch.id).status, scene.watch(watch.id).last_exit_code) == (Status.COMPLETED, 143)
    assert scene.watch(watch.id + 1).status is Status.ACTIVE
    await scene.service.close()


async def test_a_stop_by_the_watch_of_an_earlier_job_leaves_the_later_one_watched() -> None:
    fake = FakeSandbox(name="box")
    scene = Scene(fake)
    first = await scene.start()
    fake.jobs.end(first.started.job_id)
    second = await scene.start()
    await scene.service.stop(Which(watch_id=first.watch_id))
    assert scene.watch(second.watch_id).status is Status.ACTIVE
    await scene.service.close()


async def test_what_the_machine_does_not_answer_is_left_to_the_watchdog() -> None:
    fake = FakeSandbox(name="box")
    scene = Scene(fake)
    await scene.start()
    fake.jobs.vanish(fake.jobs.started[-1].job_id)
    fake.jobs.refuse(Unreachable("box is unplugged"))
    with pytest.raises(Unreachable, match="could not be started again yet: box is unplugged; the watchdog tries again"):
        await scene.resume()
    fake.jobs.refuse(None)
    await scene.tick()
    assert scene.events() == [("resume_started", "ann")]
    fake.jobs.forget(fake.jobs.started[-1].job_id)
    with pytest.raises(NotStarted, match="is not known there, so it may run or not"):
        await scene.resume()
    with pytest.raises(NotStarted, match="an array is resumed as a whole"):
        await scene.service.resume(Which(session="train[3]"), asked_by="ann")
    await scene.service.close()
