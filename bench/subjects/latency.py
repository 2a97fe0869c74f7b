"""One command over distance: how much of its time is the line's, and how much the program's."""

from __future__ import annotations

from collections.abc import Iterator

from ..contenders import Contender, compared, contenders
from ..far import Distance
from ..measure import Contestant, in_turns, timed
from ..report import Row
from ..stage import Stage

ROUND_TRIPS_MS = (0, 20, 50, 100, 200)
AXIS = "round trip, ms"


def rows(stage: Stage) -> Iterator[Row]:
    sshd = stage.machine()
    for round_trip_ms in ROUND_TRIPS_MS[:: 2 if stage.quick else 1]:
        with contenders(stage, [sshd], Distance(f"RTT {round_trip_ms}", round_trip_ms)) as found:
            racing = {name: _running(contender, sshd.name) for name, contender in found.items()}
            in_turns(racing, rounds=1, batch=3)
            times = in_turns(racing, rounds=stage.rounds(12, 3), batch=4)
        yield from compared("latency", f"exec `true` at {round_trip_ms} ms", times, at=round_trip_ms, axis=AXIS)


def _running(contender: Contender, machine: str) -> Contestant:
    return timed(lambda: contender.run(machine, "true"))
