"""Random edits on both sides of a workspace, with cuts, kills and full disks in between, against a model.

SOAK_EDITS=20000 SOAK_SEED=7 make it longer and another one.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import pytest

from remote_sandbox_mcp.core.errors import FileProblem
from remote_sandbox_mcp.core.workspaces.workspace import Moved
from tests.services.workspaces.conftest import World
from tests.support.root import tmpfs

EDITS, SEED = int(os.environ.get("SOAK_EDITS", "500")), int(os.environ.get("SOAK_SEED", "1"))
NAMES = ("a", "b", "c", "d")
# What is at each path: the content and mode of a file.
State = dict[str, tuple[str, int]]


def state_of(folder: Path) -> State:
    found = {}
    for where, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != ".venv"]
        for name in names:
            path = Path(where, name)
            found[str(path.relative_to(folder))] = path.read_text(), path.stat().st_mode & 0o777
    return found


class Person:
    """Edits one side. Every content is a new one, and every time a later one, as if edits were far apart."""

    moments = count(1_700_000_000_000_000_001, 1_000_000_007)

    def __init__(self, chance: random.Random, folder: Path) -> None:
        self.chance = chance
        self.folder = folder

    def edit(self) -> None:
        way = (self._write, self._write, self._write, self._delete, self._rename, self._mode)
        self.chance.choice(way)(self._any_path())
        # A side that was emptied stops everything, as it should.
        self._put(self.folder / "keep" / self.folder.name, "here to stay")

    def _any_path(self) -> Path:
        return self.folder.joinpath(*self.chance.choices(NAMES, k=self.chance.randint(1, 3)))

    def _put(self, path: Path, content: str) -> None:
        if path.exists() and path.read_text() == content:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        moment = next(self.moments)
        os.utime(path, ns=(moment, moment))

    def _write(self, path: Path) -> None:
        for above in [*path.relative_to(self.folder).parents][:-1]:
            (self.folder / above).is_file() and (self.folder / above).unlink()
        if path.is_dir():
            shutil.rmtree(path)
        # Many have the same size, so that only their content tells them apart.
        self._put(path, f"{next(self.moments)}{'x' * self.chance.choice((0, 0, 1, 50_000))}")

    def _delete(self, path: Path) -> None:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True) if path.parent.is_dir() else None

    def _rename(self, path: Path) -> None:
        other = self._any_path()
        if path.exists() and not other.exists() and other.parent.is_dir() and path not in other.parents:
            path.rename(other)

    def _mode(self, path: Path) -> None:
        if path.is_file():
            path.chmod(self.chance.choice((0o600, 0o644, 0o755)))


class Model:
    """The last common state, by content alone."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.base: State = {}
        # What passes that did not end have carried over, from here and from there. If it is edited or deleted at its
        # target then, there is no telling that it had arrived: that may be told as a conflict, or it comes back.
        self.arrived: tuple[set[str], set[str]] = (set(), set())

    @property
    def folders(self) -> tuple[Path, Path]:
        return self.world.here, self.world.there

    def sides(self) -> tuple[State, State]:
        here, there = self.folders
        return state_of(here), state_of(there)

    def agree(self, before: tuple[State, State] | None = None) -> None:
        """What is the same on both sides is common from now on; `before` a pass that did not end, perhaps."""
        here, there = self.sides()
        for path in {*self.base, *here, *there}:
            if here.get(path) == there.get(path) != self.base.get(path):
                if before:
                    self.arrived[before[0].get(path) != here.get(path)].add(path)
                self.base.pop(path, None)
                self.base |= {path: here[path]} if path in here else {}

    def check(self, before: tuple[State, State], conflicts: tuple[str, ...]) -> None:
        """Both sides are as they should be after a pass."""
        here, there = before
        now = self.sides()
        for conflict in conflicts:
            # Nobody has to decide about what only one side changed.
            for folder, side, arrived in zip(self.folders, before, self.arrived, strict=True):
                known = any(is_at_or_below(path, conflict) for path in arrived)
                # The model knows of files only: a folder in which there is none may be in the way of one.
                is_folder = (folder / conflict).is_dir()
                assert known or is_folder or self.has_changed(conflict, side), conflict
        for path in {*self.base, *here, *there, *now[0], *now[1]}:
            if any(is_at_or_below(path, each) for each in conflicts):
                assert (now[0].get(path), now[1].get(path)) == (here.get(path), there.get(path)), path
            else:
                wanted = self.wanted(self.base.get(path), here.get(path), there.get(path))
                if wanted is None and any(path in arrived for arrived in self.arrived):
                    # Deleted at its target again: it may come back.
                    wanted = now[0].get(path) and (here.get(path) or there.get(path))
                assert now[0].get(path) == now[1].get(path) == wanted, (path, wanted, now[0].get(path))
        for arrived in self.arrived:
            arrived &= {path for path in arrived if any(is_at_or_below(path, each) for each in conflicts)}
        self.agree()

    def has_changed(self, folder: str, side: State) -> bool:
        """Whether a side has changed anything at or below a path since both were the same."""
        paths = {*self.base, *side}
        return any(self.base.get(path) != side.get(path) for path in paths if is_at_or_below(path, folder))

    def wanted(
        self, base: tuple[str, int] | None, here: tuple[str, int] | None, there: tuple[str, int] | None
    ) -> tuple[str, int] | None:
        """What one path becomes. Raises AssertionError where it is a conflict that was not told."""
        if here == there or there == base:
            return here
        if here == base or here is None:
            return there
        # Only their modes differ: this side's counts.
        assert there is None or here[0] == there[0], ("a conflict that was not told", here, there)
        return here


