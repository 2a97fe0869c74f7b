"""Many commands at once on a machine whose sshd allows ten sessions."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from ..client import Server, succeeded
from ..measure import in_turns, timed
from ..mux import Mux, mux
from ..report import Row, Target
from ..stage import Stage, entry

COMMAND = "sleep 0.5"
MAX_SESSIONS = 10
MANY, SOME = 100, 20


def rows(stage: Stage) -> Iterator[Row]:
    sshd = stage.machine()
    machines = [entry(sshd)]
    with stage.ours(machines) as ours, mux(sshd, stage.folder) as ssh, stage.peers(machines) as peer:
        succeeded(ours.call("exec_bash", command="true"))
        yield _against_ssh(stage, ours, ssh)
        if peer is not None and not stage.quick:
            succeeded(peer.call("exec_bash", command="true"))
            yield _against_peer(ours, peer)


def _against_ssh(stage: Stage, ours: Server, ssh: Mux) -> Row:
    times = in_turns(
        {"ours": timed(lambda: _at_once(ours, MANY)), "ssh": timed(lambda: _ten_at_a_time(ssh))},
        rounds=stage.rounds(3, 1),
    )
    return Row(
        "burst",
        f"{MANY} calls of `{COMMAND}` at once",
        times["ours"].p50,
        unit="s",
        baseline=times["ssh"].p50,
        against=f"ssh, {MAX_SESSIONS} at a time",
        target=Target(1.5),
        detail={"ours_spread_ms": times["ours"].spread_ms},
    )


def _against_peer(ours: Server, peer: Server) -> Row:
    times = in_turns(
        {"ours": timed(lambda: _at_once(ours, SOME)), "peer": timed(lambda: _at_once(peer, SOME))}, rounds=1
    )
    name = f"{SOME} calls of `{COMMAND}` at once"
    return Row("burst", name, times["ours"].p50, unit="s", baseline=times["peer"].p50, against="peer")


def _at_once(server: Server, count: int) -> None:
    server.call_at_once(count, "exec_bash", command=COMMAND)


def _ten_at_a_time(ssh: Mux) -> None:
    with ThreadPoolExecutor(MAX_SESSIONS) as pool:
        list(pool.map(lambda _: ssh.run(COMMAND), range(MANY)))
