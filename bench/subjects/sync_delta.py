"""A large file of which little has changed: only that goes over the line."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from .. import rsync, trees
from ..far import LOOPBACK, RTT_20, RTT_100, Distance
from ..measure import in_turns
from ..report import Row
from ..stage import Stage
from ..sync import OURS, RSYNC, arena, grounds, row

LIMITS = {LOOPBACK: 1.2, RTT_20: 1.0, RTT_100: 0.8}
CHANGES = {"1 MiB changed inside": trees.change_inside, "one byte inserted at its head": trees.insert_at_head}


def rows(stage: Stage) -> Iterator[Row]:
    for distance, limit in LIMITS.items():
        yield from _at(stage, distance, limit)


def _at(stage: Stage, distance: Distance, limit: float) -> Iterator[Row]:
    mebibytes = 32 if stage.quick else 1024
    with grounds("sync-delta", stage) as here, arena(here, distance) as ready:
        source = here.plant(lambda root: trees.blob(root, mebibytes * trees.MIB))
        with ready.lanes(source, "up", (OURS, RSYNC)) as lanes:
            # Ours may remember what it has sent; rsync does not, and is spared the long line.
            lanes[OURS].first()
            rsync.alone(here.sshd).up(source, lanes[RSYNC].begin())
            for name, change in CHANGES.items():
                contestants = {who: lane.again for who, lane in lanes.items()}
                times = in_turns(contestants, rounds=stage.rounds(3, 1), before=partial(change, source))
                yield row(ready, f"{mebibytes:,} MiB, {name}", times, limit)
