"""A command in a linked project: what keeping both sides the same adds to it, and what `rsync && ssh` takes instead."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.support.sshd import Sshd

from .. import rsync, trees
from ..client import Server, succeeded
from ..far import RTT_20, line
from ..measure import Times, in_turns, timed
from ..mux import Mux, mux
from ..problems import BenchError
from ..report import Row, Target
from ..stage import OURS, Stage, entry

WAIT_S = 50
CHECKPOINT = "results/checkpoint.bin"
# Where there may be no watches, folders are compared with what they showed before, as on network file systems.
WATCHES = "/proc/sys/fs/inotify/max_user_watches"
_edits = itertools.count(1)


@dataclass(frozen=True)
class Scene:
    """A linked project of some thousand files, a client in it, and one of the same hub's that is somewhere else."""

    project: Path
    remote: Path
    inside: Server
    outside: Server
    ssh: Mux

    def edit(self) -> None:
        """As an editor does it: a new file takes the old one's place."""
        fresh = self.project / ".edited"
        fresh.write_text(f"edit {next(_edits)}\n", encoding="utf-8")
        fresh.rename(self.project / "edited.txt")

    def rsync_and_ssh(self) -> None:
        rsync.over(self.ssh, options=("-a", "--delete", "--exclude=.git")).up(self.project, self.remote)
        self.ssh.run("true")


def rows(stage: Stage) -> Iterator[Row]:
    small, large = (500, 5_000) if stage.quick else (5_000, 100_000)
    unwatched = _Unwatched(stage)
    with _scene(stage, small, stage.machine(), OURS) as scene:
        yield from _unchanged(stage, scene, small, goal_ms=5)
        yield _one_edit(stage, scene, small)
        yield from _checkpoint(scene, 20 if stage.quick else 200)
    with _scene(stage, small, unwatched.machine, unwatched.command) as scene:
        yield from _unchanged(stage, scene, small, goal_ms=30, how=WITHOUT)
        yield _one_edit(stage, scene, small, how=WITHOUT)
    with _scene(stage, large, stage.machine(), OURS) as scene:
        yield from _unchanged(stage, scene, large, goal_ms=10)
        yield _switch(stage, scene, 1_000 if stage.quick else 10_000)
    with _scene(stage, large, unwatched.machine, unwatched.command) as scene:
        yield from _unchanged(stage, scene, large, goal_ms=250, how=WITHOUT)


WITHOUT = ", without inotify"
WHY = "; both sides compare every file, once for each command, and share the cores of this machine"


class _Unwatched:
    """A machine, and the command of a server, that may have no watches: both see another limit in /proc."""

    def __init__(self, stage: Stage) -> None:
        none = stage.folder / "no-watches"
        none.write_text("0\n", encoding="utf-8")
        self.machine = stage.fleet.machine("unwatched", mounts={WATCHES: none})
        own = ["--mount"] if os.geteuid() == 0 else ["--mount", "--map-root-user"]
        mounted = f'mount --bind "$0" {WATCHES} && exec "$@"'
        self.command = ["unshare", *own, "sh", "-c", mounted, str(none), *OURS]


