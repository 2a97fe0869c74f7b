"""The same command on all machines of a fleet, from one to a hundred."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..contenders import SSH, Contender, compared, contenders
from ..far import LOOPBACK
from ..measure import Contestant, in_turns, timed
from ..report import Row
from ..stage import Stage

SIZES = (1, 3, 10, 30, 100)
# Beyond it, sshd processes of five programs at once would be what is measured.
MOST_FOR_ALL = 30
AXIS = "machines"


def rows(stage: Stage) -> Iterator[Row]:
    for size in SIZES[:3] if stage.quick else SIZES:
        machines = stage.machines(size)
        with contenders(stage, machines, LOOPBACK, None if size <= MOST_FOR_ALL else (SSH,)) as found:
            names = [sshd.name for sshd in machines]
            racing = {name: _on_all(contender, names) for name, contender in found.items()}
            times = in_turns(racing, rounds=stage.rounds(7, 2))
        yield from compared("fleet", f"exec `true` on {size} machine{'s' * (size > 1)}", times, at=size, axis=AXIS)


def _on_all(contender: Contender, names: Sequence[str]) -> Contestant:
    return timed(lambda: contender.on_all(names, "true"))
