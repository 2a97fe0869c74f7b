"""Work side by side: the first failure ends the rest, a cancel ends all, and nobody is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from remote_sandbox_mcp.core.errors import FileProblem
from remote_sandbox_mcp.services.sync.streams import Together


class Workers:
    """Tasks that wait for ever unless told otherwise; who was ended is known."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.go = asyncio.Event()

    async def wait(self, name: str) -> None:
        self.begun.append(name)
        try:
            await self.go.wait()
        finally:
            self.ended.append(name)

    async def fail(self, name: str) -> None:
        await asyncio.sleep(0)
        raise FileProblem(name)

    async def linger(self, name: str, steps: int = 5) -> None:
        """Takes its time to end."""
        try:
            await self.wait(name)
        finally:
            for _ in range(steps):
                await asyncio.sleep(0)
            self.ended.append(f"{name} at last")

    async def fail_when_cancelled(self, name: str) -> None:
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            raise FileProblem(name) from None


@pytest.fixture
async def workers() -> Workers:
    return Workers()


def others() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()}


async def begun(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not come to that")


async def test_all_are_waited_for(workers: Workers) -> None:
    before = others()
    async with Together() as tasks:
        for name in "abc":
            tasks.start(workers.linger(name))
        await begun(lambda: len(workers.begun) == 3)
        workers.go.set()
        assert workers.ended == []
    assert sorted(workers.ended) == ["a", "a at last", "b", "b at last", "c", "c at last"]
    assert others() == before


async def test_nothing_to_do_is_done(workers: Workers) -> None:
    async with Together() as tasks:
        tasks.check()


async def test_work_may_start_more_work(workers: Workers) -> None:
    async with Together() as tasks:

        async def first() -> None:
            tasks.start(workers.wait("second"))
            await asyncio.sleep(0)

        tasks.start(first())
        await begun(lambda: workers.begun == ["second"])
        workers.go.set()
    assert workers.ended == ["second"]


async def test_the_first_failure_ends_the_others_and_is_raised(workers: Workers) -> None:
    before = others()

    async def work() -> None:
        async with Together() as tasks:
            tasks.start(workers.linger("a"))
            tasks.start(workers.fail("first"))
            tasks.start(workers.fail_when_cancelled("second"))

    with pytest.raises(FileProblem, match="first"):
        await work()
    assert workers.ended == ["a", "a at last"]
    assert others() == before


async def test_a_failure_can_be_asked_for(workers: Workers) -> None:
    before = others()

    async def work() -> None:
        async with Together() as tasks:
            tasks.start(workers.wait("a"))
            tasks.start(workers.fail("first"))
            await begun(lambda: workers.ended == ["a"])
            tasks.check()
            raise AssertionError("not reached")

    with pytest.raises(FileProblem, match="first"):
        await work()
    assert others() == before


async def test_a_failure_in_the_middle_ends_all(workers: Workers) -> None:
    before = others()

    async def work() -> None:
        async with Together() as tasks:
            tasks.start(workers.linger("a"))
            tasks.start(workers.wait("b"))
            await begun(lambda: len(workers.begun) == 2)
            raise KeyError("ours")

    with pytest.raises(KeyError, match="ours"):
        await work()
    assert sorted(workers.ended) == ["a", "a at last", "b"]
    assert others() == before


async def cancelled(work: asyncio.Task[None], times: int = 1) -> None:
    for _ in range(times):
        work.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await work


@pytest.mark.parametrize("times", [1, 3], ids=["once", "again and again"])
@pytest.mark.parametrize("leaving", [False, True], ids=["in the middle", "while it waits"])
async def test_a_cancel_ends_all_and_waits_for_them(workers: Workers, leaving: bool, times: int) -> None:
    before = others()

    async def work() -> None:
        async with Together() as tasks:
            tasks.start(workers.linger("a"))
            tasks.start(workers.wait("b"))
            if not leaving:
                await workers.go.wait()

    task = asyncio.create_task(work())
    await begun(lambda: len(workers.begun) == 2)
    await cancelled(task, times)
    # Who is cancelled again while it takes its time takes no more.
    assert sorted(workers.ended) == (["a", "a at last", "b"] if times == 1 else ["a", "b"])
    assert others() == before


@pytest.mark.parametrize("leaving", [False, True], ids=["in the middle", "while it waits"])
async def test_a_cancel_is_not_hidden_by_who_fails_because_of_it(workers: Workers, leaving: bool) -> None:
    before = others()

    async def work() -> None:
        async with Together() as tasks:
            tasks.start(workers.fail_when_cancelled("late"))
            tasks.start(workers.wait("b"))
            if not leaving:
                await workers.go.wait()

    task = asyncio.create_task(work())
    await begun(lambda: workers.begun == ["b"])
    await cancelled(task)
    assert others() == before


async def test_one_within_another_ends_with_it(workers: Workers) -> None:
    before = others()

    async def inner() -> None:
        async with Together() as tasks:
            tasks.start(workers.linger("deep"))
            tasks.start(workers.wait("er"))

    async def outer() -> None:
        async with Together() as tasks:
            tasks.start(inner())
            await begun(lambda: len(workers.begun) == 2)
            tasks.start(workers.fail("outer"))

    with pytest.raises(FileProblem, match="outer"):
        await outer()
    assert sorted(workers.ended) == ["deep", "deep at last", "er"]
    assert others() == before
