"""A Slurm cluster: what an allocation adds to a command, and what our submission adds to sbatch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from statistics import median

from tests.support.line import ThreadedLine
from tests.support.slurm import Cluster, running_cluster

from ..client import Server, succeeded
from ..measure import Times, in_turns, timed
from ..mux import mux
from ..report import Row, Target
from ..stage import Stage, entry

ROUND_TRIP_MS = 20
# Nothing of what is submitted starts meanwhile: the cluster's nodes are on this machine.
LATER = "now+1hour"
_names = itertools.count(1)


def rows(stage: Stage) -> Iterator[Row]:
    with running_cluster(stage.fleet) as cluster:
        yield _exec(stage, cluster)
        yield from _submit(stage, cluster)


def _exec(stage: Stage, cluster: Cluster) -> Row:
    """A node of this cluster is the same machine as its login node."""
    login = cluster.login.name
    with stage.ours([entry(cluster.login) | {"slurm": True}]) as server:
        allocation = server.call("create_sandbox", on=login, timeout=3600)["sandbox_id"]
        places = {"allocation": allocation, "login node": login}
        contestants = {name: timed(partial(_true, server, where)) for name, where in places.items()}
        in_turns(contestants, rounds=1, batch=3)
        times = in_turns(contestants, rounds=stage.rounds(200, 40))
        server.call("delete_sandbox", sandbox_id=allocation)
    inside, outside = times["allocation"], times["login node"]
    return Row(
        "slurm",
        "exec `true` in an allocation, more than on the same machine without Slurm, p50",
        _more_ms(inside, outside),
        target=Target(1),
        note=f"{inside.p50_ms:.2f} ms in an allocation, {outside.p50_ms:.2f} ms on the login node",
        detail={"allocation_spread_ms": inside.spread_ms, "login_spread_ms": outside.spread_ms},
    )


def _more_ms(one: Times, other: Times) -> float:
    """By how much the one takes longer, right beside the other: what both share, such as a busy machine, falls out."""
    return max(0.0, 1000 * median(a - b for a, b in zip(one.seconds, other.seconds, strict=True)))


def _true(server: Server, where: str) -> None:
    succeeded(server.call("exec_bash", command="true", sandbox_name=where))


def _submit(stage: Stage, cluster: Cluster) -> Iterator[Row]:
    sshd = cluster.login
    plain = f"sbatch --parsable --begin={LATER} --output=/dev/null --wrap true"
    with (
        ThreadedLine(sshd.port, rtt_s=ROUND_TRIP_MS / 1000) as line,
        stage.ours([entry(sshd, line.port) | {"slurm": True}]) as ours,
        mux(sshd, stage.folder, line.port) as ssh,
    ):
        contestants = {"ours": timed(lambda: _start(ours)), "ssh": timed(lambda: ssh.run(plain))}
        in_turns(contestants, rounds=1, batch=2)
        times = in_turns(contestants, rounds=stage.rounds(40, 6))
    cluster.reset()
    yield Row(
        "slurm",
        f"submit a job at {ROUND_TRIP_MS} ms round trip, more than `ssh login sbatch`, p50",
        _more_ms(times["ours"], times["ssh"]),
        # One round trip more than sbatch itself.
        target=Target(ROUND_TRIP_MS),
        note=f"{times['ours'].p50_ms:.0f} ms, and {times['ssh'].p50_ms:.0f} ms over a ControlMaster",
        detail={"ours_spread_ms": times["ours"].spread_ms, "ssh_spread_ms": times["ssh"].spread_ms},
    )


def _start(server: Server) -> None:
    more = {"watch": False, "ensure_watchdog": False, "slurm": {"begin": LATER}}
    server.call("exec_bash_background", command="true", session_name=f"bench-{next(_names)}", **more)
