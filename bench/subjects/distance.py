"""A command on a machine far away: one round trip and little else."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.line import ThreadedLine
from tests.support.sshd import HOST

from ..client import succeeded
from ..measure import in_turns, timed
from ..mux import mux
from ..report import Row, Target
from ..stage import Stage, entry

ROUND_TRIPS_MS = (20, 100)
ALLOWANCE_MS = 6


def rows(stage: Stage) -> Iterator[Row]:
    for round_trip_ms in ROUND_TRIPS_MS:
        yield _row(stage, round_trip_ms)


def _row(stage: Stage, round_trip_ms: int) -> Row:
    sshd = stage.machine()
    with (
        ThreadedLine(sshd.port, rtt_s=round_trip_ms / 1000) as line,
        stage.ours([entry(sshd, line.port)]) as ours,
        mux(sshd, stage.folder, line.port) as ssh,
        _echo(round_trip_ms) as echo,
    ):
        succeeded(ours.call("exec_bash", command="true"))
        times = in_turns(
            {
                "ours": timed(lambda: ours.call("exec_bash", command="true")),
                "ssh": timed(lambda: ssh.run("true")),
                "line": timed(lambda: _there_and_back(echo)),
            },
            rounds=stage.rounds(12, 3),
            batch=4,
        )
    return Row(
        "distance",
        f"exec `true` at {round_trip_ms} ms round trip, p50",
        times["ours"].p50_ms,
        baseline=times["ssh"].p50_ms,
        against="ssh, ControlMaster",
        target=Target(round_trip_ms + ALLOWANCE_MS),
        note=f"the simulated line alone takes {times['line'].p50_ms:.1f} ms",
        detail={"ours_spread_ms": times["ours"].spread_ms, "line_ms": times["line"].p50_ms},
    )


@contextmanager
def _echo(round_trip_ms: int) -> Iterator[socket.socket]:
    """A connection over such a line to somebody who sends everything back at once."""
    with socket.create_server((HOST, 0)) as server:
        threading.Thread(target=_send_back, args=(server,), daemon=True).start()
        with (
            ThreadedLine(server.getsockname()[1], rtt_s=round_trip_ms / 1000) as line,
            socket.create_connection((HOST, line.port)) as near,
        ):
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield near


def _there_and_back(near: socket.socket) -> None:
    near.sendall(b".")
    near.recv(1)


def _send_back(server: socket.socket) -> None:
    peer, _ = server.accept()
    with peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while data := peer.recv(64):
                peer.sendall(data)
        except OSError:
            # The line was cut, which is how it ends.
            pass
