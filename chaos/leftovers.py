"""What must not be left when a schedule is over: processes, files, descriptors, and stack traces in logs."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from tests.support.pace import Deadline
from tests.support.server import COMMAND

from .scene import Scene, descriptors

ENDS_S = 30.0
# What an idle hub holds open: its lock, sockets, loop, log and database, and two lines to one machine.
MOST_DESCRIPTORS = 48


def about_logs(scene: Scene) -> list[str]:
    """Stack traces in logs. A round of the watchdog that fails on a full disk is logged with its stack."""
    if any(it.fault == "fill_disk_here" for it in scene.strikes):
        return []
    found = {name: text for name, text in scene.logs().items() if "Traceback" in text}
    return [f"{name}: {text[text.index('Traceback') :][-1500:]}" for name, text in found.items()]


def about_descriptors(scene: Scene) -> list[str]:
    """What a hub still holds when its clients have gone: nothing that was handed to it."""
    found: list[str] = []
    for hub in scene.hubs():
        held: list[str] = []
        deadline = Deadline(10)
        while not deadline.has_passed():
            held = descriptors(hub)
            if len(held) <= MOST_DESCRIPTORS and not handed(scene, held):
                break
            time.sleep(0.2)
        found += [f"the hub still holds {name}" for name in handed(scene, held)]
        if len(held) > MOST_DESCRIPTORS:
            found.append(f"the hub holds {len(held)} descriptors: {sorted(held)}")
    return found


def handed(scene: Scene, held: list[str]) -> list[str]:
    """Streams of verbs, and files of the project."""
    return [name for name in held if name.startswith((f"{scene.home}/verb", f"{scene.home}/project"))]


def stop_hub(scene: Scene) -> list[str]:
    """End the hub as a person does; it must end well, and leave no process of ours, here or on the machine."""
    words = [COMMAND, "--config", str(scene.config), "hub", "stop", "--all"]
    done = subprocess.run(words, env=scene.environment(), capture_output=True, text=True, check=False, timeout=90)
    wrong = [f"hub stop ended with {done.returncode}: {done.stderr}"] if done.returncode else []
    deadline = Deadline(ENDS_S)
    while (here := scene.own_processes()) or scene.machine.processes():
        if deadline.has_passed():
            break
        time.sleep(0.1)
    there = scene.machine.processes()
    wrong += [f"left on this computer: {here}"] if here else []
    return wrong + ([f"left on the machine: {there}"] if there else [])


def about_files(scene: Scene, expected: frozenset[str]) -> list[str]:
    """Files that nobody asked for: where clients work, on the machine, and in the folder for temporary files."""
    found = [str(path) for path in scene.temporary.rglob("*")]
    found += [str(path) for path in scene.work.rglob("*") if not is_expected(path.relative_to(scene.work), expected)]
    found += [str(path) for path in scene.home.glob("project-*/*") if ".rs" in path.name or path.name.startswith(".")]
    return [f"left behind: {sorted(found)[:8]}"] if found else []


def is_expected(path: Path, expected: frozenset[str]) -> bool:
    return path.parts[0] in expected
