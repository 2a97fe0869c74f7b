"""What the hub changes: a new session's first result, what it adds to a call, memory and logins of five sessions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from uuid import uuid4

from tests.support.sshd import wait_until

from ..client import Server, succeeded
from ..host import resident
from ..measure import Contestant, Times, in_turns, timed
from ..report import Row, Target
from ..stage import ALONE, OURS, Entry, Stage, entry

SESSIONS = 5
BATCH = 10
ADDED_MS, MOST_MB = 0.3, 160


def rows(stage: Stage) -> Iterator[Row]:
    machines = [entry(stage.machine())]
    yield from _first_results(stage, machines)
    yield _added(stage, machines)
    yield from _five(stage, machines)


def _first_results(stage: Stage, machines: Sequence[Entry]) -> Iterator[Row]:
    """From the start of the command to the first result of a command on a machine."""
    warm, alone, cold = (stage.environment(machines) for _ in range(3))
    contestants = {
        "warm": _start(stage, OURS, lambda: warm),
        "new": _start(stage, OURS, lambda: _with_new_machine(warm, machines[0])),
        "cold": _start(stage, OURS, lambda: _without_hub(cold)),
        "alone": _start(stage, ALONE, lambda: alone),
    }
    if stage.peer is not None:
        environ = stage.environment(machines)
        contestants["peer"] = _start(stage, stage.peer.command, lambda: environ)
    # A session that stays: the hub lives, and the machine is connected.
    with stage.server(OURS, warm) as stays:
        succeeded(stays.call("exec_bash", command="true"))
        in_turns(contestants, rounds=1)
        times = in_turns(contestants, rounds=stage.rounds(11, 3))
    name = "start until the first result of exec"
    yield _row(f"{name}, warm hub", times["warm"], times.get("peer"), "peer", Target(0.2, of_ratio=True))
    yield _row(f"{name}, warm hub", times["warm"], times["alone"], "--no-hub")
    new = f"{name}, warm hub, machine not connected"
    yield _row(new, times["new"], times.get("peer"), "peer", Target(1, of_ratio=True))
    yield _row(f"{name}, no hub yet", times["cold"], times["alone"], "--no-hub", Target(1.05, of_ratio=True))
    yield _row(f"{name}, --no-hub", times["alone"], times.get("peer"), "peer", Target(1, of_ratio=True))


def _with_new_machine(environ: Mapping[str, str], machine: Entry) -> Mapping[str, str]:
    """The same one under a name that the hub does not know: it has to log in."""
    return {**environ, "REMOTE_SANDBOX_LIST": json.dumps([{**machine, "name": f"new-{uuid4().hex}"}])}


def _without_hub(environ: Mapping[str, str]) -> Mapping[str, str]:
    """With what earlier starts remember, but a hub of its own: its name depends on this variable."""
    return {**environ, "NO_PROXY": f"{uuid4().hex}.example.org"}


def _start(stage: Stage, command: Sequence[str], environ: Callable[[], Mapping[str, str]]) -> Contestant:
    def start() -> float:
        server = stage.server(command, environ())

        def first() -> None:
            server.start()
            server.request("tools/list", {})
            succeeded(server.call("exec_bash", command="true"))

        try:
            return timed(first)()
        finally:
            server.end()

    return start


def _row(name: str, ours: Times, other: Times | None, against: str, target: Target | None = None) -> Row:
    return Row(
        "hub",
        name,
        ours.p50_ms,
        baseline=other.p50_ms if other else None,
        against=against if other else "",
        target=target,
        out_of_reach=other is None,
        detail={"ours_spread_ms": ours.spread_ms, "other_spread_ms": other.spread_ms if other else None},
    )


def _added(stage: Stage, machines: Sequence[Entry]) -> Row:
    """A warm command through the front and the hub, against one process that does everything."""
    with (
        stage.server(OURS, stage.environment(machines)) as hub,
        stage.server(ALONE, stage.environment(machines)) as alone,
    ):
        contestants = {
            "hub": timed(lambda: hub.call("exec_bash", command="true")),
            "alone": timed(lambda: alone.call("exec_bash", command="true")),
        }
        in_turns(contestants, rounds=1, batch=3)
        times = in_turns(contestants, rounds=stage.rounds(20, 4), batch=BATCH)
    difference = times["hub"].p50_ms - times["alone"].p50_ms
    return Row(
        "hub",
        "exec `true`, warm, added by the hub",
        max(difference, 0.0),
        target=Target(ADDED_MS),
        note=f"p50 {times['hub'].p50_ms:.2f} ms with the hub, {times['alone'].p50_ms:.2f} ms without",
    )


def _five(stage: Stage, machines: Sequence[Entry]) -> Iterator[Row]:
    sshd = stage.machine()
    found: dict[str, tuple[float, int]] = {}
    for name, command in (("hub", OURS), ("alone", ALONE)):
        wait_until(lambda: not sshd.sessions(), what="earlier hubs to end", seconds=20)
        environ = stage.environment(machines)
        with ExitStack() as stack:
            servers: list[Server] = []
            for _ in range(SESSIONS):
                servers.append(stack.enter_context(stage.server(command, environ)))
                succeeded(servers[-1].call("exec_bash", command="true"))
            pids = {server.pid for server in servers} | {server.worker for server in servers}
            found[name] = sum(map(resident, pids)) * 1024 / 1e6, sum("@" in it for it in sshd.sessions().values())
    yield Row(
        "hub", f"memory of {SESSIONS} sessions", found["hub"][0], unit="MB", baseline=found["alone"][0],
        against="--no-hub", target=Target(MOST_MB),
    )  # fmt: skip
    yield Row(
        "hub", f"logins of {SESSIONS} sessions on one machine", found["hub"][1], unit="", baseline=found["alone"][1],
        against="--no-hub", target=Target(1),
    )  # fmt: skip
