"""Very many files in many folders, both ways, first and again: what the listings and each file cost."""

from __future__ import annotations

from collections.abc import Iterator

from .. import trees
from ..far import LOOPBACK, RTT_20, RTT_100
from ..report import Row
from ..stage import Stage
from ..sync import Limits, arena, first_and_again, grounds

LIMITS = {LOOPBACK: Limits(0.9, 0.8), RTT_20: Limits(0.8, 0.5), RTT_100: Limits(0.5, 0.2)}


def rows(stage: Stage) -> Iterator[Row]:
    count, folders = (2000, 20) if stage.quick else (50_000, 500)
    what = f"{count:,} x 1 KiB in {folders} folders"
    with grounds("sync-many", stage) as here:
        sources = here.plant_both(lambda root: trees.scatter(root, count, trees.KIB, folders))
        for distance, limits in LIMITS.items():
            with arena(here, distance) as ready:
                yield from first_and_again(ready, what, sources, limits, stage.rounds(3, 1))
