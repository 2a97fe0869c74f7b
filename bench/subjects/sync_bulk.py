"""One large file, both ways: what each byte costs, and how much of a long line is used."""

from __future__ import annotations

from collections.abc import Iterator

from .. import trees
from ..far import LOOPBACK, RTT_20, RTT_100, Distance
from ..measure import in_turns
from ..report import Row
from ..stage import Stage
from ..sync import OURS, OVER_MUX, RSYNC, arena, grounds, row

LIMITS = {LOOPBACK: 1.0, RTT_20: 0.5, RTT_100: 0.25}


def rows(stage: Stage) -> Iterator[Row]:
    for distance, limit in LIMITS.items():
        yield from _at(stage, distance, limit)


def _at(stage: Stage, distance: Distance, limit: float) -> Iterator[Row]:
    mebibytes = (1024 if distance == LOOPBACK else 256) // (16 if stage.quick else 1)
    # On the longest line ssh's window decides, whoever has opened the connection.
    names = (OURS, RSYNC) if distance == RTT_100 else (OURS, RSYNC, OVER_MUX)
    with grounds("sync-bulk", stage) as here, arena(here, distance) as ready:
        sources = here.plant_both(lambda root: trees.blob(root, mebibytes * trees.MIB))
        for direction, source in sources.items():
            with ready.lanes(source, direction, names) as lanes:
                times = in_turns({name: lane.first for name, lane in lanes.items()}, rounds=stage.rounds(3, 1))
            yield row(ready, f"{mebibytes:,} MiB {direction}", times, limit)
