"""What can go wrong, one function each. Each leaves the scene so that, in the end, all can become well again."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from random import Random

from .scene import SESSION, Scene

Fault = Callable[[Scene, Random], None]


def kill_daemon(scene: Scene, chance: Random) -> None:
    scene.kill(scene.daemons)
    time.sleep(chance.uniform(0, 1.5))
    scene.guard()


def end_daemon_in_order(scene: Scene, chance: Random) -> None:
    for daemon in scene.daemons:
        daemon.terminate()
        daemon.wait(20)
    scene.guard()


def two_daemons(scene: Scene, chance: Random) -> None:
    """Both at once; one gives way."""
    scene.kill(scene.daemons)
    scene.guard()
    scene.guard()


def kill_tmux(scene: Scene, chance: Random) -> None:
    scene.strike("tmux")


def kill_session(scene: Scene, chance: Random) -> None:
    as_user(scene, "tmux", "kill-session", "-t", f"={SESSION}")


def kill_keeper(scene: Scene, chance: Random) -> None:
    for pid in scene.processes("keeper.py"):
        if "tmux" not in scene.machine.processes().get(pid, ""):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def shut_down(scene: Scene, chance: Random) -> None:
    """As a machine does it: TERM to all, a moment, KILL, another boot."""
    for pid in scene.machine.processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    time.sleep(chance.uniform(0.05, 0.6))
    scene.reboot()


def reboot(scene: Scene, chance: Random) -> None:
    scene.reboot()


def kill_sshd(scene: Scene, chance: Random) -> None:
    scene.machine.stop()
    time.sleep(chance.uniform(0, 2))
    scene.machine.start()


def kill_sessions(scene: Scene, chance: Random) -> None:
    scene.machine.kill_sessions()


def cut_line(scene: Scene, chance: Random) -> None:
    scene.line.cut()


def line_down(scene: Scene, chance: Random) -> None:
    scene.line.refuse()
    scene.line.cut()
    time.sleep(chance.uniform(0.5, 4))
    scene.line.refuse(False)


def freeze_line(scene: Scene, chance: Random) -> None:
    scene.line.freeze()
    time.sleep(chance.uniform(0.5, 7))
    scene.line.thaw()


def jump_clock(scene: Scene, chance: Random) -> None:
    """To the daemon, a clock that jumped is a row whose times are far off."""
    jump = chance.choice((-86400.0, -3600.0, 3600.0, 86400.0))
    with suppress(sqlite3.Error), sqlite3.connect(scene.state / "state.db", timeout=10) as connection:
        connection.execute("UPDATE watches SET due = due + ?", (jump,))


def fill_disk_here(scene: Scene, chance: Random) -> None:
    """The state folder's disk has no byte left for a while."""
    fill(scene.state / "filler", chance)


def fill_disk_there(scene: Scene, chance: Random) -> None:
    """The same for the jobs' folder on the machine."""
    folder = scene.machine.home / ".local/state/remote-sandbox"
    if folder.is_dir():
        fill(folder / "filler", chance)


def fill(file: object, chance: Random) -> None:
    path = str(file)
    try:
        with suppress(OSError), open(path, "wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))
        time.sleep(chance.uniform(0.5, 3))
    finally:
        os.unlink(path)


def look(scene: Scene, chance: Random) -> None:
    """Somebody asks in between, as agents do; a server is killed while it answers."""
    wire = scene.serve()
    wire.start_call("check_background_task", tmux_session=SESSION)
    time.sleep(chance.uniform(0, 0.5))
    scene.kill(scene.servers)


def as_user(scene: Scene, *argv: str) -> None:
    import pwd

    user = pwd.getpwuid(scene.machine.uid)
    environment = {"HOME": user.pw_dir, "PATH": os.environ["PATH"], "USER": user.pw_name}
    subprocess.run(
        argv,
        user=user.pw_uid,
        group=user.pw_gid,
        extra_groups=(),
        env=environment,
        cwd="/",
        capture_output=True,
        check=False,
    )


FAULTS: tuple[Fault, ...] = (
    *(kill_daemon, kill_daemon, end_daemon_in_order, two_daemons),
    *(kill_tmux, kill_session, kill_keeper, shut_down, reboot),
    *(kill_sshd, kill_sessions, cut_line, line_down, freeze_line),
    *(jump_clock, fill_disk_here, fill_disk_there, look),
)
