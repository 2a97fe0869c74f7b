"""Faults against jobs and the watchdog, one function each: it gives how much it hit.

Each leaves the scene so that, in the end, all can become well again.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

from tests.support.pace import Deadline

from .scene import SESSION, Missed, Scene, end, send

Fault = Callable[[Scene, Random], int]
# The exit code of a watchdog that finds another one at work.
GIVES_WAY = 3
# A job makes ten steps in a second.
STEP_S = 10.0


def kill_daemon(scene: Scene, chance: Random) -> int:
    scene.see_to_a_guard()
    hits = scene.kill(scene.daemons)
    time.sleep(chance.uniform(0, 1.5))
    scene.guard()
    return hits


def end_daemon_in_order(scene: Scene, chance: Random) -> int:
    scene.see_to_a_guard()
    living = scene.living_daemons()
    for daemon in living:
        daemon.terminate()
        code = daemon.wait(30)
        # One that was told to end before it could listen to that dies of it.
        if code not in (0, -signal.SIGTERM):
            raise AssertionError(f"a watchdog that was told to end has ended with {code}")
    scene.guard()
    return len(living)


def two_daemons(scene: Scene, chance: Random) -> int:
    """Both at once; one gives way."""
    scene.see_to_a_guard()
    hits = scene.kill(scene.daemons)
    both = scene.guard(), scene.guard()
    code = scene.target(lambda: [it.poll() for it in both if it.poll() is not None], "watchdog that gives way")
    # A hub that answers somebody may be the watchdog: then both give way.
    if set(code) != {GIVES_WAY} or (len(code) > 1 and not set(scene.hubs()) - {it.pid for it in both}):
        raise AssertionError(f"of two watchdogs, one has ended with {code}")
    return hits


def kill_tmux(scene: Scene, chance: Random) -> int:
    hits = send(scene.target(lambda: scene.processes("tmux"), "tmux"), signal.SIGKILL)
    await_step(scene)
    return hits


def kill_session(scene: Scene, chance: Random) -> int:
    def ended() -> bool:
        return as_user(scene, "tmux", "kill-session", "-t", f"={SESSION}") == 0

    hits = int(scene.target(ended, "session of tmux"))
    await_step(scene)
    return hits


def kill_keeper(scene: Scene, chance: Random) -> int:
    def keepers() -> list[int]:
        found = scene.machine.processes()
        return [pid for pid, command in found.items() if "keeper.py" in command and not command.startswith("tmux")]

    hits = send(scene.target(keepers, "keeper"), signal.SIGKILL)
    await_step(scene)
    return hits


def await_step(scene: Scene) -> None:
    """Wait until the job has met what was done to it.

    One without a keeper dies when it prints. Before that it could come to its end by itself, and nobody would know.
    """
    running_then, file, deadline = running(scene), scene.work / "checkpoint", Deadline(STEP_S)
    before = file.read_text() if file.exists() else ""
    steps = {before}
    while set(running_then) & set(running(scene)) and len(steps) < 3 and not deadline.has_passed():
        time.sleep(0.02)
        steps.add(file.read_text() if file.exists() else before)


def shut_down(scene: Scene, chance: Random) -> int:
    """As a machine does it: TERM to all, a moment, KILL, another boot."""
    scene.target(lambda: running(scene), "job")
    hits = send(scene.machine.processes(), signal.SIGTERM)
    time.sleep(chance.uniform(0.05, 0.6))
    scene.reboot()
    return hits


def reboot(scene: Scene, chance: Random) -> int:
    scene.target(lambda: running(scene), "job")
    return scene.reboot()


def kill_sshd(scene: Scene, chance: Random) -> int:
    scene.machine.stop()
    time.sleep(chance.uniform(0, 2))
    scene.machine.start()
    return 1


def kill_sessions(scene: Scene, chance: Random) -> int:
    hits = len(scene.target(scene.machine.sessions, "session of sshd"))
    scene.machine.kill_sessions()
    return hits


def cut_line(scene: Scene, chance: Random) -> int:
    hits = int(scene.target(lambda: scene.line.connections, "connection"))
    scene.line.cut()
    return hits


def line_down(scene: Scene, chance: Random) -> int:
    hits = int(scene.target(lambda: scene.line.connections, "connection"))
    scene.line.refuse()
    scene.line.cut()
    time.sleep(chance.uniform(0.5, 4))
    scene.line.refuse(False)
    return hits


def freeze_line(scene: Scene, chance: Random) -> int:
    hits = int(scene.target(lambda: scene.line.connections, "connection"))
    scene.line.freeze()
    time.sleep(chance.uniform(0.5, 7))
    scene.line.thaw()
    return hits


def jump_clock(scene: Scene, chance: Random) -> int:
    """To the daemon, a clock that jumped is a row whose times are far off."""
    jump = chance.choice((-86400.0, -3600.0, 3600.0, 86400.0))

    def jumped() -> int:
        with suppress(sqlite3.Error), sqlite3.connect(scene.state / "state.db", timeout=10) as connection:
            return connection.execute("UPDATE watches SET due = due + ?", (jump,)).rowcount
        return 0

    return int(scene.target(jumped, "watch"))


def fill_disk_here(scene: Scene, chance: Random) -> int:
    """The state folder's disk has no byte left for a while."""
    return fill(scene.state / "filler", chance)


