"""What does not grow with use: the time of a call after thousands of calls, and what they leave on the machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.support.sshd import wait_until

from ..client import Server, succeeded
from ..measure import timed
from ..report import Row, Target
from ..stage import OURS, Stage, entry

PART = 10


def rows(stage: Stage) -> Iterator[Row]:
    sshd, calls = stage.machine(), 500 if stage.quick else 5000
    sshd.reset()
    with stage.server(OURS, stage.environment([entry(sshd)])) as server:
        succeeded(server.call("exec_bash", command="true"))
        parts = [timed(lambda: _call(server, calls // PART))() for _ in range(PART)]
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
    wait_until(lambda: not sshd.sessions(), what="the hub to end", seconds=60)
    left = len(list(Path(f"/tmp/remote-sandbox-{sshd.uid}").glob("run-*")))
    yield Row("growth", "folders of runs that these calls left there", left, unit="", target=Target(300))


def _call(server: Server, count: int) -> None:
    for _ in range(count):
        server.call("exec_bash", command="true")
