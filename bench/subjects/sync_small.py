"""A project's worth of small files, both ways, first and again: what the round trips and each file cost."""

from __future__ import annotations

from collections.abc import Iterator

from .. import trees
from ..far import LOOPBACK, RTT_20, RTT_100
from ..report import Row
from ..stage import Stage
from ..sync import Limits, arena, first_and_again, grounds

FOLDERS = 50
LIMITS = {LOOPBACK: Limits(0.9, 0.8), RTT_20: Limits(0.8, 0.5), RTT_100: Limits(0.65, 0.3)}


def rows(stage: Stage) -> Iterator[Row]:
    count = 500 if stage.quick else 5000
    with grounds("sync-small", stage) as here:
        sources = here.plant_both(lambda root: trees.scatter(root, count, 2 * trees.KIB, FOLDERS))
        for distance, limits in LIMITS.items():
            with arena(here, distance) as ready:
                yield from first_and_again(ready, f"{count:,} x 2 KiB", sources, limits, stage.rounds(5, 2))
