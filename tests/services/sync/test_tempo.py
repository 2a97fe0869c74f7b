"""What is told of a transfer and when, and when compression is tried, kept and given up; all by a clock of ours."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from remote_sandbox_mcp.core.sync.transfer import Headway, unheard
from remote_sandbox_mcp.services.sync.meter import (
    FAST,
    RATE_OVER_S,
    REPORT_EVERY_S,
    TRY_AGAIN_S,
    WINDOW_S,
    Meter,
    Squeeze,
)

MB = 1_000_000


# Told


def told_by(*arrivals: tuple[float, int], total: int = 0) -> list[Headway]:
    """What is told when so many bytes arrive at these times."""
    told: list[Headway] = []
    meter = Meter(told.append, len(arrivals), total)
    for now, count in arrivals:
        meter.add(now, 1, count, b"a/b")
    return told


def test_what_is_told() -> None:
    told = told_by((100.0, 3 * MB), (101.0, 2 * MB), total=10 * MB)
    assert told == [
        Headway("sending", 1, 2, 3 * MB, 10 * MB, 0, None, "a/b"),
        Headway("sending", 2, 2, 5 * MB, 10 * MB, 2 * MB, 2.5, "a/b"),
    ]


# Times at which something arrives, and which of these are told.
THROTTLED: dict[str, tuple[list[float], list[int]]] = {
    "now and then": ([100.0, 101.0, 102.0], [0, 1, 2]),
    "often": ([100.0, 100.1, 100.15, 100.21, 100.3, 100.42], [0, 3, 5]),
    "all at once": ([100.0] * 50, [0]),
    "just in time": ([100.0, 100.0 + REPORT_EVERY_S + 1e-9], [0, 1]),
}


@pytest.mark.parametrize(("times", "numbers"), THROTTLED.values(), ids=THROTTLED)
def test_it_is_not_told_too_often(times: list[float], numbers: list[int]) -> None:
    assert [headway.files for headway in told_by(*((now, 1) for now in times))] == [at + 1 for at in numbers]


def test_the_last_word_is_told_always() -> None:
    told: list[Headway] = []
    meter = Meter(told.append, 1, 5)
    meter.add(100.0, 1, 5, b"a")
    meter.phase = "done"
    meter.report(100.01, always=True)
    assert [(headway.phase, headway.bytes) for headway in told] == [("sending", 5), ("done", 5)]


# Arrivals, and the rate and the seconds left that are told last.
RATES: dict[str, tuple[list[tuple[float, int]], int, float, float | None]] = {
    "nothing is known at first": ([(100.0, 10)], 100, 0, None),
    "even": ([(100.0 + at, 10) for at in range(4)], 100, 10, 6.0),
    "only the last seconds count": ([(100.0, 1000), *((110.0 + at, 10) for at in range(4))], 2040, 10, 100.0),
    "nothing moves": ([(100.0, 10), (103.0, 0)], 100, 0, None),
    "a long pause": ([(100.0, 10), (100.0 + 10 * RATE_OVER_S, 10)], 100, 0, None),
    "all is there": ([(100.0, 50), (101.0, 50)], 100, 50, 0.0),
    "more than was announced": ([(100.0, 50), (101.0, 150)], 100, 150, 0.0),
    "two at one time": ([(100.0, 50), (100.0, 50)], 100, 0, None),
}


@pytest.mark.parametrize(("arrivals", "total", "rate", "left"), RATES.values(), ids=RATES)
def test_how_fast_it_is(arrivals: list[tuple[float, int]], total: int, rate: float, left: float | None) -> None:
    last = told_by(*arrivals, total=total)[-1]
    assert (last.rate, last.left_s) == (rate, pytest.approx(left) if left is not None else None)


def test_marks_do_not_pile_up() -> None:
    meter = Meter(unheard, 0, 0)
    for at in range(10_000):
        meter.add(100.0 + at * 0.21, 1, 1, b"x")
    assert len(meter._marks) <= RATE_OVER_S / REPORT_EVERY_S + 1


def test_before_anything_arrived_nothing_is_known() -> None:
    assert Meter(unheard, 3, 30).headway() == Headway("sending", 0, 3, 0, 30, 0, None, "")


def test_a_name_that_is_no_text_is_told_as_it_can_be() -> None:
    told: list[Headway] = []
    Meter(told.append).add(100.0, 1, 1, b"a\xff")
    assert told[0].path == "a\ufffd"


# Squeezed


class Transfer:
    """Sends items of 100 kB, one after the other, over a line whose speed depends on how they are sent."""

    def __init__(self, raw: float, squeezed: float, squeezer: str = "zlib") -> None:
        self.now = 100.0
        self.speeds = {"": raw, squeezer: squeezed}
        self.squeeze = Squeeze(squeezer)

    def go_on(self, seconds: float) -> dict[str, float]:
        """For how long it was sent in which way."""
        spent = dict.fromkeys(self.speeds, 0.0)
        end = self.now + seconds
        while self.now < end:
            way = self.squeeze.way
            took = 100_000 / self.speeds[way]
            self.now += took
            spent[way] += took
            self.squeeze.add(self.now, 100_000, way)
        return spent

    def until(self, way: str, within_s: float) -> None:
        end = self.now + within_s
        while self.squeeze.way != way:
            assert self.now < end
            self.go_on(0.01)


def test_a_fast_line_stays_as_it_is() -> None:
    transfer = Transfer(2 * FAST, 10 * FAST)
    assert transfer.go_on(60)["zlib"] == 0


def test_what_is_better_is_tried_and_kept() -> None:
    transfer = Transfer(2 * MB, 6 * MB)
    transfer.until("zlib", 1.0)
    spent = transfer.go_on(TRY_AGAIN_S - 1)
    assert spent[""] == 0
    assert spent["zlib"] > 0


# Raw and squeezed speeds at which it is not worth it.
WORSE = {"slower": (2 * MB, 1 * MB), "the same": (2 * MB, 2 * MB), "hardly better": (2 * MB, 2.1 * MB)}


@pytest.mark.parametrize(("raw", "squeezed"), WORSE.values(), ids=WORSE)
def test_what_is_no_better_is_given_up(raw: float, squeezed: float) -> None:
    transfer = Transfer(raw, squeezed)
    transfer.until("zlib", 1.0)
    transfer.until("", 1.0)
    assert transfer.go_on(TRY_AGAIN_S - 1)["zlib"] == 0


def test_it_costs_little_to_try() -> None:
    transfer = Transfer(2 * MB, 1 * MB)
    spent = transfer.go_on(300)
    assert 0 < spent["zlib"] < 0.1 * spent[""]


def test_it_is_tried_again_later() -> None:
    transfer = Transfer(2 * MB, 1 * MB)
    transfer.until("zlib", 1.0)
    transfer.until("", 1.0)
    # What is sent now can be compressed well.
    transfer.speeds["zlib"] = 9.0 * MB
    transfer.until("zlib", TRY_AGAIN_S + 2)
    assert transfer.go_on(TRY_AGAIN_S - 2)[""] == 0


def test_it_goes_back_when_it_does_not_pay_any_more() -> None:
    transfer = Transfer(2 * MB, 6 * MB)
    transfer.until("zlib", 1.0)
    transfer.go_on(2)
    transfer.speeds["zlib"] = 1.0 * MB
    transfer.until("", TRY_AGAIN_S + 2)
    assert transfer.go_on(TRY_AGAIN_S - 2)["zlib"] == 0


def test_a_line_that_becomes_slow_is_noticed() -> None:
    transfer = Transfer(2 * FAST, 6 * MB)
    transfer.go_on(5)
    transfer.speeds[""] = 2 * MB
    transfer.until("zlib", 1.5)


def test_a_line_that_becomes_fast_is_noticed() -> None:
    transfer = Transfer(2 * MB, 6 * MB)
    transfer.until("zlib", 1.0)
    transfer.speeds[""] = 2 * FAST
    transfer.until("", TRY_AGAIN_S + 2)
    assert transfer.go_on(60)["zlib"] == 0


def test_without_a_common_way_nothing_is_tried() -> None:
    squeeze = Squeeze("")
    for at in range(100):
        squeeze.add(100.0 + at, 1, "")
    assert squeeze.way == ""


def test_what_was_sent_before_a_change_does_not_count() -> None:
    squeeze = Squeeze("zlib")
    squeeze.add(100.0, 1, "")
    squeeze.add(100.0 + WINDOW_S, 100, "")
    assert squeeze.way == "zlib"
    # Raw items that were on their way arrive, and say nothing about compression.
    for at in range(10):
        squeeze.add(101.0 + at, 100 * MB, "")
    assert squeeze.way == "zlib"


@pytest.mark.parametrize("speed", [lambda at: 2 * MB, lambda at: (1 + at % 5) * MB], ids=["even", "uneven"])
def test_it_does_not_flutter(speed: Callable[[int], float]) -> None:
    squeeze, now, changes, way = Squeeze("zlib"), 100.0, 0, ""
    for at in range(10_000):
        now += 100_000 / speed(at)
        squeeze.add(now, 100_000, squeeze.way)
        changes += squeeze.way != way
        way = squeeze.way
    assert changes <= 2 * (now - 100.0) / TRY_AGAIN_S + 2
