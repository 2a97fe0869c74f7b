"""The pool of lanes: what lives is used again, what is dead is not, and nothing is forgotten open."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest

from remote_sandbox_mcp.core.errors import SandboxError, Unreachable, Unsupported
from remote_sandbox_mcp.core.sync.transfer import Reply
from remote_sandbox_mcp.services.sync import lanes as lanes_module
from remote_sandbox_mcp.services.sync.lanes import Lanes


class StandIn:
    """A lane that does nothing, and notes what it is asked."""

    name = "stand-in"
    squeezers = ()
    moved = 0
    knows_pieces = False
    follows = False

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_alive = True
        self.asked: list[str] = []
        self.answer: Callable[[asyncio.Future[Reply]], None] = lambda done: done.set_result(Reply())

    def begin(self, order: Any, raw: bytes = b"", **more: Any) -> asyncio.Future[Reply]:
        self.asked.append(order["verb"])
        done: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.answer(done)
        return done

    def pass_on(self, kind: int, number: int, body: bytes) -> None:
        raise AssertionError("nobody sends here")

    async def room(self) -> None:
        raise AssertionError("nobody sends here")

    async def close(self) -> None:
        self.is_alive = False


class Opener:
    """Opens lanes, up to `most`; then it refuses, in the way it is told."""

    def __init__(self, most: int = 100, refusal: Exception | None = None) -> None:
        self.most = most
        self.refusal = refusal or Unreachable("no more")
        self.opened: list[StandIn] = []
        self.answer: Callable[[asyncio.Future[Reply]], None] | None = None
        # Is given a future for each lane on its way, which then waits for it.
        self.delay: Callable[[asyncio.Future[None]], None] = lambda done: done.set_result(None)

    async def __call__(self) -> StandIn:
        if len(self.opened) >= self.most:
            raise self.refusal
        lane = StandIn(len(self.opened))
        lane.answer = self.answer or lane.answer
        self.opened.append(lane)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.delay(done)
        try:
            await done
        except BaseException:
            await lane.close()
            raise
        return lane

    @property
    def living(self) -> int:
        return sum(lane.is_alive for lane in self.opened)


@pytest.fixture
async def opener() -> Opener:
    return Opener()


async def turns(condition: Callable[[], bool]) -> None:
    """Wait until it is so; what is due at once comes within a few turns of the loop."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not come to that")


async def test_a_lane_that_lives_is_used_again(opener: Opener) -> None:
    lanes = Lanes("x", opener, 8)
    first = await lanes.take()
    lanes.give_back(first)
    assert await lanes.take() is first
    assert len(opener.opened) == 1
    # Asked for its speed when it was new, and told to let go when it was given back.
    assert opener.opened[0].asked == ["rest", "rest"]
    await lanes.close()


async def test_a_lane_belongs_to_one_at_a_time(opener: Opener) -> None:
    lanes = Lanes("x", opener, 8)
    first, second = await lanes.take(), await lanes.take()
    assert first is not second
    lanes.give_back(first)
    lanes.give_back(second)
    assert {id(await lanes.take()), id(await lanes.take())} == {id(first), id(second)}
    assert len(opener.opened) == 2
    await lanes.close()


async def test_a_dead_lane_is_dropped(opener: Opener) -> None:
    lanes = Lanes("x", opener, 8)
    taken = [await lanes.take() for _ in range(3)]
    for lane in taken:
        lanes.give_back(lane)
    opener.opened[0].is_alive = opener.opened[2].is_alive = False
    assert await lanes.take() is opener.opened[1]
    assert await lanes.take() is opener.opened[3]
    await lanes.close()


async def test_a_lane_that_died_in_use_is_not_kept(opener: Opener) -> None:
    lanes = Lanes("x", opener, 8)
    first = await lanes.take()
    await first.close()
    lanes.give_back(first)
    assert opener.opened[0].asked == ["rest"]
    assert await lanes.take() is not first


