"""Copies of a folder into nothing and once more, over the number of its files and the distance, beside rsync."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from .. import trees
from ..contenders import compared
from ..far import LOOPBACK, RTT_20, RTT_100
from ..measure import Times, in_turns
from ..report import Row
from ..stage import Stage
from ..sync import OURS, OVER_MUX, RSYNC, Arena, arena, grounds

COUNTS = (1, 10, 100, 1_000, 10_000)
SIZE = 4 * trees.KIB
AXIS = "files of 4 KiB"
NAMES = (OURS, RSYNC, OVER_MUX)


def rows(stage: Stage) -> Iterator[Row]:
    counts = COUNTS[:4] if stage.quick else COUNTS
    with grounds("copies", stage) as here:
        sources = {count: here.plant(partial(_grow, count)) for count in counts}
        for distance in (LOOPBACK, RTT_20, RTT_100):
            group = f"{distance.round_trip_ms} ms"
            with arena(here, distance) as ready:
                for count, source in sources.items():
                    with ready.lanes(source, "up", NAMES) as lanes:
                        rounds = stage.rounds(5, 2)
                        first = in_turns({name: lane.first for name, lane in lanes.items()}, rounds=rounds)
                        again = in_turns({name: lane.again for name, lane in lanes.items()}, rounds=rounds)
                    yield from _rows(ready, count, "", first, group)
                    yield from _rows(ready, count, " again, unchanged", again, "")


def _grow(count: int, root: Path) -> None:
    trees.scatter(root, count, SIZE, 1 + count // 100)


def _rows(arena: Arena, count: int, what: str, times: dict[str, Times], group: str) -> Iterator[Row]:
    name = f"{count:,} x 4 KiB up{what}, {arena.distance.name}"
    for row in compared("copies", name, times, at=count, axis=AXIS, unit="s", group=group):
        # Only the copies into nothing are drawn: six lines are enough.
        if not group:
            del row.detail["at"]
        yield row
