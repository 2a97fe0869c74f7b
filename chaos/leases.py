"""Schedules against leases of cards and the waiting list: several jobs want two cards while faults strike."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sqlite3
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from tests.support.cards import StandInCards, stand_in_cards
from tests.support.pace import Deadline, at_most

from . import faults
from .faults import play as strike
from .leftovers import about_logs
from .scene import Missed, Scene, end, send

OWNER = Path(__file__).with_name("owner.py")
CARDS, JOBS = 2, 6
# How long a job holds its cards: longer on a busy machine, or all have come to their end before the first fault.
HOLDS_S, MOST_HOLDS_S = 1.5, 8.0
# All that wait have had their turn by then; a machine that did not answer is asked again after half a minute.
QUIET_S = 150.0


@dataclass
class Wanted:
    """A job that was asked for; `is_cut`: whether it is there nobody knows, because the server died."""

    name: str
    gpus: int
    is_cut: bool = False


# Faults


def owners(scene: Scene) -> list[int]:
    """The commands that hold cards now."""
    word = f"owner.py {scene.work}"
    return [pid for pid, it in scene.machine.processes().items() if it.startswith("python3 owner.py") and word in it]


def kill_owner(scene: Scene, chance: Random) -> int:
    return int(scene.target(lambda: kill_one(owners(scene), chance), "job with cards"))


def kill_one(pids: list[int], chance: Random) -> int:
    """One of them; it may have come to its end just now."""
    return send(chance.sample(pids, 1), signal.SIGKILL) if pids else 0


def kill_keeper(scene: Scene, chance: Random) -> int:
    """The command goes on without it, and keeps its cards until it prints."""

    def keepers() -> list[int]:
        return [pid for pid, command in scene.machine.processes().items() if "keeper.py" in command]

    return int(scene.target(lambda: kill_one(keepers(), chance), "keeper"))


def reboot(scene: Scene, chance: Random) -> int:
    return int(scene.target(lambda: owners(scene) and scene.reboot(), "job with cards"))


def kill_while_starting(scene: Scene, chance: Random) -> int:
    """The watchdog, as soon as it has begun to start a job of the list: whether that job runs it can never say."""
    scene.see_to_a_guard()
    scene.target(lambda: [row for row in waiting(scene) if row.get("tried")], "start of a job of the list")
    time.sleep(chance.uniform(0, 0.2))
    hits = end(scene.hubs()) + scene.kill(scene.daemons)
    scene.guard()
    return hits


FAULTS = (
    *(kill_while_starting, kill_while_starting, kill_owner, kill_keeper, kill_keeper, reboot),
    *(faults.kill_daemon, faults.kill_daemon, faults.end_daemon_in_order, faults.two_daemons, faults.kill_hub),
    *(faults.kill_sshd, faults.kill_sessions, faults.cut_line, faults.line_down, faults.freeze_line),
)


# The schedule


def play(scene: Scene, seed: int, only: Collection[str] = ()) -> list[str]:
    """What was wrong in the end; nothing, if all is well. The same seed makes the same choices."""
    chance = Random(seed)
    scene.prepare()
    shutil.copy(OWNER, scene.work / "owner.py")
    with cards_of(scene) as cards:
        wanted = [start(scene, chance, number) for number in range(JOBS)]
        scene.is_over = partial(is_over, scene)
        scene.see_to_a_guard()
        chosen = [fault for fault in FAULTS if not only or fault.__name__ in only]
        for _ in range(chance.randint(1, 3)):
            time.sleep(chance.uniform(0, 1.5))
            try:
                strike(scene, chance.choice(chosen), chance)
            except Missed:
                # What comes after the last job strikes nothing; but something has to.
                if not (scene.strikes and is_over(scene)):
                    raise
                break
        settle(scene)
        wrong = [*complaints(scene, wanted), *left_locked(cards), *about_logs(scene)]
    struck = [it.fault for it in scene.strikes]
    return [*wrong, *([f"after {', '.join(struck)}", f"seen: {scene.testimony()}"] if wrong else [])]


@contextmanager
def cards_of(scene: Scene) -> Iterator[StandInCards]:
    """Cards of which the machine's user is told, as long as the schedule lasts."""
    start_up = scene.machine.home / ".bashrc"
    shells = start_up.read_text() if start_up.exists() else None
    with stand_in_cards(scene.home / "cards", CARDS) as cards:
        start_up.write_text(f"PATH={cards.bin}:$PATH; export PATH\n")
        try:
            yield cards
        finally:
            scene.machine.reset()
            if shells is None:
                start_up.unlink()
            else:
                start_up.write_text(shells)


def start(scene: Scene, chance: Random, number: int) -> Wanted:
    """Ask for a job through a server, which may be killed before it has answered."""
    job, seconds = Wanted(f"job{number}", chance.choice((1, 1, 1, 2))), min(at_most(HOLDS_S), MOST_HOLDS_S)
    order: dict[str, Any] = {
        "command": f"exec python3 owner.py {scene.work} {job.name} {seconds:.1f}", "session_name": job.name,
        "cwd": str(scene.work),
        "sandbox_name": "any", "gpus": job.gpus, "interval_s": 1, "ensure_watchdog": False, "notify_local": False,
    }  # fmt: skip
    wire, begun = scene.serve(), time.monotonic()
    if chance.random() < 0.25:
        wire.start_call("exec_bash_background", **order)
        time.sleep(chance.uniform(0, 0.6))
        scene.record("kill_server", begun, scene.kill(scene.servers))
        job.is_cut = True
    else:
        result = wire.call("exec_bash_background", **order)
        assert not result.get("isError"), result
        scene.kill(scene.servers)
    return job


def waiting(scene: Scene) -> list[dict[str, Any]]:
    with suppress(sqlite3.Error):
        return scene.rows("SELECT session, tried, reason FROM waiting WHERE state = 'waiting'")
    return [{"session": "unknown"}]


def is_over(scene: Scene) -> bool:
    return not waiting(scene) and not owners(scene)


def settle(scene: Scene) -> None:
    """Peace: everything works again, and all have their turn."""
    deadline, quiet = Deadline(QUIET_S), 0
    while quiet < 5 and not deadline.has_passed():
        scene.see_to_a_guard()
        time.sleep(0.3)
        quiet = quiet + 1 if is_over(scene) else 0


def complaints(scene: Scene, wanted: list[Wanted]) -> list[str]:
    """Every rule that was broken, in words."""
    said = scene.testimony()
    found = [line for line in said if line.startswith("two owners")]
    found += [f"{row['session']} still waits: {row}" for row in waiting(scene)]
    for job in wanted:
        starts = [line for line in said if line.startswith(f"start {job.name} ")]
        if len(starts) > 1:
            found.append(f"{job.name} was started {len(starts)} times")
        if not starts and not job.is_cut and not was_struck(scene):
            found.append(f"{job.name} was never started")
        found += [f"{job.name} wanted {job.gpus}: {line}" for line in starts if not line.endswith(f" on {job.gpus}")]
    return found


def was_struck(scene: Scene) -> bool:
    """Whether a job may have been killed in the moment between its start and its first word."""
    return any(it.fault in ("kill_owner", "kill_keeper", "reboot") for it in scene.strikes)


def left_locked(cards: StandInCards) -> list[str]:
    """Cards that somebody holds although nobody is left."""
    found = []
    for file in cards.files:
        if file.exists():
            fd = os.open(file, os.O_RDONLY)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                found.append(f"{file.name} is still leased: {file.read_text()}")
            finally:
                os.close(fd)
    return found
