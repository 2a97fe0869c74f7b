"""Many packages with a .gitignore each, both ways and unchanged: what reading rules in each folder costs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from .. import rsync, trees
from ..client import succeeded
from ..far import LOOPBACK, RTT_20, Distance, line
from ..measure import in_turns, timed
from ..mux import mux
from ..report import Row, Target
from ..stage import Stage, entry
from ..sync import Grounds, Tool, grounds

FILES = 40
# rsync has no name for this: it reads each folder's .gitignore as its own rules.
HEEDING = ("-a", "--filter=:- .gitignore")
AGAINST = "rsync -a --filter=':- .gitignore' over a mux"
AT_MOST = Target(0.8, of_ratio=True)


def rows(stage: Stage) -> Iterator[Row]:
    packages = 50 if stage.quick else 500
    with grounds("sync-ignore", stage) as here:
        source = here.plant(lambda root: trees.packages(root, packages, FILES))
        kept = here.plant(lambda root: trees.packages(root, packages, FILES, built=False))
        for distance in (LOOPBACK, RTT_20):
            yield _row(here, distance, f"{packages:,} .gitignore files, {packages * FILES:,} other files", source, kept)


def _row(here: Grounds, distance: Distance, what: str, source: Path, kept: Path) -> Row:
    stage, sshd = here.stage, here.sshd
    with (
        line(sshd.port, distance) as port,
        stage.ours([entry(sshd, port)]) as server,
        mux(sshd, stage.folder, port) as master,
    ):
        succeeded(server.call("exec_bash", command="true", sandbox_name=sshd.name))
        copies = {
            "ours": partial(Tool(server, sshd.name, {"respect_gitignore": True}).up, source, here.far / "ours"),
            "rsync": partial(rsync.over(master, options=HEEDING).up, source, here.far / "rsync"),
        }
        for name, copy in copies.items():
            copy()
            trees.check_equal(kept, here.far / name)
        times = in_turns({name: timed(copy) for name, copy in copies.items()}, rounds=stage.rounds(7, 3))
    return Row(
        "sync-ignore",
        f"{what}, up again, unchanged, {distance.name}",
        times["ours"].p50,
        unit="s",
        baseline=times["rsync"].p50,
        against=AGAINST,
        target=AT_MOST,
        out_of_reach=stage.quick,
        detail={"ours_spread_ms": times["ours"].spread_ms, "rsync_spread_ms": times["rsync"].spread_ms},
    )