def is_at_or_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """The disk of a folder has no room meanwhile."""
    ballast = folder / ".venv"
    ballast.mkdir()
    try:
        with suppress(OSError), (ballast / "ballast").open("wb") as file:
            while True:
                file.write(bytes(4096))
        yield
    finally:
        shutil.rmtree(ballast)


class Faults:
    """What happens to a pass, and what it says then; None where it did not end."""

    def __init__(self, chance: random.Random, world: World) -> None:
        self.chance = chance
        self.world = world

    async def none(self, work: Callable[[], Awaitable[Moved]]) -> Moved | None:
        return await work()

    async def cut(self, work: Callable[[], Awaitable[Moved]]) -> Moved | None:
        """One lane is closed at some request; the pass tries again by itself."""
        left = self.chance.randint(1, 12)

        def cut(verb: str, lane: object) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                lane._line.close()  # type: ignore[attr-defined]

        self.world.sandbox.asking = cut
        try:
            return await work()
        finally:
            self.world.sandbox.asking = lambda verb, lane: None

    async def kill(self, work: Callable[[], Awaitable[Moved]]) -> Moved | None:
        """The process is gone at some request; another one goes on."""
        left, task = self.chance.randint(1, 12), asyncio.ensure_future(work())

        def kill(verb: str, lane: object) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                task.cancel()

        self.world.sandbox.asking = kill
        done = await asyncio.gather(task, return_exceptions=True)
        self.world.sandbox.asking = lambda verb, lane: None
        await self.world.app.close()
        self.world.app = self.world.new_app()
        return done[0] if isinstance(done[0], Moved) else None

    async def full_disk(self, work: Callable[[], Awaitable[Moved]]) -> Moved | None:
        with full(self.chance.choice((self.world.here, self.world.there))):
            try:
                return await work()
            except FileProblem as problem:
                if problem.reason != "fatal":
                    raise
                return None


async def test_random_edits_with_faults_in_between_lose_nothing(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    with tmpfs(tmp_path / "here", "6m"), tmpfs(tmp_path / "far/project", "6m"):
        world = World(tmp_path)
        try:
            await soak(world, chance)
        finally:
            await world.close()


async def soak(world: World, chance: random.Random) -> None:
    people = [Person(chance, world.here), Person(chance, world.there)]
    model, faults = Model(world), Faults(chance, world)
    people[0].edit()
    await world.link()
    model.agree()
    told, edits, conflicts = 0, 0, 0

    def edit(most: int) -> None:
        nonlocal edits
        for _ in range(chance.randint(1, most)):
            chance.choice(people).edit()
            edits += 1

    while edits < EDITS:
        edit(8)
        # A quick pass may come before a whole one; whatever it does, it loses nothing.
        if chance.random() < 0.5:
            before = model.sides()
            await chance.choice((faults.none, faults.kill, faults.full_disk))(world.send)
            # What has arrived is no edit of the other side: both may be edited again.
            model.agree(before)
            edit(3)
        before = model.sides()
        moved = await chance.choice((faults.none, faults.none, faults.cut, faults.kill, faults.full_disk))(world.bring)
        if moved is None or moved.problems:
            model.agree(before)
            edit(3)
            before = model.sides()
            moved = await world.bring()
        model.check(before, moved.conflicts)
        told += bool(moved.conflicts)
        conflicts += len(moved.conflicts)
        if moved.conflicts and chance.random() < 0.7:
            await world.decide(keep_local=moved.conflicts) if chance.random() < 0.5 else await world.decide(
                keep_remote=moved.conflicts
            )
            model.agree()
            assert model.sides()[0] == model.sides()[1]
    # Without conflicts it would have tested little.
    assert told > EDITS // 100, (told, conflicts)


@pytest.fixture(autouse=True)
def same_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are given to files in the order of edits, from the same beginning."""
    monkeypatch.setattr(Person, "moments", count(1_700_000_000_000_000_001, 1_000_000_007))
