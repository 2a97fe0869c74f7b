"""The server's memory during large syncs: it grows neither with the number of files nor with their size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from .. import trees
from ..far import LOOPBACK
from ..host import peak, rewind_peak
from ..report import Row, Target
from ..stage import Stage
from ..sync import OURS, Arena, arena, grounds

MOST_MB = 150


def rows(stage: Stage) -> Iterator[Row]:
    count, folders, gibibytes = (2000, 20, 1) if stage.quick else (50_000, 500, 10)
    # On the disk: what arrives may have no holes, and is too much for many a machine's memory.
    with grounds("sync-memory", stage, in_memory=False) as here, arena(here, LOOPBACK) as ready:
        yield _row(ready, f"{count:,} files", lambda root: trees.scatter(root, count, trees.KIB, folders))
        yield _row(ready, f"a hole of {gibibytes} GiB", lambda root: trees.hole(root, gibibytes * trees.GIB))


def _row(ready: Arena, what: str, grow: Callable[[Path], None]) -> Row:
    pid, here = ready.server.worker, ready.grounds
    with ready.lanes(here.plant(grow), "up", [OURS]) as lanes:
        before = rewind_peak(pid)
        seconds = lanes[OURS].first()
        after = peak(pid)
    return Row(
        here.subject,
        f"the server's peak memory, {what} up",
        _megabytes(after),
        unit="MB",
        target=Target(MOST_MB),
        out_of_reach=here.stage.quick,
        note=f"before it was {_megabytes(before):.0f} MB; the sync took {seconds:.1f} s",
    )


def _megabytes(kilobytes: int) -> float:
    return kilobytes * 1024 / 1e6