@contextmanager
def _scene(stage: Stage, count: int, sshd: Sshd, command: Sequence[str]) -> Iterator[Scene]:
    project = stage.folder / f"project-{count}"
    if not project.exists():
        project.mkdir()
        trees.scatter(project, count, trees.KIB, max(1, count // 100))
        (project / "edited.txt").write_text("edit 0\n", encoding="utf-8")
    remote = sshd.home / project.name
    with line(sshd.port, RTT_20) as port, mux(sshd, stage.folder, port) as ssh:
        environment = stage.environment([entry(sshd, port)])
        inside = Server(command, environment, stage.folder / "servers.log", folder=project)
        with inside, stage.server(OURS, environment) as outside:
            inside.call("link_workspace", remote_path=f"{sshd.name}:{remote}", confirm=True)
            for server in (inside, outside):
                succeeded(server.call("exec_bash", command="true"))
            yield Scene(project, remote, inside, outside, ssh)
            inside.call("link_workspace", unlink=True)


def _unchanged(stage: Stage, scene: Scene, count: int, *, goal_ms: float, how: str = "") -> Iterator[Row]:
    times = in_turns(
        {
            "inside": timed(lambda: succeeded(scene.inside.call("exec_bash", command="true"))),
            "alone": timed(lambda: succeeded(scene.outside.call("exec_bash", command="true"))),
        },
        rounds=stage.rounds(40, 8),
    )
    by_hand = in_turns({"rsync": timed(scene.rsync_and_ssh)}, rounds=stage.rounds(7, 2))["rsync"]
    told = f"{times['inside'].p50_ms:.1f} ms, and {times['alone'].p50_ms:.1f} ms alone"
    yield Row(
        "workspace",
        f"exec `true` in an unchanged project of {count:,} files at RTT 20, more than exec alone, p50{how}",
        _more_ms(times["inside"], times["alone"]),
        target=Target(goal_ms),
        note=f"{told}, which is {times['inside'].p50 / times['alone'].p50:.2f} of it{WHY if how else ''}",
        detail={"inside_spread_ms": times["inside"].spread_ms, "alone_spread_ms": times["alone"].spread_ms},
    )
    yield Row(
        "workspace",
        f"the same, {count:,} files{how}",
        times["inside"].p50_ms,
        baseline=by_hand.p50_ms,
        against="rsync -a && ssh, ControlMaster",
        target=Target(1, of_ratio=True),
    )


def _one_edit(stage: Stage, scene: Scene, count: int, how: str = "") -> Row:
    """The edit comes right before the command, so nothing could send it ahead of it."""

    def edited() -> float:
        scene.edit()
        return timed(lambda: succeeded(scene.inside.call("exec_bash", command="true")))()

    def by_hand() -> float:
        scene.edit()
        return timed(scene.rsync_and_ssh)()

    unchanged = timed(lambda: succeeded(scene.inside.call("exec_bash", command="true")))
    times = in_turns({"edited": edited, "unchanged": unchanged}, rounds=stage.rounds(30, 6))
    hand = in_turns({"rsync": by_hand}, rounds=stage.rounds(7, 2))["rsync"]
    more = _more_ms(times["edited"], times["unchanged"])
    return Row(
        "workspace",
        f"one edited file of {count:,}, then exec `true` at RTT 20, p50{how}",
        times["edited"].p50_ms,
        baseline=hand.p50_ms,
        against="rsync -a && ssh, ControlMaster",
        target=Target(0.5, of_ratio=True),
        note=f"{more:.1f} ms more than in an unchanged project; one round trip is {RTT_20.round_trip_ms} ms",
        detail={"more_ms": more, "edited_spread_ms": times["edited"].spread_ms},
    )


def _switch(stage: Stage, scene: Scene, count: int) -> Row:
    """A branch switch that changes so many files, then a command; by hand, the same switch back."""
    git = ("git", "-C", str(scene.project), "-c", "user.name=Ann", "-c", "user.email=ann@example.org")

    def run(*words: str) -> None:
        subprocess.run([*git, *words], check=True, capture_output=True)

    run("init", "--quiet")
    run("add", ".")
    run("commit", "--quiet", "--message=one")
    run("switch", "--quiet", "--create=two")
    for number, file in enumerate(sorted(scene.project.rglob("*.bin"))[:count]):
        file.write_text(f"of another branch {number}\n", encoding="utf-8")
    run("commit", "--quiet", "--all", "--message=two")

    def switched(then: Callable[[], object]) -> float:
        run("switch", "--quiet", "-")
        return timed(then)()

    succeeded(scene.inside.call("exec_bash", command="true"))
    times = in_turns(
        {
            "inside": lambda: switched(lambda: succeeded(scene.inside.call("exec_bash", command="true"))),
            "rsync": lambda: switched(scene.rsync_and_ssh),
        },
        rounds=stage.rounds(3, 1),
    )
    return Row(
        "workspace",
        f"a branch switch that changed {count:,} files, then exec `true` at RTT 20, p50",
        times["inside"].p50_ms,
        baseline=times["rsync"].p50_ms,
        against="rsync -a && ssh, ControlMaster",
        target=Target(1.5, of_ratio=True),
        note="rsync does not look for edits over there, and would overwrite them",
    )


def _more_ms(one: Times, other: Times) -> float:
    """By how much the one takes longer, right beside the other."""
    return max(0.0, 1000 * median(a - b for a, b in zip(one.seconds, other.seconds, strict=True)))


def _checkpoint(scene: Scene, megabytes: int) -> Iterator[Row]:
    """A large result that comes back after the command's own: first whole, then what changed of it."""
    make = f"mkdir -p results && head -c {megabytes}000000 /dev/urandom > {CHECKPOINT}"
    change = f"dd if=/dev/urandom of={CHECKPOINT} bs=100000 count={megabytes // 10} seek=7 conv=notrunc status=none"
    _brought(scene, make)
    seconds, wire = _brought(scene, change)
    yield Row(
        "workspace",
        f"a result of {megabytes} MB that changed by 1 %: over the line",
        wire / 1e6,
        unit="MB",
        target=Target(megabytes * 0.05),
        note=f"the command's own result came after {1000 * seconds:.0f} ms, before the file",
    )


def _brought(scene: Scene, command: str) -> tuple[float, int]:
    """Seconds until the command's result, and bytes over the line until its file is here."""
    begun = time.perf_counter()
    said = succeeded(scene.inside.call("exec_bash", command=command))
    seconds = time.perf_counter() - begun
    found = re.search(r"check_file_transfer_task (\S+)", said.get("workspace", ""))
    if not found:
        raise BenchError(f"no transfer brings the file: {said}")
    task = found[1].rstrip(";")
    while (told := scene.inside.call("check_file_transfer_task", task_id=task, wait_s=WAIT_S))["status"] == "running":
        pass
    if told["status"] != "completed" or not os.path.getsize(scene.project / CHECKPOINT):
        raise BenchError(f"the file did not come: {told}")
    return seconds, int(told["result"]["wire_bytes"])
