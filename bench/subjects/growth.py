"""What does not grow with use: calls after thousands of calls, jobs and lines; what these leave; the hub's memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.support.sshd import wait_until

from .. import trees
from ..client import Server, succeeded
from ..host import settled
from ..measure import Times, in_turns, timed
from ..report import Row, Target
from ..stage import OURS, Stage, entry
from ..sync import Tool, grounds

PART = 10
FILES, MOST_MB = 200_000, 110


def rows(stage: Stage) -> Iterator[Row]:
    sshd, calls = stage.machine(), 500 if stage.quick else 5000
    sshd.reset()
    others = sshd.processes()
    with stage.server(OURS, stage.environment([entry(sshd)])) as server:
        succeeded(server.call("exec_bash", command="true"))
        parts = [timed(lambda: _call(server, calls // PART))() for _ in range(PART)]
        outposts = sshd.processes().keys() - others.keys()
    yield Row(
        "growth",
        f"{calls:,} calls in a row: time at the end, against that at the beginning",
        parts[-1],
        unit="s",
        baseline=parts[0],
        against=f"the first {calls // PART} calls",
        target=Target(1 / 0.97, of_ratio=True),
        detail={"seconds": parts},
    )
    # The outpost removes the folders when its line has ended.
    wait_until(lambda: not sshd.sessions() and not outposts & sshd.processes().keys(), what="all to end", seconds=60)
    left = len(list(Path(f"/tmp/remote-sandbox-{sshd.uid}").glob("run-*")))
    yield Row("growth", "folders of runs that these calls left there", left, unit="", target=Target(300))
    yield _many_jobs(stage)
    yield _long_log(stage)
    yield _after_large_sync(stage)


def _after_large_sync(stage: Stage) -> Row:
    """What the hub keeps of a large tree: nothing but what the next sync needs."""
    count, folders = (5_000, 50) if stage.quick else (FILES, 2_000)
    with grounds("growth", stage) as here, stage.ours([entry(here.sshd)]) as server:
        succeeded(server.call("exec_bash", command="true"))
        before = settled(server.worker)
        source = here.plant(lambda root: trees.scatter(root, count, 16, folders))
        Tool(server, here.sshd.name).up(source, here.far / "copy")
        after = settled(server.worker)
    return Row(
        "growth",
        f"the hub's memory after a sync of {count:,} files",
        after * 1024 / 1e6,
        unit="MB",
        baseline=before * 1024 / 1e6,
        against="before it",
        target=Target(MOST_MB),
        out_of_reach=stage.quick,
    )


def _long_log(stage: Stage) -> Row:
    """A look at a job whose log is very long, against one at a job that printed nothing."""
    sshd, size = stage.machine(), "20M" if stage.quick else "2G"
    with stage.ours([entry(sshd)]) as server:
        for name, command in (("quiet", "sleep 600"), ("loud", f"yes a line of a log | head -c {size}; sleep 600")):
            server.call("exec_bash_background", command=command, session_name=name, watch=False)
        looks = {
            name: timed(partial(server.call, "check_background_task", tmux_session=name, last_n_lines=50))
            for name in ("quiet", "loud")
        }
        log = server.call("check_background_task", tmux_session="loud", last_n_lines=1)["log_file"]
        wanted = int(size[:-1]) * {"M": trees.MIB, "G": trees.GIB}[size[-1]]
        wait_until(lambda: Path(log).stat().st_size >= wanted, what="the log", seconds=120)
        times = in_turns(looks, rounds=stage.rounds(20, 4))
    sshd.reset()
    Path(log).unlink(missing_ok=True)
    return Row(
        "growth", f"look at a job with a log of {size[:-1]} {size[-1]}iB, p50", times["loud"].p50_ms,
        baseline=times["quiet"].p50_ms, against="an empty log", target=Target(1.5, of_ratio=True),
    )  # fmt: skip


def _many_jobs(stage: Stage) -> Row:
    """One client's list of jobs after hundreds of them, against that after a few."""
    sshd, count = stage.machine(), 50 if stage.quick else 500
    with stage.ours([entry(sshd)]) as server:

        def start(numbers: range) -> Times:
            for number in numbers:
                name = f"grown-{number}"
                server.call("exec_bash_background", command="true", session_name=name, watch=False)
            return in_turns(
                {"look": timed(lambda: server.call("check_background_task", tmux_session="grown-0"))}, rounds=20
            )["look"]

        few = start(range(5))
        many = start(range(5, count))
    sshd.reset()
    return Row(
        "growth", f"look at a job after {count} jobs, p50", many.p50_ms, baseline=few.p50_ms, against="after 5",
        target=Target(1.5, of_ratio=True),
    )  # fmt: skip


def _call(server: Server, count: int) -> None:
    for _ in range(count):
        server.call("exec_bash", command="true")
