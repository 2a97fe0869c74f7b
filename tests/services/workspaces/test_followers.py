"""Changes that are sent before a command asks for it; and looks at what is unchanged, or after a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from remote_sandbox_mcp.core.sync.transfer import Lane, Reply
from remote_sandbox_mcp.core.sync.tree import Tree, TreeReader
from remote_sandbox_mcp.core.workspaces.workspace import Moved
from remote_sandbox_mcp.services.sync.follow import Follower
from remote_sandbox_mcp.services.workspaces import followers
from tests.services.workspaces.conftest import World, contents, write
from tests.support.server import until


@pytest.fixture
async def used(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A workspace in which a call was made a moment ago."""
    monkeypatch.setattr(followers, "POLL_S", 0.01)
    monkeypatch.setattr(followers, "QUIET_S", 0.05)
    write(world.here, {"a.py": "1"})
    await world.link()
    world.app.workspaces.sends_in_background = True
    await world.bring()
    await world.send()
    await until(lambda: world.app.workspaces._live._tasks, "it to begin")
    return world


def has(folder: Path, name: str, text: str) -> bool:
    return contents(folder).get(name) == text


async def test_a_change_is_there_before_the_next_command(used: World) -> None:
    write(used.here, {"a.py": "22", "new/b.py": "b"})
    await until(lambda: has(used.there, "new/b.py", "b") and has(used.there, "a.py", "22"), "the changes to arrive")
    (used.here / "a.py").unlink()
    await until(lambda: "a.py" not in contents(used.there), "the file to go")
    assert (await used.send()).is_quiet


async def test_what_changes_all_the_time_is_sent_when_it_is_quiet(used: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "QUIET_S", 30.0)
    asked = len(list(used.sandbox.asked.elements()))
    write(used.here, {"a.py": "22"})
    await until(lambda: used.app.workspaces._live._until, "it to go on")
    assert len(list(used.sandbox.asked.elements())) == asked
    assert (await used.send()).sent == ("a.py",)


