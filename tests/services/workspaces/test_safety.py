"""What can go wrong in a pass: nothing that a person wrote is lost, and the next pass is right."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from remote_sandbox_mcp.config import paths
from remote_sandbox_mcp.config.schema import Settings
from remote_sandbox_mcp.core.errors import BadArgument, FileProblem
from remote_sandbox_mcp.core.gate import NotAllowed
from remote_sandbox_mcp.core.sandboxes.files import FileSlice, Span, Written
from remote_sandbox_mcp.core.sync.transfer import Reply
from remote_sandbox_mcp.core.workspaces.reconcile import SideLost
from remote_sandbox_mcp.core.workspaces.workspace import Rules, mark_of
from remote_sandbox_mcp.services.sync.meter import Tally
from remote_sandbox_mcp.services.sync.sending import BATCH_FILES
from tests.services.workspaces.conftest import FolderSandbox, World, contents, write
from tests.support.doc_pages import ROOT
from tests.support.means import require_program
from tests.support.root import exfat, tmpfs
from tests.support.waiting import eventually

MIB = 1 << 20


async def in_step(world: World, files: dict[str, str | bytes]) -> None:
    """A workspace whose sides have these files, and have been looked at."""
    write(world.here, files)
    await world.link()
    await world.bring()


async def test_a_file_that_grows_while_it_is_sent_is_no_conflict_and_arrives_with_the_next_pass(world: World) -> None:
    await in_step(world, {"log": "1\n", "large": bytes(2 * MIB)})

    def grow(verb: str, lane: object) -> None:
        if verb in ("receive", "commit"):
            for name in ("log", "large"):
                with (world.here / name).open("ab") as file:
                    file.write(b"more\n")

    write(world.here, {"log": "1\n2\n", "large": bytes(2 * MIB + 7)})
    world.sandbox.asking = grow
    assert not (await world.send()).conflicts
    world.sandbox.asking = lambda verb, lane: None
    for work in (world.bring, world.send):
        assert not (await work()).conflicts
    assert contents(world.there) == contents(world.here)


async def test_what_cannot_be_written_there_is_told_and_tried_three_times_only(world: World) -> None:
    await in_step(world, {"d/a": "1", "b": "1"})
    write(world.there, {"d/.venv/x": "left out, and in the way"})
    (world.here / "d/a").unlink()
    (world.here / "d").rmdir()
    write(world.here, {"d": "a file by now"})
    told = [(await world.send()).problems for _ in range(5)]
    assert [any(line.startswith("d: ") for line in lines) for lines in told] == [True, *[False] * 4]
    world.sandbox.asked.clear()
    assert (await world.bring()).is_quiet
    assert not world.sandbox.asked["receive"]
    # It is tried again as soon as it changes.
    (world.there / "d/.venv/x").unlink()
    (world.there / "d/.venv").rmdir()
    write(world.here, {"d": "another file"})
    assert (await world.send()).sent == ("d",)
    assert contents(world.there)["d"] == "another file"


async def test_a_file_in_the_place_of_a_folder_with_news_is_a_conflict_even_where_it_does_not_come(
    world: World,
) -> None:
    await in_step(world, {"d/a": "1", "b": "1"})
    write(world.here, {"d/new": "x"})
    (world.there / "d/a").unlink()
    (world.there / "d").rmdir()
    write(world.there, {"d": b"\0 no text"})
    moved = await world.bring()
    assert (moved.conflicts, moved.problems) == (("d",), ())
    assert (contents(world.here)["d/new"], (world.there / "d").read_bytes()) == ("x", b"\0 no text")


@pytest.mark.parametrize("side", ["here", "there"])
async def test_on_a_foreign_file_system_nothing_bounces_and_what_it_cannot_have_is_told(
    world: World, side: str
) -> None:
    """One without modes, links, exact times, colons and case. A rename of the case alone is one there, too."""
    foreign, usual = (world.here, world.there) if side == "here" else (world.there, world.here)
    work = world.send if side == "there" else world.bring
    world.here.rmdir() if side == "here" else None
    with exfat(foreign):
        write(world.here, {"a.py": "1", "Readme": "r", "d/run.sh": "x"})
        (world.here / "d/run.sh").chmod(0o755 if side == "here" else 0o750)
        await world.link()
        assert not (await world.bring()).came_count
        before = {path: path.stat() for path in (usual / "a.py", usual / "d/run.sh")}
        write(usual, {"a:b": "colon", "new.py": "22"})
        (usual / "ln").symlink_to("a.py")
        moved = await work()
        assert (moved.sent or moved.came) == ("new.py",)
        assert sorted(line.partition("(")[0] for line in moved.problems) == [
            "a:b has a name that the other side cannot write ",
            "ln is a link, and the file system of the other side has none ",
        ]
        os.rename(usual / "Readme", usual / "README")
        assert not (await work()).problems
        assert sorted(os.listdir(foreign)) == ["README", "a.py", "d", "new.py"]
        # Two names that differ in their case only are one there: the first one stays, and nothing is overwritten.
        write(usual, {"readme": "another"})
        await work()
        await world.bring()
        assert (contents(usual)["README"], contents(usual)["readme"]) == ("r", "another")
        assert contents(foreign)["README"] == "r"
        # Modes and times of the side that has them are as they were.
        for path, found in before.items():
            assert (path.stat().st_mode, path.stat().st_mtime_ns) == (found.st_mode, found.st_mtime_ns)
        write(foreign, {"a.py": "edited on the stick"})
        await world.bring()
        assert contents(usual)["a.py"] == "edited on the stick"
        assert (usual / "a.py").stat().st_mode == before[usual / "a.py"].st_mode
        await world.close()


async def test_links_out_of_the_project_git_and_submodules_stay_where_they_are(world: World) -> None:
    write(world.here, {"a": "1", ".git": "gitdir: elsewhere", "sub/.git": "gitdir: ../.git/modules/sub", "sub/b": "2"})
    (world.here / "inside").symlink_to("sub/b")
    (world.here / "outside").symlink_to("/etc/hostname")
    (world.here / "sub/above").symlink_to("../../else")
    preview = await world.app.workspaces.preview(world.order())
    moved = await world.link()
    assert contents(world.there) == {"a": "1", "sub/b": "2", "inside": "-> sub/b"}
    # They are named once, by the preview.
    assert (preview.links, moved.problems) == (("outside", "sub/above"), ())
    write(world.there, {".git/hooks/x": "run me", ".envrc": "run me", ".vscode/tasks.json": "{}", "c": "3"})
    (world.there / "evil").symlink_to("/etc/passwd")
    moved = await world.bring()
    assert moved.came == ("c",)
    assert {"evil"} == {line.split(": ")[0].split(" ")[0] for line in moved.problems}
    assert moved.kept_there == (".vscode/tasks.json",)
    # All of it is told once.
    assert (await world.bring()).is_quiet


async def test_another_machine_under_the_same_name_is_not_taken_for_the_first(world: World, tmp_path: Path) -> None:
    await in_step(world, {"a": "1"})
    old, world.sandbox = world.sandbox, FolderSandbox(tmp_path / "other")
    app, world.app = world.app, world.new_app()
    # It may be a copy of the first, with the same folder. Nothing is run there, either, where nothing is to be sent.
    with pytest.raises(SideLost, match="is not the machine"):
        await world.send()
    write(world.here, {"a": "22"})
    for work in (world.send, world.bring):
        with pytest.raises(SideLost, match="is not the machine"):
            await work()
    assert contents(world.there) == {"a": "1"}
    state = await world.app.workspaces.state(world.workspace)
    assert "is not the machine" in state.trouble
    await world.close()
    world.app, world.sandbox = app, old


def restore(world: World, snapshot: Path) -> None:
    """Put the machine back to an earlier state; the folders keep their inodes."""
    for path in [each for each in world.sandbox.home.rglob("*") if each.is_file()]:
        path.unlink()
    shutil.copytree(snapshot, world.sandbox.home, dirs_exist_ok=True)
    world.sandbox.connection = object()


async def test_a_machine_that_was_restored_from_a_snapshot_changes_nothing_here(world: World, tmp_path: Path) -> None:
    await in_step(world, {"a": "1", "b": "1"})
    shutil.copytree(world.sandbox.home, tmp_path / "snapshot")
    world.sandbox.connection = object()
    write(world.here, {"a": "edited", "new": "work"})
    await world.send()
    await world.bring()
    restore(world, tmp_path / "snapshot")
    before = contents(world.here)
    for work in (world.send, world.bring, world.link):
        with pytest.raises(SideLost, match="restored from a snapshot"):
            await work()
    assert (contents(world.here), contents(world.there)) == (before, {"a": "1", "b": "1"})
    await world.app.workspaces.unlink(str(world.here))
    moved = await world.link()
    assert moved.conflicts == ("a",)
    assert contents(world.here) == before


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("is_written", [False, True], ids=["before the mark is written", "after it"])
async def test_a_process_that_ends_while_it_marks_the_machine_alarms_nobody(world: World, is_written: bool) -> None:
    await in_step(world, {"a": "1"})
    usual = world.sandbox.write

    async def end(path: str, data: bytes, *, expected: str | None = None) -> Written:
        if is_written:
            await usual(path, data, expected=expected)
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.sandbox, "write", end)
        for _ in range(2):
            world.sandbox.connection = object()
            with pytest.raises(Killed):
                await world.send()
    for _ in range(2):
        world.sandbox.connection = object()
        assert (await world.bring()).is_quiet


async def test_a_mark_that_cannot_be_written_stays_good(world: World) -> None:
    await in_step(world, {"a": "1"})

    async def refuse(path: str, data: bytes, *, expected: str | None = None) -> Written:
        raise FileProblem("no space left on device", "ENOSPC")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.sandbox, "write", refuse)
        for _ in range(2):
            world.sandbox.connection = object()
            assert (await world.bring()).is_quiet
    world.sandbox.connection = object()
    assert (await world.bring()).is_quiet


async def test_a_mark_without_a_word_is_that_of_an_earlier_version(world: World) -> None:
    await in_step(world, {"a": "1"})
    mark = world.sandbox.home / mark_of(world.workspace).removeprefix("~/")
    (words,) = paths.state_folder().glob("workspaces/*/words")
    words.unlink()
    mark.write_text(f"{world.there}\n")
    for _ in range(2):
        world.sandbox.connection = object()
        assert (await world.bring()).is_quiet
    assert mark.read_text().split() == [str(world.there), words.read_text()]


async def test_the_mark_is_asked_for_once_for_each_connection_of_each_process(world: World) -> None:
    await in_step(world, {"a": "1"})
    reads = []
    usual = world.sandbox.read

    async def read(path: str, span: Span) -> FileSlice:
        reads.append(path)
        return await usual(path, span)

    world.sandbox.read = read  # type: ignore[method-assign]
    other = world.new_app()
    for app in (world.app, other, world.app, other):
        await app.workspaces.send(world.workspace)
        await app.workspaces.bring(world.workspace)
    assert reads == [mark_of(world.workspace)]
    world.sandbox.connection = object()
    for app in (world.app, other, world.app, other):
        await app.workspaces.bring(world.workspace)
    await other.close()
    assert reads == [mark_of(world.workspace)] * 3


async def test_an_edit_there_that_a_send_does_not_know_of_is_kept(world: World) -> None:
    await in_step(world, {"a": "1", "b": "1", "c": "1"})
    write(world.there, {"a": "edited there", "b": "edited there", "new": "there"})
    write(world.here, {"a": "edited here, too", "new": "here, as well"})
    (world.here / "b").unlink()
    moved = await world.send()
    assert moved.conflicts == ("a", "new")
    assert contents(world.there) == {"a": "edited there", "b": "edited there", "c": "1", "new": "there"}
    assert contents(world.here) == {"a": "edited here, too", "b": "edited there", "c": "1", "new": "here, as well"}


async def test_a_full_disk_in_the_middle_is_told_and_the_next_pass_goes_on(world: World) -> None:
    files = {f"f{number}": os.urandom(300_000) for number in range(25)}
    with tmpfs(world.there, "8m"):
        await in_step(world, {"a": "1"})
        write(world.there, {".venv/ballast": bytes(5 * MIB)})
        write(world.here, {**files, "a": "22"})
        with pytest.raises(FileProblem, match="No space left on device"):
            await world.send()
        # Files that may have arrived are edited and deleted: that is no conflict.
        write(world.here, {"a": "333", "f0": "short"})
        (world.here / "f1").unlink()
        (world.there / ".venv/ballast").unlink()
        (world.there / ".venv").rmdir()
        moved = await world.bring()
        assert not moved.conflicts
        assert contents(world.there) == contents(world.here)


def git(folder: Path, *words: str) -> None:
    person = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org", "-c", "core.fsync=none", "-c", "gc.auto=0")
    subprocess.run(["git", *person, *words], cwd=folder, check=True, capture_output=True, timeout=60)


def project_of(folder: Path) -> dict[str, str]:
    return {name: text for name, text in contents(folder).items() if not name.startswith(".git/")}


async def test_a_branch_switch_carries_over_all_of_it_and_keeps_what_was_edited_there(world: World) -> None:
    """More goes than a pass would delete on this side. `make bench` has one of 10,000 files."""
    require_program("git")
    one = {f"old/{number % 9}/f{number}": f"one {number}" for number in range(600)}
    write(world.here, {**one, "kind/inner": "a folder", "both": "one", "run.sh": "echo"})
    for words in (("init", "--quiet"), ("add", "."), ("commit", "-qm", "one"), ("switch", "-qc", "two")):
        git(world.here, *words)
    git(world.here, "rm", "-rq", "old", "kind")
    two = {f"new/f{number}": f"two {number}" for number in range(300)}
    write(world.here, {**two, "kind": "a file", "both": "two!"})
    (world.here / "run.sh").chmod(0o755)
    for words in (("add", "."), ("commit", "-qm", "two"), ("switch", "-q", "-")):
        git(world.here, *words)
    await world.link()
    await world.bring()
    write(world.there, {"old/0/f0": "edited there", "both": "edited there, too"})
    git(world.here, "switch", "-q", "two")
    moved = await world.send()
    # With `kind` and `run.sh`; and 599 of the old ones with kind/inner.
    assert (moved.conflicts, moved.sent_count, moved.deleted_there) == (("both",), 302, 600)
    # What was deleted here and edited there comes back, and is not lost.
    assert (contents(world.here)["old/0/f0"], contents(world.there)["both"]) == ("edited there", "edited there, too")
    await world.decide(keep_local=("both",))
    assert contents(world.there) == project_of(world.here)
    assert (world.there / "run.sh").stat().st_mode & 0o111
    (world.here / "old/0/f0").unlink()
    git(world.here, "switch", "-q", "-")
    assert not (await world.send()).conflicts
    assert contents(world.there) == project_of(world.here)
    assert project_of(world.here) == {**one, "kind/inner": "a folder", "both": "one", "run.sh": "echo"}
    assert (await world.bring()).is_quiet


async def in_step_again(world: World) -> bool:
    """After one more pass, in which nothing may be taken for a conflict."""
    assert not (await world.bring()).conflicts
    return contents(world.there) == contents(world.here)


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.services.workspaces.conftest import World

async def main(folder, verb, count):
    world = World(Path(folder))
    world.find()
    target = world.there if verb == "receive" else world.here

    async def kill_when_some_have_arrived():
        while not any((target / "new").glob("f*")):
            await asyncio.sleep(0.005)
        os.kill(os.getpid(), signal.SIGKILL)

    # The last batch is never sent, so that the pass cannot end before.
    world.sandbox.asking = lambda asked, lane: (
        asyncio.ensure_future(kill_when_some_have_arrived()) if world.sandbox.asked[verb] == count else None
    )
    await world.bring()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


@pytest.mark.parametrize("verb", ["receive", "send"], ids=["sending", "fetching"])
async def test_the_pass_after_a_kill_is_right(world: World, tmp_path: Path, verb: str) -> None:
    """It is killed when the first of two batches has arrived, and the second has not."""
    await in_step(world, {"keep": "1", "gone": "1"})
    source, target = (world.here, world.there) if verb == "receive" else (world.there, world.here)
    new = {f"new/f{number}": f"first {number}" for number in range(BATCH_FILES + 100)}
    write(source, new)
    (world.here / "gone").unlink()
    words = [sys.executable, "-c", KILLED, str(tmp_path), verb, "2"]
    child = await asyncio.create_subprocess_exec(*words, cwd=ROOT)
    assert await child.wait() == -signal.SIGKILL
    assert 0 < len(contents(target / "new")) <= BATCH_FILES
    # What may have arrived by then is edited at its source: only one side was edited by anybody.
    write(source, {name: f"second, longer {name}" for name in list(new)[::3]})
    # Lanes of the killed process may still be writing what they had got; what they wrote is sent again.
    await eventually(lambda: in_step_again(world), bool, "both sides to be the same")
    assert contents(world.here)["new/f0"] == "second, longer new/f0"
    assert "gone" not in contents(world.there)


async def test_two_processes_take_turns(world: World) -> None:
    await in_step(world, {"a": "1"})
    other = world.new_app()
    write(world.here, {"a": "22", "b": "1"})
    write(world.there, {"c": "1"})
    passes = [world.bring(), other.workspaces.bring(world.workspace), other.workspaces.send(world.workspace)]
    done = await asyncio.gather(*passes)
    await other.close()
    assert sum(moved.sent_count for moved in done) == 2
    assert sum(moved.came_count for moved in done) == 1
    assert contents(world.here) == contents(world.there) == {"a": "22", "b": "1", "c": "1"}


async def test_large_results_come_in_the_background_and_an_edit_meanwhile_is_kept(world: World) -> None:
    await in_step(world, {"a": "1"})
    write(
        world.there, {"results/small": "s", "results/large": os.urandom(5 * MIB), "results/other": os.urandom(5 * MIB)}
    )
    moved = await world.bring()
    assert (moved.came, bool(moved.transfer)) == (("results/small",), True)
    write(world.here, {"results/other": "made here, in between"})
    await world.app.transfers.settled()
    assert (world.here / "results/large").read_bytes() == (world.there / "results/large").read_bytes()
    moved = await world.bring()
    assert (moved.conflicts, moved.came_count, moved.transfer) == (("results/other",), 0, "")
    # They are results: what becomes of them here stays here.
    (world.here / "results/large").unlink()
    assert not (await world.send()).deleted_there
    assert (world.there / "results/large").exists()


async def test_another_process_goes_on_with_large_results(world: World) -> None:
    await in_step(world, {"a": "1"})
    write(world.there, {"results/large": os.urandom(9 * MIB)})
    # The process ends before the transfer does.
    assert (await world.bring()).transfer
    await world.app.close()
    assert not (world.here / "results/large").exists()
    world.app = world.new_app()

    async def brought() -> bool:
        await world.bring()
        return (world.here / "results/large").exists()

    await eventually(brought, bool, "the large file")
    await world.app.transfers.settled()
    assert (await world.bring()).is_quiet


async def test_a_preview_names_secrets_and_a_large_project_needs_a_confirmation(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(world.here, {"a": "1", "b": "2", ".env": "", "conf/id_rsa": "", "node_modules/x": ""})
    preview = await world.app.workspaces.preview(world.order())
    assert (preview.files, preview.bytes, preview.excluded) == (2, 2, ("node_modules",))
    assert preview.secrets == (".env", "conf/id_rsa")
    included = world.order(rules=Rules(includes=("id_rsa",)))
    assert (await world.app.workspaces.preview(included)).secrets == (".env",)
    monkeypatch.setattr("remote_sandbox_mcp.core.workspaces.workspace.MOST_UNASKED_FILES", 1)
    with pytest.raises(BadArgument, match="2 files") as told:
        await world.link()
    assert (told.value.reason, world.app.workspaces.all(), world.there.exists()) == ("confirm", [], False)
    assert (await world.link(confirmed=True)).sent_count == 2


async def test_an_agent_links_only_what_the_gate_opens(world: World, clean_environment: Path) -> None:
    write(clean_environment, {".ssh/key": "secret"})
    write(world.here, {"a": "1"})
    with pytest.raises(BadArgument, match="part of remote-sandbox-mcp itself"):
        await world.link(folder=str(paths.state_folder()), free=False)
    with pytest.raises(BadArgument, match="keys and settings"):
        await world.link(folder=str(clean_environment / ".ssh"))
    with pytest.raises(BadArgument, match="the home folder"):
        await world.link(folder=str(clean_environment))
    with pytest.raises(NotAllowed, match="remote-sandbox-mcp allow"):
        await world.link(free=False)
    world.app.transfers.gate.reconfigure(replace(Settings(), allowed_roots=(str(world.here),)), ())
    assert (await world.link(free=False)).sent_count == 1
    # Linked is allowed: a pass in the background knows no client.
    world.app.transfers.gate.reconfigure(Settings(), ())
    write(world.here, {"a": "2"})
    assert (await world.send()).sent_count == 1


async def test_what_a_machine_says_it_put_in_place_is_not_believed_where_it_cannot_be(world: World) -> None:
    await in_step(world, {"a": "1", "b": "1"})
    hear = Tally.hear

    def lie(tally: Tally, reply: Reply) -> Reply:
        reply.end["otherwise"] = [["a", "nonsense"], ["b", "f644 1 1"], ["../c", "f644 1 1"]]
        return hear(tally, reply)

    write(world.here, {"a": "22"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tally, "hear", lie)
        await world.send()
    assert (await world.bring()).is_quiet
    assert contents(world.here) == contents(world.there) == {"a": "22", "b": "1"}
