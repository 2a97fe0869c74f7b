"""What another client notices while one asks for much at once: its commands beside the flood, p50 and p99."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..client import Server, succeeded
from ..measure import Times, in_turns, timed
from ..report import Row, Target
from ..stage import OURS, Stage, entry
from .output import print_much

MOST_MS = 40
MEGABYTE = "megabyte.txt"
FOLDERS = {"thousand": 1_000, "many": 10_000}


def rows(stage: Stage) -> Iterator[Row]:
    environment = stage.environment([entry(stage.machine())])
    with stage.server(OURS, environment) as busy, stage.server(OURS, environment) as other:
        for server in (busy, other):
            succeeded(server.call("exec_bash", command="true"))
        _plant(busy)
        yield from _answers(stage, busy)
        yield _sleeps(stage, busy, other)
        alone = in_turns({"alone": timed(lambda: other.call("exec_bash", command="true"))}, rounds=50)["alone"]
        for what, flood in _floods(stage, busy).items():
            yield _beside(what, flood, other, alone)


def _plant(server: Server) -> None:
    """A text of a megabyte, and two folders with many entries."""
    line = "an ordinary line of text, as people write it 0123456789 and so on"
    command = f"yes '{line}' | head -c 1000000 > {MEGABYTE}"
    for name, count in FOLDERS.items():
        command += f" && mkdir -p {name} && (cd {name} && seq -f file-%05g.txt {count} | xargs touch)"
    succeeded(server.call("exec_bash", command=command))


def _answers(stage: Stage, server: Server) -> Iterator[Row]:
    """Large answers, beside a command that prints nothing."""
    times = in_turns(
        {
            "exec": timed(lambda: server.call("exec_bash", command="true")),
            "read 1 MB": timed(lambda: _read(server)),
            "list 1,000 entries": timed(lambda: _list(server, "thousand", 1_000)),
        },
        rounds=stage.rounds(20, 4),
        batch=2,
    )
    for name, most in (("read 1 MB", 12), ("list 1,000 entries", 15)):
        yield Row(
            "fair", f"{name}, p50", times[name].p50_ms, baseline=times["exec"].p50_ms, against="exec `true`",
            target=Target(most), detail={"p99_ms": times[name].p99_ms},
        )  # fmt: skip


def _sleeps(stage: Stage, busy: Server, other: Server) -> Row:
    """The other client has a call at work all the time, so the busy one has only its share."""

    def beside() -> float:
        with _kept_busy(other):
            return timed(lambda: busy.call_at_once(100, "exec_bash", command="sleep 0.5"))()

    times = in_turns({"ours": beside}, rounds=stage.rounds(3, 1))["ours"]
    name = "100 calls of `sleep 0.5` of one client, while another is at work"
    return Row("fair", name, times.p50, unit="s", target=Target(0.8))


@contextmanager
def _kept_busy(server: Server) -> Iterator[list[float]]:
    """One command after another meanwhile; how long each took."""
    taken: list[float] = []
    is_over = threading.Event()

    def run() -> None:
        while not is_over.is_set():
            taken.append(timed(lambda: server.call("exec_bash", command="true"))())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield taken
    finally:
        is_over.set()
        thread.join()


def _floods(stage: Stage, busy: Server) -> dict[str, Callable[[], object]]:
    count = 60 if stage.quick else 300
    return {
        f"{count} x `true`": lambda: busy.call_at_once(count, "exec_bash", command="true"),
        f"{count} x `sleep 0.5`": lambda: busy.call_at_once(count, "exec_bash", command="sleep 0.5"),
        "reads of 1 MB": lambda: [_read(busy) for _ in range(40)],
        "lists of 10,000 entries": lambda: [_list(busy, "many", 10_000) for _ in range(20)],
        "100 MB of output": lambda: [print_much(busy) for _ in range(2)],
    }


def _beside(what: str, flood: Callable[[], object], other: Server, alone: Times) -> Row:
    flood()
    with _kept_busy(other) as taken:
        flood()
    times = Times(tuple(taken))
    return Row(
        "fair",
        f"exec `true` of another client beside {what}, p99",
        times.p99_ms,
        baseline=alone.p50_ms,
        against="its p50 alone",
        target=Target(MOST_MS),
        note=f"p50 {times.p50_ms:.1f} ms, worst {1000 * max(taken):.0f} ms, of {len(taken)} calls",
    )


def _read(server: Server) -> None:
    server.call("read_remote_file", remote_path=MEGABYTE, max_bytes=1_000_000)


def _list(server: Server, folder: str, most: int) -> None:
    server.call("list_remote_files", remote_path=folder, max_entries=most)
