"""Source text over a line with little bandwidth: whether what compresses is compressed."""

from __future__ import annotations

from collections.abc import Iterator

from .. import trees
from ..far import SLOW
from ..measure import in_turns
from ..report import Row
from ..stage import Stage
from ..sync import OURS, PACKED, RSYNC, arena, grounds, row

LIMITS = {PACKED: 1.1, RSYNC: 0.4}


def rows(stage: Stage) -> Iterator[Row]:
    mebibytes = 2 if stage.quick else 20
    with grounds("sync-text", stage) as here, arena(here, SLOW) as ready:
        source = here.plant(lambda root: trees.text(root, mebibytes * trees.MIB))
        with ready.lanes(source, "up", (OURS, RSYNC, PACKED)) as lanes:
            times = in_turns({name: lane.first for name, lane in lanes.items()}, rounds=stage.rounds(5, 1))
        for against, limit in LIMITS.items():
            pair = {name: times[name] for name in (OURS, against)}
            yield row(ready, f"{mebibytes} MiB of source text up", pair, limit, against)