def fill_disk_there(scene: Scene, chance: Random) -> int:
    """The same for the jobs' folder on the machine."""
    return fill(scene.machine.home / ".local/state/remote-sandbox/filler", chance)


def fill(path: Path, chance: Random) -> int:
    written = 0
    try:
        with suppress(OSError), path.open("wb", buffering=0) as filler:
            while True:
                written += filler.write(bytes(4096))
        time.sleep(chance.uniform(0.5, 3))
    finally:
        path.unlink()
    return written


def kill_server_that_answers(scene: Scene, chance: Random) -> int:
    """Somebody asks in between, as agents do; a server is killed while it answers."""
    wire = scene.serve()
    wire.start_call("check_background_task", tmux_session=SESSION)
    time.sleep(chance.uniform(0, 0.5))
    return scene.kill(scene.servers)


def kill_hub(scene: Scene, chance: Random) -> int:
    """One that answers a question about the job; it may be the watchdog at that moment."""
    wire = scene.serve()
    wire.start_call("check_background_task", tmux_session=SESSION)
    hits = int(scene.target(lambda: end(scene.hubs()), "hub"))
    scene.kill(scene.servers)
    return hits


def kill_job(scene: Scene, chance: Random) -> int:
    """The job itself: then it has ended, and stays so."""
    return send(scene.target(lambda: running(scene), "job"), signal.SIGKILL)


def running(scene: Scene) -> list[int]:
    """The job's own processes."""
    word = f"job.py {scene.work}"
    return [pid for pid, it in scene.machine.processes().items() if it.startswith("python3 job.py") and word in it]


def as_user(scene: Scene, *argv: str) -> int:
    import pwd

    user = pwd.getpwuid(scene.machine.uid)
    environment = {"HOME": user.pw_dir, "PATH": os.environ["PATH"], "USER": user.pw_name}
    return subprocess.run(
        argv,
        user=user.pw_uid,
        group=user.pw_gid,
        extra_groups=(),
        env=environment,
        cwd="/",
        capture_output=True,
        check=False,
    ).returncode


def play(scene: Scene, fault: Fault, chance: Random) -> None:
    """Make a fault, and note it. Raises Missed."""
    begun = time.monotonic()
    scene.under_way = fault.__name__, begun
    try:
        hits = fault(scene, chance)
    except Missed as missed:
        raise Missed(f"{fault.__name__}: {missed}") from None
    scene.record(fault.__name__, begun, hits)


# A disk that is full, and a process that was killed, may each lose a notification: it is recorded as not sent.
LOSES_NOTICES = frozenset({"kill_daemon", "two_daemons", "end_daemon_in_order", "kill_hub", "fill_disk_here"})
FAULTS: tuple[Fault, ...] = (
    *(kill_daemon, kill_daemon, end_daemon_in_order, two_daemons),
    *(kill_tmux, kill_session, kill_keeper, shut_down, reboot),
    *(kill_sshd, kill_sessions, cut_line, line_down, freeze_line),
    *(jump_clock, fill_disk_here, fill_disk_there, kill_server_that_answers, kill_hub),
)
