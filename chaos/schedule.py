"""One schedule: a job is started, faults strike at random moments, and in the end all must have come right."""

from __future__ import annotations

import subprocess
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from .faults import FAULTS
from .scene import SESSION, Scene
from .verdict import Evidence, complaints

QUIET_S = 90.0
STEPS = (10, 60)


def play(scene: Scene, seed: int) -> list[str]:
    """What was wrong in the end; nothing, if all is well. The same seed makes the same choices."""
    chance = Random(seed)
    scene.prepare()
    start_was_cut = start(scene, chance)
    scene.see_to_a_guard()
    struck = []
    for _ in range(chance.randint(1, 5)):
        time.sleep(chance.uniform(0, 1.5))
        fault = chance.choice(FAULTS)
        struck.append(fault.__name__)
        fault(scene, chance)
    job_was_killed = chance.random() < 0.15
    if job_was_killed:
        struck.append("kill_job")
        scene.strike("job.py " + str(scene.work))
    seen = settle(scene, job_was_killed, start_was_cut)
    wrong = complaints(seen)
    return [*wrong, *([f"after {', '.join(struck)}", f"seen: {seen}"] if wrong else [])]


def start(scene: Scene, chance: Random) -> bool:
    """Start the job through a server, which may be killed before it has answered: whether it was."""
    command = f"exec python3 job.py {scene.work} {chance.randint(*STEPS)} {chance.choice((0, 0, 3))}"
    order: dict[str, Any] = {
        "command": command,
        "session_name": SESSION,
        "cwd": str(scene.work),
        "interval_s": 1,
        "auto_resume": True,
        "resume_command": command,
        "resume_delay_s": 0,
        "max_resume_attempts": 100,
        "checkpoint_path": "checkpoint",
        "ensure_watchdog": False,
        "notify_local": False,
    }
    wire = scene.serve()
    if chance.random() < 0.3:
        wire.start_call("exec_bash_background", **order)
        time.sleep(chance.uniform(0, 0.6))
        scene.kill(scene.servers)
        return True
    result = wire.call("exec_bash_background", **order)
    assert not result.get("isError"), result
    scene.kill(scene.servers)
    return False


def settle(scene: Scene, job_was_killed: bool, start_was_cut: bool) -> Evidence:
    """Peace: everything works again, and the watch comes to its end."""
    deadline = time.monotonic() + QUIET_S
    scene.see_to_a_guard()
    while True:
        seen = Evidence(scene.testimony(), *written(scene), job_was_killed, start_was_cut)
        over = seen.watch is not None and seen.watch["status"] != "active"
        never = start_was_cut and not seen.starts and time.monotonic() > deadline - QUIET_S + 8
        if over or never or time.monotonic() > deadline:
            # Whoever would start it once more has the time to.
            time.sleep(1.5)
            return Evidence(scene.testimony(), *written(scene), job_was_killed, start_was_cut)
        scene.see_to_a_guard()
        time.sleep(0.2)


def written(scene: Scene) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    import sqlite3

    with suppress(sqlite3.Error):
        watches = scene.rows("SELECT * FROM watches")
        return (watches[0] if watches else None), scene.rows("SELECT id, watch_id, type FROM events ORDER BY id")
    return None, []


def mount_small(folder: Path) -> None:
    """A disk that can be filled."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m,mode=0777", "tmpfs", str(folder)], check=True)


def unmount(folder: Path) -> None:
    subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)
