"""Verbs of the command line through a warm hub, against a cold `ssh host true`: a person waits for each of them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping

from ..client import succeeded
from ..measure import Contestant, in_turns, timed
from ..mux import fresh
from ..report import Row, Target
from ..stage import OURS, Stage, entry

VERBS = {
    "exec -- true": Target(0.4, of_ratio=True),
    "jobs list": Target(100),
    "jobs list --json": Target(100),
    "sandboxes": Target(100),
    "sandboxes --json": Target(100),
}


def rows(stage: Stage) -> Iterator[Row]:
    sshd = stage.machine()
    environ = stage.environment([entry(sshd)])
    contestants: dict[str, Contestant] = {verb: timed(_run(verb, environ)) for verb in VERBS}
    contestants["ssh"] = timed(lambda: fresh(sshd, "true"))
    with stage.server(OURS, environ) as stays:
        succeeded(stays.call("exec_bash", command="true"))
        in_turns(contestants, rounds=2)
        times = in_turns(contestants, rounds=stage.rounds(20, 4))
    for verb, target in VERBS.items():
        yield Row(
            "cli", verb, times[verb].p50_ms, baseline=times["ssh"].p50_ms, against="ssh, cold", target=target,
            note=f"p99 {times[verb].p99_ms:.0f} ms",
        )  # fmt: skip


def _run(verb: str, environ: Mapping[str, str]) -> Callable[[], object]:
    words = [*OURS, *verb.split()]
    return lambda: subprocess.run(words, env=environ, stdin=subprocess.DEVNULL, capture_output=True, check=True)
