"""A look at many machines: it takes as long as a look at one, and dead ones delay nobody."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from importlib.resources import files

from tests.support.line import ThreadedLine
from tests.support.sshd import Sshd, silent_port

from ..client import Server
from ..host import cpu_seconds
from ..measure import Times, in_turns, timed
from ..mux import NOWHERE
from ..problems import BenchError
from ..report import Row, Target
from ..stage import Entry, Stage, entry

FLEET, CROWD = 16, 100
# Milliseconds, for so many machines.
MOST_MS = {1: 20, FLEET: 130, CROWD: 900}
ROUND_TRIP_MS = 100
DEADLINE_S, ALLOWANCE_S = 5.0, 0.5
TWICE, AT_ONCE = Target(2, of_ratio=True), Target(1.5, of_ratio=True)


def rows(stage: Stage) -> Iterator[Row]:
    machines = stage.machines(FLEET)
    yield from _next_door(stage, machines)
    yield _far_away(stage, machines)
    yield _with_dead(stage, machines)


def _next_door(stage: Stage, machines: list[Sshd]) -> Iterator[Row]:
    entries = [entry(sshd) for sshd in machines]
    # Each under several names, over connections of their own.
    crowd = [{**entries[at % FLEET], "name": f"crowd-{at}"} for at in range(CROWD)]
    with (
        stage.ours(entries[:1]) as one,
        stage.ours(entries) as all_,
        stage.ours(crowd) as many,
        stage.peers(entries) as peer,
    ):
        contestants = {
            "one": timed(lambda: look(one, 1)),
            "all": timed(lambda: look(all_, FLEET)),
            "many": timed(lambda: look(many, CROWD)),
            "one probe": timed(lambda: probe_here(1)),
            "all probes": timed(lambda: probe_here(FLEET)),
        }
        if peer is not None:
            contestants["peer"] = timed(lambda: look(peer, FLEET))
        in_turns(contestants, rounds=1)
        rounds = stage.rounds(7, 2)
        worked = cpu_seconds(all_.worker)
        times = in_turns(contestants, rounds=rounds)
        worked = (cpu_seconds(all_.worker) - worked) / rounds
    for name, count in (("one", 1), ("all", FLEET), ("many", CROWD)):
        yield Row(
            "survey", f"resources of {count} machine{'s' * (count > 1)} next door", times[name].p50_ms,
            baseline=times["one probe"].p50_ms, against="one probe script alone", target=Target(MOST_MS[count]),
            detail={"ours_spread_ms": times[name].spread_ms},
        )  # fmt: skip
    yield _row("next door", times, note=_why_not_judged(times, worked), out_of_reach=True)
    if "peer" in times:
        name = f"survey of {FLEET} machines next door"
        yield Row("survey", name, times["all"].p50_ms, baseline=times["peer"].p50_ms, against="peer")


def _why_not_judged(times: Mapping[str, Times], worked: float) -> str:
    """The share of the machines' own work, which separate machines would do at the same time, and of the server's."""
    probes, probe = times["all probes"], times["one probe"]
    return (
        f"all {FLEET} share this machine's {os.cpu_count()} cores, so the target cannot be judged: the probe script "
        f"alone, without server or ssh, takes {probes.p50 / probe.p50:.1f} times as long when {FLEET} run at once "
        f"({probes.p50_ms:.0f} against {probe.p50_ms:.0f} ms). Our server's own work for all {FLEET} is "
        f"{worked * 1000:.0f} ms; added to the time for one, that is {1 + worked / times['one'].p50:.1f} times as long"
    )


def _far_away(stage: Stage, machines: list[Sshd]) -> Row:
    with ExitStack() as stack:
        lines = [stack.enter_context(ThreadedLine(sshd.port, rtt_s=ROUND_TRIP_MS / 1000)) for sshd in machines]
        entries = [entry(sshd, line.port) for sshd, line in zip(machines, lines, strict=True)]
        one = stack.enter_context(stage.ours(entries[:1]))
        all_ = stack.enter_context(stage.ours(entries))
        contestants = {
            "one": timed(lambda: look(one, 1)),
            "all": timed(lambda: look(all_, FLEET)),
            "one probe": timed(lambda: probe_here(1)),
            "all probes": timed(lambda: probe_here(FLEET)),
        }
        in_turns(contestants, rounds=1)
        rounds = stage.rounds(7, 2)
        worked, simulated = cpu_seconds(all_.worker), time.process_time()
        times = in_turns(contestants, rounds=rounds)
        worked, simulated = ((cpu_seconds(all_.worker) - worked) / rounds, (time.process_time() - simulated) / rounds)
    # Where the cores are fewer than the machines, what these do at the same time is done one after the other.
    is_short = (os.cpu_count() or 1) < FLEET
    note = f"this process simulates the lines in {simulated * 1000:.0f} ms of processor time"
    note = f"{_why_not_judged(times, worked)}; {note}" if is_short else note
    return _row(f"at {ROUND_TRIP_MS} ms round trip", times, note=note, target=AT_ONCE, out_of_reach=is_short)


def _row(
    where: str, times: dict[str, Times], *, note: str = "", target: Target = TWICE, out_of_reach: bool = False
) -> Row:
    return Row(
        "survey",
        f"survey of {FLEET} machines {where}",
        times["all"].p50_ms,
        baseline=times["one"].p50_ms,
        against="one machine",
        target=target,
        out_of_reach=out_of_reach,
        note=note,
        detail={"ours_spread_ms": times["all"].spread_ms, "one_spread_ms": times["one"].spread_ms},
    )


def _with_dead(stage: Stage, machines: list[Sshd]) -> Row:
    with silent_port() as first, silent_port() as second:
        dead: list[Entry] = [
            entry(machines[0], port) | {"name": f"dead{number}"} for number, port in enumerate((first, second), 1)
        ]
        with stage.ours([entry(sshd) for sshd in machines] + dead) as server:
            seconds = in_turns({"ours": timed(lambda: look(server, FLEET))}, rounds=stage.rounds(2, 1))["ours"]
    return Row(
        "survey",
        f"survey of {FLEET} machines and 2 that never answer",
        max(seconds.seconds),
        unit="s",
        target=Target(DEADLINE_S + ALLOWANCE_S),
        note=f"the deadline to connect is {DEADLINE_S:g} s; the first of these also opens the {FLEET}",
    )


def look(server: Server, expected: int) -> None:
    """Measure every machine; as many as expected must answer in full."""
    said = server.call("list_sandboxes", check_resources=True)
    answered = [one for one in said["sandboxes"] if one["connection_alive"] and "error" not in one["resources"]]
    if len(answered) != expected:
        raise BenchError(f"{len(answered)} of {expected} machines told their resources: {said}")


def probe_here(count: int) -> None:
    """The probe's own work, as often at once as there are machines."""
    script = str(files("remote_sandbox_mcp.far.probe").joinpath("probe.sh"))
    pids = [os.posix_spawnp("sh", ["sh", script, "once"], os.environ, file_actions=NOWHERE) for _ in range(count)]
    for pid in pids:
        os.waitpid(pid, 0)
