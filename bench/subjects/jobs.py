"""Background jobs: how many round trips a start and a look take, and what a watchdog with many watches costs."""

from __future__ import annotations

import itertools
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.line import ThreadedLine
from tests.support.sshd import wait_until

from remote_sandbox_mcp.far.jobs.state import listed_children
from remote_sandbox_mcp.local.processes.locks import holder

from ..client import Server
from ..host import peak, settled
from ..measure import in_turns, timed
from ..report import Row, Target
from ..stage import ALONE, OURS, Stage, entry

ROUND_TRIP_MS = 20
MACHINES, WATCHES, INTERVAL_S = 20, 1000, 300
IDLE_S = 30
TICK = os.sysconf("SC_CLK_TCK")
_names = itertools.count(1)


PROCESSES = 1600


def rows(stage: Stage) -> Iterator[Row]:
    yield from _distance(stage)
    yield _crowded(stage)
    yield from _watchdog(stage)


def _distance(stage: Stage) -> Iterator[Row]:
    sshd = stage.machine()
    with (
        ThreadedLine(sshd.port, rtt_s=ROUND_TRIP_MS / 1000) as line,
        stage.ours([entry(sshd)]) as near,
        stage.ours([entry(sshd, line.port)]) as far,
        stage.peers([entry(sshd, line.port)]) as peer,
    ):
        near.call("exec_bash_background", command="sleep 600", session_name="looked-at", watch=False)
        servers = {"near": near, "far": far} | ({"peer": peer} if peer else {})
        starts = {name: timed(_start(server)) for name, server in servers.items()}
        looks = {name: timed(_look(server)) for name, server in servers.items()}
        for warm in (*starts.values(), *looks.values()):
            warm()
        rounds = stage.rounds(8, 2)
        for what, contestants, most in (("start a job", starts, 2), ("look at a job", looks, 1)):
            times = in_turns(contestants, rounds=rounds, batch=2)
            trips = (times["far"].p50_ms - times["near"].p50_ms) / ROUND_TRIP_MS
            yield Row(
                "jobs",
                f"round trips to {what}",
                max(0.0, trips),
                unit="",
                # Half a trip is what the two medians may be apart by chance.
                target=Target(most + 0.5),
                note=f"{times['near'].p50_ms:.0f} ms next door, {times['far'].p50_ms:.0f} ms at {ROUND_TRIP_MS} ms",
            )
            if "peer" in times:
                yield Row(
                    "jobs",
                    f"{what} at {ROUND_TRIP_MS} ms round trip, p50",
                    times["far"].p50_ms,
                    baseline=times["peer"].p50_ms,
                    against="the peer",
                )
    sshd.reset()


def _crowded(stage: Stage) -> Row:
    """A look at a job, with its use of CPU and memory, on a machine where very many processes run."""
    sshd = stage.machine()
    with stage.ours([entry(sshd)]) as server:
        server.call("exec_bash_background", command="sleep 600", session_name="looked-at", watch=False)
        look = _look(server)
        in_turns({"few": timed(look)}, rounds=1, batch=3)
        few = in_turns({"few": timed(look)}, rounds=stage.rounds(20, 5))["few"]
        fork = f"import os, time; [os.fork() or time.sleep(600) for _ in range({PROCESSES})]; time.sleep(600)"
        with subprocess.Popen(["python3", "-ISc", fork], start_new_session=True) as others:
            try:
                wait_until(lambda: len(listed_children(others.pid)) == PROCESSES, what="the processes", seconds=60)
                many = in_turns({"many": timed(look)}, rounds=stage.rounds(20, 5))["many"]
            finally:
                os.killpg(others.pid, signal.SIGKILL)
    sshd.reset()
    name = f"look at a job beside {PROCESSES:,} processes, p50"
    return Row(
        "jobs", name, many.p50_ms, baseline=few.p50_ms, against="beside few", target=Target(10),
        note=f"p99 {many.p99_ms:.0f} ms, and {few.p99_ms:.0f} ms beside few",
    )  # fmt: skip


def _start(server: Server) -> Callable[[], object]:
    more = {"watch": False, "ensure_watchdog": False}

    def start() -> None:
        server.call("exec_bash_background", command="true", session_name=f"bench-{next(_names)}", **more)

    return start


def _look(server: Server) -> Callable[[], object]:
    return lambda: server.call("check_background_task", tmux_session="looked-at", last_n_lines=5)


