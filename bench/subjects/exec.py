"""A command on a machine next door: what the way through MCP, SSH and the outpost costs by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from uuid import uuid4

from ..client import succeeded
from ..measure import Contestant, Times, in_turns, timed
from ..mux import fresh, mux
from ..report import Row, Target
from ..stage import ALONE, OURS, Stage, entry

BATCH = 10
NAME = "exec `true`, warm, p50"


def rows(stage: Stage) -> Iterator[Row]:
    times = _warm(stage)
    ours, ssh = times["ours"], times["ssh"]
    detail = {"ours_spread_ms": ours.spread_ms, "ssh_spread_ms": ssh.spread_ms}
    yield Row(
        "exec",
        NAME,
        ours.p50_ms,
        baseline=ssh.p50_ms,
        against="ssh, ControlMaster",
        target=Target(0.5, of_ratio=True),
        note=f"a tool call that runs no command takes {times['no command'].p50_ms:.2f} ms of it",
        detail=detail,
    )
    if "peer" in times:
        peer = times["peer"]
        share = f"the peer takes {peer.p50 / ssh.p50:.1f} times as long as ssh"
        yield Row("exec", NAME, ours.p50_ms, baseline=peer.p50_ms, against="peer", note=share)
    yield from _first(stage)


def _warm(stage: Stage) -> dict[str, Times]:
    sshd = stage.machine()
    machines = [entry(sshd)]
    with stage.ours(machines) as ours, stage.peers(machines) as peer, mux(sshd, stage.folder) as ssh:
        contestants: dict[str, Contestant] = {
            "ours": timed(lambda: ours.call("exec_bash", command="true")),
            "ssh": timed(lambda: ssh.run("true")),
            "no command": timed(lambda: ours.call("select_sandbox", sandbox_name=sshd.name)),
        }
        if peer is not None:
            contestants["peer"] = timed(lambda: peer.call("exec_bash", command="true"))
            succeeded(peer.call("exec_bash", command="true"))
        succeeded(ours.call("exec_bash", command="true"))
        in_turns(contestants, rounds=1, batch=3)
        return in_turns(contestants, rounds=stage.rounds(20, 4), batch=BATCH)


def _first(stage: Stage) -> Iterator[Row]:
    """The first command on a machine also opens it: in a new process, and in a hub that has been there before."""
    sshd = stage.machine()
    environment = stage.environment([entry(sshd)])
    ssh = timed(lambda: fresh(sshd, "true"))

    def alone() -> float:
        with stage.server(ALONE, stage.environment([entry(sshd)])) as server:
            return timed(lambda: succeeded(server.call("exec_bash", command="true")))()

    def warm() -> float:
        # Under a new name it connects anew.
        renamed = json.dumps([{**entry(sshd), "name": f"new-{uuid4().hex}"}])
        with stage.server(OURS, {**environment, "REMOTE_SANDBOX_LIST": renamed}) as server:
            server.request("tools/list", {})
            return timed(lambda: succeeded(server.call("exec_bash", command="true")))()

    with stage.server(OURS, environment) as stays:
        succeeded(stays.call("exec_bash", command="true"))
        in_turns({"warm": warm}, rounds=1)
        times = in_turns({"alone": alone, "warm": warm, "ssh": ssh}, rounds=stage.rounds(11, 3))
    for what, name, target in (
        ("warm", "first command on a machine that is not connected, warm hub", Target(0.4, of_ratio=True)),
        ("alone", "first command, opens the machine, --no-hub", None),
    ):
        yield Row(
            "exec", name, times[what].p50_ms, baseline=times["ssh"].p50_ms, against="ssh, new connection",
            target=target, note=f"p99 {times[what].p99_ms:.0f} ms",
        )  # fmt: skip
