"""The sandbox on this machine: to open it, and a command in it. For information."""

from __future__ import annotations

from collections.abc import Iterator

from ..client import Server, succeeded
from ..measure import in_turns, timed
from ..mux import spawn_and_wait
from ..report import Row
from ..stage import Stage

NAME = "local"
PLAIN = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "bash", "-c", "true"]


def rows(stage: Stage) -> Iterator[Row]:
    first = in_turns({"ours": lambda: _first(stage)}, rounds=stage.rounds(7, 2))["ours"]
    yield Row("local", "local sandbox: open it and run `true`", first.p50_ms)
    with stage.ours([], local=True) as server:
        run(server)
        contestants = {"ours": timed(lambda: run(server)), "bwrap": timed(lambda: spawn_and_wait(PLAIN))}
        times = in_turns(contestants, rounds=stage.rounds(10, 3), batch=10)
    yield Row(
        "local",
        "local sandbox: exec `true`, warm, p50",
        times["ours"].p50_ms,
        baseline=times["bwrap"].p50_ms,
        against="bwrap for each",
        detail={"ours_spread_ms": times["ours"].spread_ms},
    )


def _first(stage: Stage) -> float:
    with stage.ours([], local=True) as server:
        return timed(lambda: run(server))()


def run(server: Server) -> None:
    succeeded(server.call("exec_bash", command="true", sandbox_name=NAME))
