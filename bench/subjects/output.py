"""A command that prints very much: it is not held up, and nobody's memory grows with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from tests.support.sshd import Sshd

from ..client import Server, succeeded
from ..host import peak, rewind_peak
from ..measure import in_turns, timed
from ..mux import mux
from ..problems import BenchError
from ..report import Row, Target
from ..stage import Stage, entry

MEGABYTES = 100
COMMAND = f"yes 'an ordinary line of output, as long as programs like to print' | head -c {MEGABYTES}000000"


def rows(stage: Stage) -> Iterator[Row]:
    sshd = stage.machine()
    with stage.ours([entry(sshd)]) as server, mux(sshd, stage.folder) as ssh:
        succeeded(server.call("exec_bash", command="true"))
        # The first time: what it leaves allocated would hide how much the second one takes.
        near, far = growth([lambda: [server.worker], lambda: outposts(sshd)], lambda: print_much(server))
        times = in_turns(
            {"ours": timed(lambda: print_much(server)), "ssh": timed(lambda: ssh.run(COMMAND))},
            rounds=stage.rounds(5, 2),
        )
    yield Row(
        "output",
        f"{MEGABYTES} MB of output",
        times["ours"].p50,
        unit="s",
        baseline=times["ssh"].p50,
        against="ssh, into /dev/null",
        target=Target(3),
        detail={"ours_spread_ms": times["ours"].spread_ms},
    )
    yield Row("output", "memory that this adds to the server", near, unit="MB", target=Target(20))
    yield Row("output", "memory that this adds to the outpost and keepers", far, unit="MB", target=Target(20))


def print_much(server: Server) -> None:
    said = succeeded(server.call("exec_bash", command=COMMAND))
    if said.get("stdout_bytes") != MEGABYTES * 1_000_000:
        raise BenchError(f"{said.get('stdout_bytes')} bytes were printed, not {MEGABYTES} MB")


def outposts(sshd: Sshd) -> list[int]:
    """Our programs at the far side, which start as `python3 -IS -c`, and no command of a caller."""
    return [pid for pid, command in sshd.processes().items() if " -IS -c " in command]


def growth(groups: Sequence[Callable[[], Collection[int]]], action: Callable[[], object]) -> list[float]:
    """How far the peaks of each group of processes rise above what it held before, together, in MB."""
    before = [{pid: rewind_peak(pid) for pid in group()} for group in groups]
    action()
    return [_risen(held, group()) for held, group in zip(before, groups, strict=True)]


def _risen(before: Mapping[int, int], now: Collection[int]) -> float:
    """One that came meanwhile counts in full."""
    return sum(max(0, peak(pid) - before.get(pid, 0)) for pid in {*before, *now}) * 1024 / 1e6