async def test_what_fails_in_the_background_is_told_by_the_next_command(
    used: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a conflict, for which the other side has to be looked at, too."""
    monkeypatch.setattr(followers, "REST_AFTER_FAILURE_S", 0.01)
    write(used.there, {"a.py": "of the machine"})
    passes: list[object] = []
    usual = used.app.workspaces._live._send

    async def send(workspace: object) -> None:
        passes.append(await usual(workspace))  # type: ignore[arg-type]

    used.app.workspaces._live._send = send
    write(used.here, {"a.py": "of this computer"})
    await until(lambda: passes, "a pass")
    assert has(used.there, "a.py", "of the machine")
    assert (await used.send()).conflicts == ("a.py",)
    assert has(used.here, "a.py", "of this computer")


async def test_it_ends_some_time_after_the_last_call_and_with_the_link(
    used: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sending = used.app.workspaces._live
    monkeypatch.setattr(followers, "IN_USE_S", 0.0)
    sending.use(used.workspace)
    await until(lambda: not sending._tasks, "it to end")
    monkeypatch.setattr(followers, "IN_USE_S", 300.0)
    await used.send()
    assert len(sending._tasks) == 1
    await used.app.workspaces.unlink(str(used.here))
    await until(lambda: not sending._tasks, "it to end")


async def test_an_unchanged_workspace_is_not_compared_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    write(world.here, {"a.py": "1"})
    await world.link()
    # The first one notes which folder it is over there.
    await world.bring()
    await world.bring()
    world.sandbox.asked.clear()
    with monkeypatch.context() as patch:
        patch.setattr("remote_sandbox_mcp.services.workspaces.passes.reconcile", None)
        assert (await world.bring()).is_quiet
        assert (await world.send()).is_quiet
    assert world.sandbox.asked == {"follow": 1}
    write(world.there, {"b.py": "2"})
    assert (await world.bring()).came == ("b.py",)
    # The pass itself has changed this side; what it wrote is not news.
    assert (await world.send()).is_quiet
    assert (await world.bring()).is_quiet


# Looking after a run


@pytest.fixture
async def settled(world: World) -> World:
    write(world.here, {"a.py": "1"})
    await world.link()
    await world.bring()
    return world


async def expect(world: World) -> None:
    """Order a look after a run; the order is there when this returns."""
    world.sandbox.asked.clear()
    world.app.workspaces.expect(world.workspace, "run-1")
    await until(lambda: world.sandbox.asked["follow"], "the order")
    world.sandbox.asked.clear()


async def bring_after_run(world: World) -> Moved:
    return await world.app.workspaces.bring(world.workspace, "run-1")


async def test_what_was_seen_after_a_run_saves_the_pass_a_round_trip(settled: World) -> None:
    await expect(settled)
    write(settled.there, {"made.txt": "by the run"})
    assert (await bring_after_run(settled)).came == ("made.txt",)
    assert not settled.sandbox.asked["follow"]
    assert (await bring_after_run(settled)).is_quiet


@pytest.fixture
async def unwatched(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A workspace whose sides cannot be watched; the looks at this one are noted."""
    take = Follower._take

    def take_unwatched(follower: Follower, lane: Lane, reply: Reply, reader: TreeReader) -> Tree:
        tree = take(follower, lane, reply, reader)
        follower.is_watched = False
        return tree

    monkeypatch.setattr(Follower, "_take", take_unwatched)
    write(world.here, {"a.py": "1", "b.py": "1", "c.py": "1"})
    await world.link()
    await world.bring()
    return world


def looks_here(world: World) -> Follower:
    _, follower = world.app.workspaces._followers._followers[world.workspace.id, ""]
    return follower


async def test_this_side_is_looked_at_once_for_a_command_where_that_costs_much(
    unwatched: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(unwatched.here, {"a.py": "22"})
    assert (await unwatched.send()).sent == ("a.py",)
    write(unwatched.there, {"made.txt": "by the run"})
    with monkeypatch.context() as patch:
        patch.setattr(looks_here(unwatched), "scan", None)
        assert (await bring_after_run(unwatched)).came == ("made.txt",)
    # What the pass has written is not taken for deleted, or for new.
    assert (await unwatched.send()).is_quiet
    assert (await bring_after_run(unwatched)).is_quiet
    assert contents(unwatched.here) == contents(unwatched.there)


async def test_what_was_edited_here_during_a_command_is_kept(unwatched: World) -> None:
    await unwatched.send()
    write(unwatched.there, {"a.py": "of the run", "new": "of the run", "b.py": "of the run alone"})
    (unwatched.there / "c.py").unlink()
    write(unwatched.here, {"a.py": "of a person", "new": "of a person!", "c.py": "of a person"})
    moved = await bring_after_run(unwatched)
    assert (moved.conflicts, moved.came) == (("a.py", "new"), ("b.py",))
    assert contents(unwatched.here) == {
        **{"a.py": "of a person", "new": "of a person!", "c.py": "of a person"},
        "b.py": "of the run alone",
    }
    assert contents(unwatched.there)["c.py"] == "of a person"


async def test_another_pass_in_between_has_this_side_looked_at_again(unwatched: World) -> None:
    """Else what that one has brought would seem to have been deleted here."""
    await unwatched.send()
    other = unwatched.new_app()
    write(unwatched.there, {"made.txt": "by another run"})
    assert (await other.workspaces.bring(unwatched.workspace)).came == ("made.txt",)
    await other.close()
    assert (await bring_after_run(unwatched)).is_quiet
    assert contents(unwatched.there)["made.txt"] == "by another run"


async def test_what_was_seen_before_another_pass_is_not_taken_for_the_present(settled: World) -> None:
    """A file that was sent meanwhile would seem to have been deleted over there."""
    await expect(settled)
    write(settled.here, {"meanwhile.py": "sent"})
    assert (await settled.send()).sent == ("meanwhile.py",)
    write(settled.there, {"made.txt": "by the run"})
    moved = await bring_after_run(settled)
    assert (moved.came, moved.deleted_here) == (("made.txt",), ())
    assert contents(settled.here) == contents(settled.there)


async def test_what_was_seen_before_the_end_of_a_run_is_not_taken_for_its_result(settled: World) -> None:
    """A run that the lane does not find is not waited for."""
    await expect(settled)
    await until(lambda: not settled.app.workspaces._followers._tasks, "the look without the run")
    write(settled.there, {"made.txt": "by the run"})
    assert (await bring_after_run(settled)).came == ("made.txt",)


async def test_a_run_over_a_line_that_is_cut_is_looked_at_later(settled: World) -> None:
    await expect(settled)
    write(settled.there, {"made.txt": "by the run"})
    for lane in settled.sandbox.lanes:
        await lane.close()
    assert (await bring_after_run(settled)).came == ("made.txt",)
