"""A workspace whose far side is a folder of this machine, behind lanes of its own; one for each test."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.backends import here
from remote_sandbox_mcp.backends.link.lane import OutpostLane
from remote_sandbox_mcp.core.commands.command import Command, Completed
from remote_sandbox_mcp.core.errors import FileProblem
from remote_sandbox_mcp.core.sandboxes.files import FileSlice, Span, Written
from remote_sandbox_mcp.core.sandboxes.sandbox import Description, Sandbox
from remote_sandbox_mcp.core.sync.transfer import Lane
from remote_sandbox_mcp.core.workspaces.workspace import LinkOrder, Moved, Rules, Workspace
from remote_sandbox_mcp.services.fleet import Fleet, Member
from tests.support.warm import LANE_NURSERY

NAME = "x"


class FolderSandbox:
    """A sandbox that has lanes, and reads and writes single files; its home folder is a folder of the test."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.description = Description(NAME, "folder")
        self.is_open = True
        # As after a reconnection, where a test puts another one.
        self.connection = object()
        self.lanes: list[OutpostLane] = []
        self.asked: Counter[str] = Counter()
        # Called for every request to a lane, with its verb; what it returns is taken for the answer.
        self.asking: Callable[[str, OutpostLane], asyncio.Future[Any] | None] = lambda verb, lane: None

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def open_lane(self) -> Lane:
        lane = await here.open_lane()
        begin = lane.begin

        def counted(order: Any, *args: Any, **more: Any) -> Any:
            self.asked[order["verb"]] += 1
            return self.asking(order["verb"], lane) or begin(order, *args, **more)

        lane.begin = counted  # type: ignore[method-assign]
        self.lanes.append(lane)
        return lane

    async def run(self, command: Command) -> Completed:
        words = ("bash", "-c", command.script)
        child = await asyncio.create_subprocess_exec(*words, env={**os.environ, "HOME": str(self.home)})
        return Completed(command.run_id, await child.wait())

    def forget(self, run_id: str) -> None:
        """Nothing is kept of a run."""

    async def read(self, path: str, span: Span) -> FileSlice:
        try:
            data = self._at(path).read_bytes()
        except OSError as problem:
            raise FileProblem(f"{path}: {problem.strerror}", "ENOENT") from None
        return FileSlice(data, len(data), "")

    async def write(self, path: str, data: bytes, *, expected: str | None = None) -> Written:
        self._at(path).parent.mkdir(parents=True, exist_ok=True)
        self._at(path).write_bytes(data)
        return Written(len(data), "")

    def _at(self, path: str) -> Path:
        return self.home / path.removeprefix("~/")


class World:
    """An app, the two folders of a workspace, and what was told of its passes."""

    def __init__(self, folder: Path) -> None:
        self.here, self.there = folder / "here", folder / "far" / "project"
        self.here.mkdir(exist_ok=True)
        self.sandbox = FolderSandbox(folder / "far")
        self.app = self.new_app()
        self.rules = Rules()
        self._workspace: Workspace | None = None

    def new_app(self) -> App:
        async def opener() -> Sandbox:
            return cast(Sandbox, self.sandbox)

        return App(Fleet([Member(NAME, lambda: self.sandbox.description, opener)]), identity="of the tests")

    def order(self, **more: Any) -> LinkOrder:
        given = {
            "folder": str(self.here),
            "sandbox": NAME,
            "remote": str(self.there),
            "rules": self.rules,
            "free": True,
        }
        return LinkOrder(**{**given, **more})

    async def link(self, **more: Any) -> Moved:
        linked = await self.app.workspaces.link(self.order(**more))
        self._workspace = linked.workspace
        return linked.moved

    def find(self) -> None:
        """Take the workspace that another process has linked."""
        self._workspace = self.app.workspaces.find(str(self.here))

    @property
    def workspace(self) -> Workspace:
        assert self._workspace is not None
        return self._workspace

    async def send(self) -> Moved:
        return await self.app.workspaces.send(self.workspace)

    async def bring(self) -> Moved:
        return await self.app.workspaces.bring(self.workspace)

    async def decide(self, keep_local: tuple[str, ...] = (), keep_remote: tuple[str, ...] = ()) -> Moved:
        return await self.app.workspaces.decide(self.workspace, keep_local, keep_remote)

    async def close(self) -> None:
        await self.app.close()
        await asyncio.gather(*(lane.close() for lane in self.sandbox.lanes))


def write(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files, each with the folders that it lies in."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def contents(folder: Path) -> dict[str, str]:
    """All files of a folder and what is in them; links with an arrow."""
    found = {}
    for where, folders, names in os.walk(folder):
        for name in [*names, *(each for each in folders if os.path.islink(f"{where}/{each}"))]:
            path = Path(where, name)
            text = f"-> {os.readlink(path)}" if path.is_symlink() else path.read_bytes().decode("latin-1")
            found[str(path.relative_to(folder))] = text
    return found


@pytest.fixture(autouse=True)
def usual_start(monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    """Lanes of this machine are forked from a process that has their program loaded."""
    return LANE_NURSERY.fork_lanes(monkeypatch)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    yield world
    await world.close()
