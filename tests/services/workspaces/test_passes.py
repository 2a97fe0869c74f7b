"""What goes and what comes in passes over a workspace, between two real folders."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from remote_sandbox_mcp.core.commands.command import Command, Completed
from remote_sandbox_mcp.core.errors import BadArgument, Unreachable
from remote_sandbox_mcp.core.workspaces.reconcile import SideLost
from remote_sandbox_mcp.core.workspaces.workspace import LinkOrder, Preview, Unlinked, mark_of
from remote_sandbox_mcp.services.workspaces.service import WorkspaceService
from tests.services.workspaces.conftest import FolderSandbox, World, contents, write

FIRST = {"a.py": "print(1)\n", "src/b.py": "b = 2\n"}


async def test_linking_sends_the_project_and_a_second_send_asks_the_machine_nothing(world: World) -> None:
    write(world.here, {**FIRST, ".git/config": "", ".env": "KEY=1", "node_modules/x.js": "", "build/o": ""})
    write(world.here, {".gitignore": "build/\n"})
    moved = await world.link()
    assert contents(world.there) == {**FIRST, ".gitignore": "build/\n"}
    assert (moved.sent_count, moved.sent_bytes) == (3, 22)
    assert (await world.bring()).is_quiet
    world.sandbox.asked.clear()
    assert (await world.send()).is_quiet
    assert not world.sandbox.asked


async def test_a_change_goes_without_a_look_at_the_other_side_and_what_a_command_makes_comes_back(world: World) -> None:
    write(world.here, FIRST)
    await world.link()
    await world.bring()
    world.sandbox.asked.clear()
    write(world.here, {"a.py": "print(22)\n", "new/c.py": "c\n"})
    (world.here / "src/b.py").unlink()
    moved = await world.send()
    assert contents(world.there) == {"a.py": "print(22)\n", "new/c.py": "c\n"}
    assert (moved.sent, moved.deleted_there) == (("a.py", "new/c.py"), 1)
    assert not world.sandbox.asked["scan"]
    write(world.there, {"new/c.py": "c = 3\n", "lock": "text", "model.bin": b"\0\1", "results/model.bin": b"\0\1"})
    (world.there / "a.py").unlink()
    moved = await world.bring()
    assert contents(world.here) == {"new/c.py": "c = 3\n", "lock": "text", "results/model.bin": "\0\1"}
    assert moved.came == ("lock", "new/c.py", "results/model.bin")
    assert moved.deleted_here == ("a.py",)
    assert (await world.bring()).is_quiet


async def test_what_changed_on_both_sides_stays_as_it_is_until_it_is_decided(world: World) -> None:
    write(world.here, {"a": "1", "b": "1", "c": "1"})
    await world.link()
    write(world.here, {"a": "here", "b": "here", "c": "same"})
    write(world.there, {"a": "far away", "b": "far away", "c": "same"})
    moved = await world.send()
    assert moved.conflicts == ("a", "b")
    assert (contents(world.here)["a"], contents(world.there)["a"]) == ("here", "far away")
    write(world.here, {"d": "new"})
    assert (await world.send()).sent == ("d",)
    assert (await world.bring()).conflicts == ("a", "b")
    moved = await world.decide(keep_local=("a",), keep_remote=(f"{world.here}/b",))
    assert not moved.conflicts
    assert contents(world.here) == contents(world.there) == {"a": "here", "b": "far away", "c": "same", "d": "new"}


async def test_special_bits_of_modes_stay_on_the_side_that_has_them(world: World) -> None:
    write(world.here, {"shared/a": "1", "tool": "2"})
    (world.here / "shared").chmod(0o2775)
    (world.here / "tool").chmod(0o4755)
    await world.link()
    assert (await world.bring()).is_quiet
    assert [oct((world.here / name).stat().st_mode & 0o7777) for name in ("shared", "tool")] == ["0o2775", "0o4755"]
    assert [oct((world.there / name).stat().st_mode & 0o7777) for name in ("shared", "tool")] == ["0o775", "0o755"]


@pytest.mark.parametrize("side", ["here", "there"])
@pytest.mark.parametrize("how", ["emptied", "missing", "replaced"])
async def test_a_side_that_is_lost_changes_nothing(world: World, side: str, how: str) -> None:
    write(world.here, FIRST)
    await world.link()
    await world.bring()
    lost, other = (world.here, world.there) if side == "here" else (world.there, world.here)
    shutil.move(lost, f"{lost}.away")
    if how != "missing":
        lost.mkdir()
    if how == "replaced":
        write(lost, {"other": "project"})
    write(other, {"a.py": "edited"})
    before = contents(other)
    for work in (world.send, world.bring):
        with pytest.raises(SideLost, match="nothing was changed"):
            await work()
    assert contents(other) == before
    shutil.rmtree(lost, ignore_errors=True)
    os.rename(f"{lost}.away", lost)
    await world.bring()
    assert contents(lost) == before


@pytest.mark.parametrize("side", ["here", "there"])
async def test_linking_again_deletes_nothing_where_a_side_is_another_one(world: World, side: str) -> None:
    write(world.here, FIRST)
    await world.link()
    lost, other = (world.here, world.there) if side == "here" else (world.there, world.here)
    shutil.move(lost, f"{lost}.away")
    write(lost, {"stub": "of a mount point"})
    before = contents(other)
    with pytest.raises(SideLost, match="unlink and link again"):
        await world.link()
    with pytest.raises(SideLost, match="unlink and link again"):
        await world.send() if side == "here" else await world.bring()
    assert contents(other) == before
    await world.app.workspaces.unlink(str(world.here))
    await world.link()
    assert {**before, "stub": "of a mount point"} == contents(world.there)


async def test_linking_again_does_not_mark_another_machine(world: World, tmp_path: Path) -> None:
    write(world.here, FIRST)
    await world.link()
    old, world.sandbox = world.sandbox, FolderSandbox(tmp_path / "other")
    app, world.app = world.app, world.new_app()
    for work in (world.link, world.send):
        with pytest.raises(SideLost, match="is not the machine"):
            await work()
    await world.close()
    world.app, world.sandbox = app, old


async def test_a_link_is_refused_where_another_one_is_in_the_way(world: World) -> None:
    write(world.here, {"inner/a": "1", "b": "2"})
    await world.link()
    assert world.app.workspaces.find(str(world.here / "inner")) == world.workspace
    with pytest.raises(BadArgument, match="one lies in the other"):
        await world.app.workspaces.link(world.order(folder=str(world.here / "inner"), remote=str(world.there) + "-2"))
    other = world.here.parent / "other"
    write(other, {"x": "1"})
    with pytest.raises(BadArgument, match="choose another remote folder"):
        await world.app.workspaces.link(world.order(folder=str(other), remote=str(world.there / "below")))
    assert await world.app.workspaces.unlink(str(world.here)) == Unlinked(world.workspace)
    assert world.app.workspaces.all() == []


@pytest.mark.parametrize("clash", ["the folder here", "the folder there"])
async def test_of_two_links_at_once_that_clash_one_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch, clash: str
) -> None:
    """Both have looked before either is kept, and are of two processes."""
    other = world.here.parent / "other"
    write(world.here, {"inner/a": "1"})
    write(other, {"x": "1"})
    folder = str(world.here / "inner") if clash == "the folder here" else str(other)
    remote = str(world.there) + "-2" if clash == "the folder here" else str(world.there)
    second = world.new_app()
    orders = [(world.app, world.order()), (second, world.order(folder=folder, remote=remote))]
    looked, both_looked = 0, asyncio.Event()
    usual = WorkspaceService.preview

    async def look(service: WorkspaceService, order: LinkOrder) -> Preview:
        nonlocal looked
        found = await usual(service, order)
        looked += 1
        if looked == len(orders):
            both_looked.set()
        await both_looked.wait()
        return found

    monkeypatch.setattr(WorkspaceService, "preview", look)
    done = await asyncio.gather(*(app.workspaces.link(order) for app, order in orders), return_exceptions=True)
    await second.close()
    assert sorted(type(each).__name__ for each in done) == ["BadArgument", "Linked"]
    assert len(world.app.workspaces.all()) == 1


async def test_unlinking_leaves_nothing_of_ours_on_the_machine_or_says_what(world: World) -> None:
    write(world.here, {"a": "1"})
    await world.link()
    mark = world.sandbox.home / mark_of(world.workspace).removeprefix("~/")
    assert mark.exists()
    await world.app.workspaces.unlink(str(world.here))
    assert not (world.sandbox.home / ".local/state/remote-sandbox-mcp").exists()
    await world.link()

    async def run(command: Command) -> Completed:
        raise Unreachable("unable to open x: no route")

    world.sandbox.run = run  # type: ignore[method-assign]
    gone = await world.app.workspaces.unlink(str(world.here))
    assert world.app.workspaces.all() == []
    assert gone.note().endswith("is still on x and does nothing any more (unable to open x: no route)")