def _watchdog(stage: Stage) -> Iterator[Row]:
    machines, watches = (3, 30) if stage.quick else (MACHINES, WATCHES)
    fleet = stage.machines(machines)
    environment = stage.environment([entry(sshd) for sshd in fleet])
    state = Path(environment["XDG_STATE_HOME"]) / "remote-sandbox-mcp"
    with stage.server(ALONE, environment) as server:
        for sshd in fleet:
            order = {"command": "sleep 3600", "session_name": "guarded", "interval_s": 3600}
            server.call("exec_bash_background", sandbox_name=sshd.name, ensure_watchdog=False, **order)
    _multiply(state, watches // machines)
    with _daemon(environment, state) as pid:
        _wait_for_round(state, pid)
        costs = [_round(state, pid) for _ in range(stage.rounds(5, 2))]
        idle = _share(pid, stage.rounds(IDLE_S, 3))
        _spread(state)
        busy = _share(pid, stage.rounds(IDLE_S, 5))
        memory = peak(pid) * 1024 / 1e6
    name = f"{watches} watches on {machines} machines"
    yield Row("jobs", f"CPU of a watchdog's round, {name}", sorted(costs)[len(costs) // 2], unit="s", target=Target(2))
    yield Row("jobs", f"the watchdog's peak memory, {name}", memory, unit="MB", target=Target(120))
    yield Row("jobs", f"the watchdog's share of a core when idle, {name}", idle * 100, unit="%", target=Target(1))
    name = f"the watchdog's share of a core, {name} every {INTERVAL_S} s"
    yield Row("jobs", name, busy * 100, unit="%", target=Target(1))
    for sshd in fleet:
        sshd.reset()


def _spread(state: Path) -> None:
    """Let each be looked at every so many seconds, and all at different times."""
    with sqlite3.connect(state / "state.db", timeout=30) as connection:
        ids = [row[0] for row in connection.execute("SELECT id FROM watches")]
        due = [(INTERVAL_S, time.time() + INTERVAL_S * at / len(ids), each) for at, each in enumerate(ids)]
        connection.executemany("UPDATE watches SET interval_s = ?, due = ? WHERE id = ?", due)
    # It notices the change.
    time.sleep(5)


def _multiply(state: Path, times: int) -> None:
    """As many watches over each job; what they cost the watchdog is the same as for so many jobs."""
    with sqlite3.connect(state / "state.db") as connection:
        names = [row[1] for row in connection.execute("PRAGMA table_info(watches)") if row[1] != "id"]
        columns = ", ".join(names)
        originals = connection.execute(f"SELECT {columns} FROM watches").fetchall()
        marks = ", ".join("?" * len(names))
        for row in originals:
            connection.executemany(f"INSERT INTO watches ({columns}) VALUES ({marks})", [row] * (times - 1))


@contextmanager
def _daemon(environment: dict[str, str], state: Path) -> Iterator[int]:
    """The process that is the watchdog: this one, or a hub that was started meanwhile to be it."""
    process = subprocess.Popen([*OURS, "watchdog", "run"], env=environment, stdin=subprocess.DEVNULL)
    try:
        wait_until(lambda: holder(state / "watchdog.lock") is not None, what="a watchdog", seconds=60)
        watchdog = holder(state / "watchdog.lock")
        assert watchdog
        settled(watchdog.pid)
        yield watchdog.pid
        os.kill(watchdog.pid, signal.SIGTERM)
    finally:
        process.terminate()
        process.wait(10)


def _round(state: Path, pid: int) -> float:
    """The CPU seconds of one round over everything, all of it due at once."""
    before = _cpu(pid)
    _wait_for_round(state, pid)
    return _cpu(pid) - before


def _wait_for_round(state: Path, pid: int) -> None:
    with sqlite3.connect(state / "state.db", timeout=30) as connection:
        begun = time.time()
        connection.execute("UPDATE watches SET due = 0")
        connection.commit()
        deadline = time.monotonic() + 60
        while connection.execute("SELECT COUNT(*) FROM watches WHERE checked < ?", (begun,)).fetchone()[0]:
            assert time.monotonic() < deadline, "the watchdog did not get round"
            time.sleep(0.1)


def _share(pid: int, seconds: float) -> float:
    before, begun = _cpu(pid), time.monotonic()
    time.sleep(seconds)
    return (_cpu(pid) - before) / (time.monotonic() - begun)


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK
