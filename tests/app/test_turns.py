"""When a call of a client begins: all at once for one that is alone, a share for each where several are at work."""

from __future__ import annotations

import asyncio

from remote_sandbox_mcp.core.client import only_waits
from remote_sandbox_mcp.services.session import MOST_ALONE, MOST_AT_WORK, MOST_IN_ALL, Turns
from tests.support.server import until


class Client:
    """A client whose calls last until the test ends them."""

    def __init__(self, busy: set[Turns], *, only_waits: bool = False) -> None:
        self.only_waits = only_waits
        self._turns = Turns(MOST_AT_WORK, busy)
        self.begun: list[asyncio.Event] = []
        self.calls: list[asyncio.Task[None]] = []

    async def call(self, count: int) -> None:
        self.calls += [asyncio.ensure_future(self._call()) for _ in range(count)]
        await settled()

    async def _call(self) -> None:
        async with self._turns:
            if self.only_waits:
                only_waits.get()()
            end = asyncio.Event()
            self.begun.append(end)
            await end.wait()

    @property
    def at_work(self) -> int:
        return sum(not end.is_set() for end in self.begun)

    async def end(self, count: int) -> None:
        for end in [end for end in self.begun if not end.is_set()][:count]:
            end.set()
        await settled()


async def settled() -> None:
    """Let everything run that can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_client_that_is_alone_has_a_hundred_calls_at_work_at_once() -> None:
    client = Client(set())
    await client.call(MOST_ALONE + 5)
    assert client.at_work == MOST_ALONE
    await client.end(3)
    assert client.at_work == MOST_ALONE
    await client.end(MOST_ALONE)
    await client.end(MOST_ALONE)
    await asyncio.gather(*client.calls)


async def test_beside_another_client_each_has_its_share_and_waits_for_none_of_the_others() -> None:
    busy: set[Turns] = set()
    flood, other = Client(busy), Client(busy)
    await flood.call(MOST_ALONE + 50)
    await other.call(MOST_AT_WORK + 1)
    assert other.at_work == MOST_AT_WORK
    # The flood goes down to its share before another of its calls begins.
    await flood.end(MOST_ALONE - MOST_AT_WORK)
    assert (flood.at_work, len(flood.begun)) == (MOST_AT_WORK, MOST_ALONE)
    await flood.end(1)
    assert (flood.at_work, len(flood.begun)) == (MOST_AT_WORK, MOST_ALONE + 1)
    # When the other has ended, the rest begins.
    await other.end(MOST_AT_WORK)
    await other.end(1)
    await until(lambda: len(flood.begun) == MOST_ALONE + 50, "the rest to begin")
    await flood.end(MOST_ALONE)
    await asyncio.gather(*flood.calls, *other.calls)
    await until(lambda: not busy, "nobody to be at work")


async def test_a_flood_right_between_two_calls_of_another_client_is_not_let_in_whole() -> None:
    busy: set[Turns] = set()
    flood, other = Client(busy), Client(busy)
    await other.call(1)
    await other.end(1)
    await flood.call(MOST_AT_WORK + 1)
    assert flood.at_work == MOST_AT_WORK
    # The other makes no further call.
    await until(lambda: flood.at_work == MOST_AT_WORK + 1, "the rest to begin")
    await flood.end(MOST_AT_WORK + 1)
    await asyncio.gather(*flood.calls, *other.calls)


async def test_calls_that_only_wait_for_a_far_side_make_room_for_more_up_to_a_bound() -> None:
    busy: set[Turns] = set()
    waiting, other = Client(busy, only_waits=True), Client(busy)
    await other.call(1)
    await waiting.call(MOST_IN_ALL + 50)
    assert waiting.at_work == MOST_IN_ALL
    await waiting.end(1)
    assert (waiting.at_work, len(waiting.begun)) == (MOST_IN_ALL, MOST_IN_ALL + 1)
    # They are no reason to give others less.
    await other.call(MOST_ALONE)
    assert other.at_work == MOST_ALONE
    await waiting.end(MOST_IN_ALL)
    await waiting.end(MOST_IN_ALL)
    await other.end(MOST_ALONE + 1)
    await other.end(1)
    await asyncio.gather(*waiting.calls, *other.calls)
    await until(lambda: not busy, "nobody to be at work")


async def test_a_call_that_is_cancelled_takes_no_turn() -> None:
    turns = Turns(1, {Turns(1)})
    await turns.__aenter__()
    waiting, admitted = (asyncio.ensure_future(turns.__aenter__()) for _ in range(2))
    await settled()
    waiting.cancel()
    await settled()
    # Its turn comes now, and it is cancelled before it could begin.
    await turns.__aexit__()
    admitted.cancel()
    await settled()
    assert waiting.cancelled()
    assert admitted.cancelled()
    await asyncio.wait_for(turns.__aenter__(), 5)
