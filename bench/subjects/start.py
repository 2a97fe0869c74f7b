"""From nothing to a list of tools, to the first answer of one, and to a first command: what a client waits for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from ..client import Server, succeeded
from ..measure import Contestant, Times, in_turns, timed
from ..mux import spawn_and_wait
from ..report import Row, Target
from ..stage import ALONE, Entry, Stage, entry

NO_SLOWER = Target(1, of_ratio=True)

Environ = Callable[[], Mapping[str, str]]


def rows(stage: Stage) -> Iterator[Row]:
    """Ours remembers its first answers, so the first start with a new home is told apart from all later ones."""
    machines = [entry(stage.machine())]
    contestants = _contestants(stage, machines)
    # The first time compiles what is not compiled yet and fills the file cache.
    in_turns(contestants, rounds=1)
    times = in_turns(contestants, rounds=stage.rounds(15, 5))
    python = f"Python itself takes {times['python'].p50_ms:.0f} ms of it"
    yield _row("start until tools are listed, --no-hub", times["ours"], times.get("peer"), python)
    yield _row(
        "the very first start until tools are listed, --no-hub",
        times["ours, first"],
        times.get("peer"),
        "ours has nothing to remember yet",
    )
    yield _row(
        "start until a tool has answered, --no-hub",
        times["ours, tool"],
        times.get("peer, tool"),
        "select_sandbox, which asks no machine",
    )
    yield _row(
        "start until a first command has run, --no-hub",
        times["ours, command"],
        times.get("peer, command"),
        "exec_bash on an SSH machine that is not connected yet",
    )


def _contestants(stage: Stage, machines: Sequence[Entry]) -> dict[str, Contestant]:
    usual = stage.environment(machines, local=True)
    name = str(machines[0]["name"])
    list_tools, call_tool, run_command = _list_tools, _caller(name), _runner(name)
    contestants = {
        "python": timed(lambda: spawn_and_wait([sys.executable, "-c", "pass"])),
        "ours": _start(stage, ALONE, lambda: usual, list_tools),
        "ours, first": _start(stage, ALONE, lambda: stage.environment(machines, local=True), list_tools),
        "ours, tool": _start(stage, ALONE, lambda: usual, call_tool),
        "ours, command": _start(stage, ALONE, lambda: usual, run_command),
    }
    if stage.peer is not None:
        command, environ = stage.peer.command, stage.environment(machines, local=True)
        contestants["peer"] = _start(stage, command, lambda: environ, list_tools)
        contestants["peer, tool"] = _start(stage, command, lambda: environ, call_tool)
        contestants["peer, command"] = _start(stage, command, lambda: environ, run_command)
    return contestants


def _list_tools(server: Server) -> None:
    server.request("tools/list", {})


def _caller(sandbox_name: str) -> Callable[[Server], None]:
    """As a client does it: the list first, then a call, here of a tool that asks no machine."""

    def call(server: Server) -> None:
        _list_tools(server)
        server.call("select_sandbox", sandbox_name=sandbox_name)

    return call


def _runner(sandbox_name: str) -> Callable[[Server], None]:
    """The same with a command on a machine, which is opened for it."""

    def run(server: Server) -> None:
        _list_tools(server)
        succeeded(server.call("exec_bash", command="true", sandbox_name=sandbox_name))

    return run


def _start(stage: Stage, command: Sequence[str], environ: Environ, until: Callable[[Server], None]) -> Contestant:
    def start() -> float:
        server = stage.server(command, environ())

        def ready() -> None:
            server.start()
            until(server)

        try:
            return timed(ready)()
        finally:
            server.end()

    return start


def _row(name: str, ours: Times, peer: Times | None, note: str) -> Row:
    return Row(
        "start",
        name,
        ours.p50_ms,
        baseline=peer.p50_ms if peer else None,
        against="peer" if peer else "",
        target=NO_SLOWER,
        out_of_reach=peer is None,
        note=note,
        detail={"ours_spread_ms": ours.spread_ms, "peer_spread_ms": peer.spread_ms if peer else None},
    )
