"""Verbs of the command line through a warm hub, against a cold `ssh host true`: a person waits for each of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

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
    "push of 20 files, unchanged": Target(100),
    "completion of a sandbox's name": Target(100),
    "hook before a client's tool": Target(100),
}
FILES = 20


def rows(stage: Stage) -> Iterator[Row]:
    sshd = stage.machine()
    environ = stage.environment([entry(sshd)])
    project = _project(Path(environ["HOME"]) / "project")
    asked = json.dumps({"tool_name": "Bash", "cwd": str(project), "tool_input": {"command": "true"}}).encode()
    special: Mapping[str, tuple[Sequence[str], bytes]] = {
        "push of 20 files, unchanged": (["push", str(project), f"{sshd.name}:bench-push"], b""),
        "completion of a sandbox's name": (["__complete", "exec", "--on", ""], b""),
        "hook before a client's tool": (["hook", "pre-tool-use"], asked),
    }
    contestants: dict[str, Contestant] = {}
    for verb in VERBS:
        words, given = special.get(verb, (verb.split(), b""))
        contestants[verb] = timed(_run(words, given, environ))
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


def _project(folder: Path) -> Path:
    folder.mkdir()
    for number in range(FILES):
        (folder / f"{number}.py").write_text(f"print({number})\n")
    return folder


def _run(words: Sequence[str], given: bytes, environ: Mapping[str, str]) -> Callable[[], object]:
    command = [*OURS, *words]
    return lambda: subprocess.run(command, env=environ, input=given, capture_output=True, check=True)
