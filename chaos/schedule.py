"""One schedule: a job is started, faults strike at random moments, and in the end all must have come right."""

from __future__ import annotations

import sqlite3
import subprocess
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from .faults import FAULTS, kill_job
from .faults import play as strike
from .leftovers import about_logs
from .scene import SESSION, Scene
from .verdict import Evidence, complaints

QUIET_S = 90.0
STEPS = (10, 60)
CODES = (0, 0, 3)
# A job whose start was cut off has begun by then, or never will.
BEGUN_S = 8.0


def play(scene: Scene, seed: int, only: Collection[str] = ()) -> list[str]:
    """What was wrong in the end; nothing, if all is well. The same seed makes the same choices."""
    chance = Random(seed)
    scene.prepare()
    code = chance.choice(CODES)
    start_was_cut = start(scene, chance, code)
    scene.see_to_a_guard()
    job_was_killed = False
    if not start_was_cut or has_begun(scene):
        faults = [fault for fault in FAULTS if not only or fault.__name__ in only]
        for _ in range(chance.randint(1, 5)):
            time.sleep(chance.uniform(0, 1.5))
            strike(scene, chance.choice(faults), chance)
        job_was_killed = chance.random() < 0.15
        if job_was_killed:
            strike(scene, kill_job, chance)
    (scene.work / "enough").touch()
    seen = settle(scene, job_was_killed, start_was_cut, code)
    wrong = complaints(seen) + about_logs(scene)
    struck = [it.fault for it in scene.strikes]
    return [*wrong, *([f"after {', '.join(struck)}", f"seen: {seen}"] if wrong else [])]


def start(scene: Scene, chance: Random, code: int) -> bool:
    """Start the job through a server, which may be killed before it has answered: whether it was."""
    command = f"exec python3 job.py {scene.work} {chance.randint(*STEPS)} {code}"
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
        "webhook_url": scene.receiver.url,
    }
    wire, begun = scene.serve(), time.monotonic()
    if chance.random() < 0.3:
        wire.start_call("exec_bash_background", **order)
        time.sleep(chance.uniform(0, 0.6))
        scene.record("kill_server", begun, scene.kill(scene.servers))
        return True
    result = wire.call("exec_bash_background", **order)
    assert not result.get("isError"), result
    scene.kill(scene.servers)
    return False


def has_begun(scene: Scene) -> bool:
    deadline = time.monotonic() + BEGUN_S
    while not scene.testimony():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def settle(scene: Scene, job_was_killed: bool, start_was_cut: bool, code: int) -> Evidence:
    """Peace: everything works again, and the watch comes to its end."""

    def seen() -> Evidence:
        struck = frozenset(it.fault for it in scene.strikes)
        received = dict(scene.receiver.received)
        files = frozenset(it.name for it in (scene.state / "events").glob("*.json"))
        return Evidence(
            scene.testimony(), *written(scene), received, files, struck, job_was_killed, start_was_cut, code
        )

    deadline = time.monotonic() + QUIET_S
    scene.see_to_a_guard()
    while True:
        now = seen()
        over = now.watch is not None and now.watch["status"] != "active" and not now.undone
        never = start_was_cut and not now.starts and time.monotonic() > deadline - QUIET_S + BEGUN_S
        if over or never or time.monotonic() > deadline:
            # Whoever would start it once more has the time to.
            time.sleep(1.5)
            return seen()
        scene.see_to_a_guard()
        time.sleep(0.2)


def written(scene: Scene) -> tuple[dict[str, Any] | None, list[dict[str, Any]], list[dict[str, Any]]]:
    """The watch, its events, and what was to be done about them."""
    with suppress(sqlite3.Error):
        watches = scene.rows("SELECT * FROM watches")
        events = scene.rows("SELECT id, watch_id, type, payload FROM events ORDER BY id")
        effects = scene.rows("SELECT * FROM outbox WHERE kind = 'announce'")
        return (watches[0] if watches else None), events, effects
    return None, [], []


def mount_small(folder: Path) -> None:
    """A disk that can be filled."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m,mode=0777", "tmpfs", str(folder)], check=True)


def unmount(folder: Path) -> None:
    subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)
