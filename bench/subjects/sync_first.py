"""The first sync of a session: the machine is connected, and no lane is open; rsync goes over its ControlMaster."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from .. import rsync, trees
from ..client import succeeded
from ..far import RTT_20, line
from ..measure import in_turns, timed
from ..mux import mux
from ..report import Row, Target
from ..stage import OURS, Stage, entry
from ..sync import OVER_MUX, Grounds, Tool, grounds

AT_MOST = Target(0.8, of_ratio=True)
_numbers = itertools.count(1)


def rows(stage: Stage) -> Iterator[Row]:
    many = 200 if stage.quick else 2000
    kinds: dict[str, Callable[[Path], None]] = {
        "16 MiB": lambda root: trees.blob(root, 16 * trees.MIB),
        f"{many:,} x 1 KiB": lambda root: trees.scatter(root, many, trees.KIB, 20),
    }
    with grounds("sync-first", stage) as here:
        for what, grow in kinds.items():
            yield _row(here, what, here.plant(grow))


def _row(here: Grounds, what: str, source: Path) -> Row:
    stage, sshd = here.stage, here.sshd
    with line(sshd.port, RTT_20) as port, mux(sshd, stage.folder, port) as master:
        environment = stage.environment([entry(sshd, port)])

        def ours() -> float:
            # Under a new name the hub connects anew: it keeps lanes for a while.
            name = f"new-{next(_numbers)}"
            renamed = json.dumps([{**entry(sshd, port), "name": name}])
            with stage.server(OURS, {**environment, "REMOTE_SANDBOX_LIST": renamed}) as server:
                succeeded(server.call("exec_bash", command="true", sandbox_name=name))
                return _into_nothing(here, source, Tool(server, name).up)

        contestants = {"ours": ours, "rsync": partial(_into_nothing, here, source, rsync.over(master).up)}
        with stage.server(OURS, environment) as stays:
            succeeded(stays.call("exec_bash", command="true", sandbox_name=sshd.name))
            in_turns(contestants, rounds=1)
            times = in_turns(contestants, rounds=stage.rounds(7, 2))
    return Row(
        "sync-first",
        f"first sync of a session, {what} up, {RTT_20.name}",
        times["ours"].p50_ms,
        baseline=times["rsync"].p50_ms,
        against=OVER_MUX,
        target=AT_MOST,
        detail={"ours_spread_ms": times["ours"].spread_ms, "rsync_spread_ms": times["rsync"].spread_ms},
    )


def _into_nothing(here: Grounds, source: Path, copy: Callable[[Path, Path], None]) -> float:
    target = here.far / f"first-{next(_numbers)}"
    taken = timed(lambda: copy(source, target))()
    trees.check_equal(source, target)
    here.remove(target)
    return taken