async def test_the_quickest_answer_counts(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = Lanes("x", opener, 8)
    assert lanes.round_trip_s == float("inf")
    clock = iter([10.0, 10.5, 20.0, 20.1, 30.0, 30.9])
    monkeypatch.setattr("remote_sandbox_mcp.services.sync.lanes.time.perf_counter", lambda: next(clock))
    for expected in (0.5, 0.1, 0.1):
        await lanes.take()
        await turns(functools.partial(lambda wanted: lanes.round_trip_s == pytest.approx(wanted), expected))


async def test_what_cannot_be_opened_is_told() -> None:
    lanes = Lanes("x", Opener(0, Unsupported("not here")), 8)
    with pytest.raises(Unsupported, match="not here"):
        await lanes.take()


# How many may be opened in all, how many are idle, how many are wanted; how many there are.
MORE = {
    "all": (8, 0, 4, 4),
    "none": (1, 0, 4, 1),
    "some": (3, 0, 4, 3),
    "those that are idle": (3, 3, 4, 3),
    "nothing wanted": (8, 0, 0, 0),
}


@pytest.mark.parametrize(("most", "idle", "wanted", "found"), MORE.values(), ids=MORE)
@pytest.mark.parametrize("refusal", [Unreachable("full"), Unsupported("full")], ids=["unreachable", "unsupported"])
async def test_fewer_are_given_where_no_more_are_to_be_had(
    most: int, idle: int, wanted: int, found: int, refusal: SandboxError
) -> None:
    opener = Opener(most, refusal)
    lanes = Lanes("x", opener, 8)
    for lane in [await lanes.take() for _ in range(idle)]:
        lanes.give_back(lane)
    taken = await lanes.take_more(wanted)
    assert (len(taken), len({id(lane) for lane in taken})) == (found, found)
    assert all(lane.is_alive for lane in taken)
    await lanes.close()


async def test_a_defect_is_raised_and_the_others_are_kept() -> None:
    opener = Opener(2, ZeroDivisionError("a defect"))
    lanes = Lanes("x", opener, 8)
    with pytest.raises(ZeroDivisionError):
        await lanes.take_more(4)
    assert opener.living == 2
    assert {id(await lanes.take()), id(await lanes.take())} == set(map(id, opener.opened))
    await lanes.close()


async def test_the_measured_round_trip_is_not_waited_for(opener: Opener) -> None:
    waiting: list[asyncio.Future[Reply]] = []
    opener.answer = waiting.append
    lanes = Lanes("x", opener, 8)
    await lanes.take()
    assert (opener.opened[0].asked, lanes.round_trip_s) == (["rest"], float("inf"))
    waiting[0].set_result(Reply())
    await turns(lambda: lanes.round_trip_s < 60)


@pytest.mark.parametrize("count", [1, 3], ids=["one", "more"])
async def test_who_is_cancelled_leaves_no_lane_open(opener: Opener, count: int) -> None:
    waiting: list[asyncio.Future[None]] = []
    opener.delay = waiting.append
    lanes = Lanes("x", opener, 8)
    taking = asyncio.ensure_future(lanes.take_more(count))
    await turns(lambda: len(waiting) == count)
    # One has been answered by then; it is not lost.
    waiting[0].set_result(None)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    taking.cancel()
    done = (await asyncio.gather(taking, return_exceptions=True))[0]
    if isinstance(done, list):
        # With a single one there was nothing left to cancel.
        assert count == 1
        lanes.give_back(done[0])
    assert opener.living == 1
    await lanes.close()
    assert opener.living == 0


async def test_lanes_that_are_opened_ahead_are_waited_for_and_never_more_than_wanted(opener: Opener) -> None:
    waiting: list[asyncio.Future[None]] = []
    opener.delay = waiting.append
    lanes = Lanes("x", opener, 8)
    lanes.open_ahead(2)
    lanes.open_ahead(2)
    await turns(lambda: len(waiting) == 2)
    taking = asyncio.ensure_future(lanes.take())
    await turns(lambda: not taking.done())
    assert (len(opener.opened), lanes.ready) == (2, 2)
    waiting[0].set_result(None)
    taken = await taking
    assert (len(opener.opened), lanes.ready, taken.is_alive) == (2, 1, True)
    # The other is still on its way, and no lane that nobody took stays open.
    lanes.give_back(taken)
    await lanes.close()
    await turns(lambda: not opener.living)


async def test_lanes_ahead_that_cannot_be_opened_are_no_failure() -> None:
    lanes = Lanes("x", Opener(0, Unsupported("not here")), 8)
    lanes.open_ahead(2)
    with pytest.raises(Unsupported, match="not here"):
        await lanes.take()


async def test_idle_lanes_are_closed_after_a_while(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_module, "IDLE_S", 0.0)
    lanes = Lanes("x", opener, 8)
    first, second = await lanes.take(), await lanes.take()
    lanes.give_back(first)
    await turns(lambda: not first.is_alive)
    # The one that is in use is left alone.
    assert second.is_alive
    assert await lanes.take() is not first
    await lanes.close()


async def test_a_lane_that_is_taken_again_is_not_closed(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_module, "IDLE_S", 0.0)
    lanes = Lanes("x", opener, 8)
    first, second = await lanes.take(), await lanes.take()
    lanes.give_back(first)
    lanes.give_back(second)
    assert await lanes.take() is second
    await turns(lambda: not first.is_alive)
    assert second.is_alive


async def test_giving_back_starts_the_while_anew(opener: Opener) -> None:
    lanes = Lanes("x", opener, 8)
    timers = []
    for lane in [await lanes.take(), await lanes.take()]:
        lanes.give_back(lane)
        timers.append(lanes._timer)
    assert [timer.cancelled() for timer in timers if timer] == [True, False]
    await lanes.close()


async def test_closing_closes_all_that_are_idle_even_if_one_fails(opener: Opener) -> None:
    lanes = Lanes("x", opener, 8)
    taken = [await lanes.take() for _ in range(3)]
    for lane in taken:
        lanes.give_back(lane)

    async def fail() -> None:
        raise Unreachable("gone")

    opener.opened[0].close = fail  # type: ignore[method-assign]
    await lanes.close()
    assert opener.living == 1
    assert lanes._timer is not None
    assert lanes._timer.cancelled()
    # Closed once more, there is nothing to do.
    await lanes.close()
