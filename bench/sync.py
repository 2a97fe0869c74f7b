"""Ours and rsync side by side: the same trees to the same machine over the same line, each into targets of its own."""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Literal, Protocol

from tests.support.sshd import Sshd

from . import rsync, trees
from .client import Message, Server, succeeded
from .far import RTT_100, Distance, line
from .measure import Times, in_turns, timed
from .mux import fresh, mux
from .problems import BenchError
from .report import Row, Target, amount
from .stage import Stage, entry

Direction = Literal["up", "down"]
Sources = dict[Direction, Path]

OURS, RSYNC, PACKED = "ours", "rsync -a", "rsync -az"
OVER_MUX, AT_BEST = "rsync -a over a mux", "rsync -a --no-inc-recursive over a mux"

WAIT_S = 50
MEMORY = Path("/dev/shm")
ROOM = 8 * trees.GIB
_numbers = itertools.count(1)


class Copier(Protocol):
    """Makes a folder's contents on the other machine equal to those of one here, or the other way round."""

    def up(self, source: Path, target: Path) -> None: ...

    def down(self, source: Path, target: Path) -> None: ...


@dataclass(frozen=True)
class Tool:
    """Ours, as a client calls it: until it is done, in the background or not."""

    server: Server
    sandbox: str
    # More of its parameters on the way up.
    more: Mapping[str, bool] = field(default_factory=dict)

    def up(self, source: Path, target: Path) -> None:
        self._sync("sync_local_to_remote", local_path=str(source), remote_path=str(target), **self.more)

    def down(self, source: Path, target: Path) -> None:
        self._sync("sync_remote_to_local", remote_path=str(source), local_path=str(target))

    def _sync(self, tool: str, **more: str | bool) -> None:
        said = self.server.call(tool, **more, sandbox_name=self.sandbox)
        if said.get("mode") == "background":
            self._wait(said)

    def _wait(self, said: Message) -> None:
        task = said["task_id"]
        while said["status"] in ("queued", "running"):
            said = self.server.call("check_file_transfer_task", task_id=task, wait_s=WAIT_S)
        if said["status"] != "completed":
            raise BenchError(f"a transfer did not complete: {said}")


@dataclass(frozen=True)
class Grounds:
    """Where trees and their copies lie: one folder of ours, one of the other machine's user."""

    subject: str
    stage: Stage
    sshd: Sshd
    near: Path
    far: Path

    def plant(self, grow: Callable[[Path], None]) -> Path:
        """A tree on this machine."""
        root = self.near / f"tree-{next(_numbers)}"
        root.mkdir()
        grow(root)
        return root

    def plant_both(self, grow: Callable[[Path], None]) -> Sources:
        """The same tree on this machine, for the way up, and on the other, for the way down."""
        near = self.plant(grow)
        far = self.far / near.name
        rsync.alone(self.sshd).up(near, far)
        return {"up": near, "down": far}

    def remove(self, path: Path) -> None:
        if path.is_relative_to(self.far):
            fresh(self.sshd, f"rm -rf -- {shlex.quote(str(path))}")
        elif path.exists():
            shutil.rmtree(path)


@contextmanager
def grounds(subject: str, stage: Stage, *, in_memory: bool = True) -> Iterator[Grounds]:
    """In memory where there is room: ext4 takes ten times as long to make files where others were deleted lately."""
    sshd = stage.machine()
    in_memory = in_memory and MEMORY.exists() and shutil.disk_usage(MEMORY).free > ROOM
    near = Path(mkdtemp(prefix="bench-near-", dir=MEMORY if in_memory else stage.folder))
    far = (MEMORY if in_memory else sshd.home) / near.name.replace("near", "far")
    ready = Grounds(subject, stage, sshd, near, far)
    try:
        fresh(sshd, f"mkdir {shlex.quote(str(far))}")
        yield ready
    finally:
        ready.remove(far)
        ready.remove(near)


@dataclass
class Lane:
    """One contestant in one direction: from a source that all share into targets that are its own."""

    copy: Callable[[Path, Path], None]
    source: Path
    folder: Path
    remove: Callable[[Path], None]
    target: Path | None = None

    def first(self) -> float:
        """Into a folder that is not there yet; how long it took."""
        self.begin()
        return self.again()

    def begin(self) -> Path:
        """A target that is not there yet, instead of the last one."""
        self.clear()
        self.target = self.folder / f"target-{next(_numbers)}"
        return self.target

    def again(self) -> float:
        """Into the same folder as last time; how long it took."""
        target = self.target or self.begin()
        # What was written before is on the disk before the clock starts.
        os.sync()
        taken = timed(lambda: self.copy(self.source, target))()
        trees.check_equal(self.source, target)
        return taken

    def clear(self) -> None:
        if self.target:
            self.remove(self.target)
        self.target = None


