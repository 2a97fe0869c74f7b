"""Calls at once on one machine, whose sshd allows ten sessions for each connection."""

from __future__ import annotations

from collections.abc import Iterator

from ..contenders import OURS, Contender, compared, contenders
from ..far import LOOPBACK
from ..measure import Contestant, in_turns, timed
from ..problems import BenchError
from ..report import Row
from ..stage import Stage

COUNTS = (1, 3, 10, 30, 100)
COMMAND = "sleep 0.5"
AXIS = "calls at once"


def rows(stage: Stage) -> Iterator[Row]:
    sshd = stage.machine()
    with contenders(stage, [sshd], LOOPBACK) as found:
        able = dict(found)
        for count in COUNTS[:: 2 if stage.quick else 1]:
            lost = [name for name, contender in able.items() if not _manages(contender, sshd.name, count)]
            able = {name: contender for name, contender in able.items() if name not in lost}
            racing = {name: _at_once(contender, sshd.name, count) for name, contender in able.items()}
            times = in_turns(racing, rounds=stage.rounds(3, 1))
            name = f"{count} x `{COMMAND}` at once"
            yield from compared("crowd", name, times, at=count, axis=AXIS, unit="s")
            for who in lost:
                yield Row("crowd", name, times[OURS].p50, unit="s", against=f"{who} fails some of them")


def _manages(contender: Contender, machine: str, count: int) -> bool:
    """Whether all of so many calls succeed; those who refuse some are not compared."""
    try:
        contender.at_once([machine] * count, COMMAND)
    except BenchError:
        return False
    return True


def _at_once(contender: Contender, machine: str, count: int) -> Contestant:
    return timed(lambda: contender.at_once([machine] * count, COMMAND))