@dataclass(frozen=True)
class Arena:
    """A machine at some distance, and everybody who can sync with it."""

    grounds: Grounds
    distance: Distance
    server: Server
    copiers: Mapping[str, Copier]

    @contextmanager
    def lanes(self, source: Path, direction: Direction, names: Collection[str]) -> Iterator[dict[str, Lane]]:
        lanes = {name: self._lane(self.copiers[name], source, direction) for name in names}
        try:
            yield lanes
        finally:
            for lane in lanes.values():
                lane.clear()

    def _lane(self, copier: Copier, source: Path, direction: Direction) -> Lane:
        grounds = self.grounds
        if direction == "up":
            return Lane(copier.up, source, grounds.far, grounds.remove)
        return Lane(copier.down, source, grounds.near, grounds.remove)


@contextmanager
def arena(grounds: Grounds, distance: Distance) -> Iterator[Arena]:
    """With connections that are open, and have been used, where a contestant keeps one."""
    stage, sshd = grounds.stage, grounds.sshd
    with (
        line(sshd.port, distance) as port,
        stage.ours([entry(sshd, port)]) as server,
        mux(sshd, stage.folder, port) as master,
    ):
        copiers: dict[str, Copier] = {
            OURS: rsync.over(master) if stage.stand_in else Tool(server, sshd.name),
            RSYNC: rsync.alone(sshd, port),
            PACKED: rsync.alone(sshd, port, options=("-az",)),
            OVER_MUX: rsync.over(master),
            AT_BEST: rsync.over(master, options=("-a", "--no-inc-recursive")),
        }
        succeeded(server.call("exec_bash", command="true", sandbox_name=sshd.name))
        ready = Arena(grounds, distance, server, copiers)
        _warm_up(ready)
        yield ready


def _warm_up(arena: Arena) -> None:
    for direction, source in arena.grounds.plant_both(lambda root: trees.scatter(root, 1, 1)).items():
        with arena.lanes(source, direction, (OURS, OVER_MUX)) as lanes:
            in_turns({name: lane.first for name, lane in lanes.items()}, rounds=1)


@dataclass(frozen=True)
class Limits:
    """The greatest ratios to rsync over a ControlMaster: of a sync into nothing, and of one with nothing to do."""

    first: float
    again: float


def first_and_again(arena: Arena, what: str, sources: Sources, limits: Limits, rounds: int) -> Iterator[Row]:
    """Both directions, into nothing and once more; rsync also in the ways that suit it better."""
    names = (OURS, RSYNC, OVER_MUX, *([AT_BEST] if arena.distance == RTT_100 else []))
    for direction, source in sources.items():
        with arena.lanes(source, direction, names) as lanes:
            times = in_turns({name: lane.first for name, lane in lanes.items()}, rounds=rounds)
            yield row(arena, f"{what} {direction}", times, limits.first, OVER_MUX)
            times = in_turns({name: lane.again for name, lane in lanes.items()}, rounds=rounds)
            yield row(arena, f"{what} {direction} again, unchanged", times, limits.again, OVER_MUX)


def row(arena: Arena, what: str, times: Mapping[str, Times], limit: float, against: str = RSYNC) -> Row:
    """Ours against one of the others; the rest is told in a note. A quick look at less data is not judged."""
    ours, baseline = times[OURS], times[against]
    others = {name: taken.p50 for name, taken in times.items() if name not in (OURS, against)}
    return Row(
        arena.grounds.subject,
        f"{what}, {arena.distance.name}",
        ours.p50,
        unit="s",
        baseline=baseline.p50,
        against=against,
        target=Target(limit, of_ratio=True),
        out_of_reach=arena.grounds.stage.quick,
        note="; ".join(f"{name} takes {amount(p50, 's')}, ratio {ours.p50 / p50:.2f}" for name, p50 in others.items()),
        detail={
            "seconds": {name: taken.seconds for name, taken in times.items()},
            "grounds": str(arena.grounds.near.parent),
        },
    )
