"""A machine that means harm changes its side of a workspace: what comes back, and what it is sent after that."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from remote_sandbox_mcp.config import paths
from remote_sandbox_mcp.config.schema import Settings
from remote_sandbox_mcp.core.workspaces.workspace import MOST_NAMED, Rules
from remote_sandbox_mcp.services.workspaces import passes, trash
from tests.services.workspaces.conftest import World, contents, write

MIB = 1 << 20
PROJECT = {".gitignore": "secret.txt\ndata/\n", "sub/.gitignore": "inner.txt\n", "a.py": "1", "sub/b.py": "2"}
PRIVATE = {"secret.txt": "key", "data/x": "key", "sub/inner.txt": "key"}


async def in_step(world: World, files: dict[str, str]) -> None:
    write(world.here, files)
    await world.link()
    await world.bring()


# Rules that decide what is sent

ATTACKS = {
    "emptied": lambda there: write(there, {".gitignore": "", "sub/.gitignore": ""}),
    "turned round": lambda there: write(there, {".gitignore": "!secret.txt\n!data/\n", "sub/.gitignore": "!*\n"}),
    "deleted": lambda there: [(there / name).unlink() for name in (".gitignore", "sub/.gitignore")],
    "deleted with its folder": lambda there: (shutil.rmtree(there / "sub"), (there / ".gitignore").unlink()),
    "a link": lambda there: [
        ((there / name).unlink(), (there / name).symlink_to("a.py")) for name in (".gitignore", "sub/.gitignore")
    ],
    "a folder": lambda there: ((there / ".gitignore").unlink(), write(there, {".gitignore/x": ""})),
    "a file in place of its folder": lambda there: (shutil.rmtree(there / "sub"), write(there, {"sub": "text"})),
    "a link in place of its folder": lambda there: (shutil.rmtree(there / "sub"), (there / "sub").symlink_to("other")),
    "another one below": lambda there: write(there, {"data/.gitignore": "!*\n", "sub/.gitignore": "!inner.txt\n"}),
    "rules of ours": lambda there: write(there, {".remote-sandbox.toml": 'includes = ["secret.txt"]\nexcludes = []\n'}),
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("keep_remote", [False, True], ids=["by itself", "an agent agrees"])
async def test_a_machine_is_never_sent_what_was_excluded(world: World, attack: str, keep_remote: bool) -> None:
    await in_step(world, {**PROJECT, **PRIVATE})
    rules = {name: PROJECT[name] for name in (".gitignore", "sub/.gitignore")}
    ATTACKS[attack](world.there)
    for edit in ("3", "4"):
        await world.bring()
        if keep_remote:
            await world.decide(keep_remote=(".gitignore", "sub/.gitignore", "sub", "data", ".remote-sandbox.toml"))
        write(world.here, {"a.py": edit})
        await world.send()
    assert contents(world.there)["a.py"] == "4"
    assert [name for name, text in contents(world.there).items() if text == "key"] == []
    assert contents(world.here).items() >= {**rules, **PRIVATE}.items()


async def test_a_rule_that_is_changed_here_goes_and_counts(world: World) -> None:
    await in_step(world, {**PROJECT, **PRIVATE})
    write(world.here, {".gitignore": "data/\n"})
    assert (await world.send()).sent == (".gitignore", "secret.txt")


# Names that run or instruct

NAMES = (
    *("CLAUDE.md", "CLAUDE.local.md", "claude.md", "AGENTS.md", "agents.override.md", "AGENT.md", "GEMINI.md"),
    *("docs/CLAUDE.md", "skills/deploy/SKILL.md", "copilot-instructions.md", "rules/a.mdc", "opencode.json"),
    *(".cursorrules", ".windsurfrules", ".clinerules", ".github/copilot-instructions.md", ".github/workflows/ci.yml"),
    *(".claude/commands/x.md", ".claude/settings.json", ".cursor/rules/x", ".codex/prompts/x.md", ".gemini/GEMINI.md"),
    *(".kiro/hooks/x", ".vscode/tasks.json", ".vscode/settings.json", ".idea/workspace.xml", ".zed/tasks.json"),
    *(".devcontainer/devcontainer.json", ".devcontainer.json", ".husky/pre-commit", ".pre-commit-config.yaml"),
    *("p.code-workspace", "p.sublime-project", "mise.toml", "mise.local.toml", ".mise.toml", ".tool-versions"),
    *(".remote-sandbox.toml", "config.json", ".gitattributes", ".gitmodules", ".exrc", ".nvim.lua", ".dir-locals.el"),
    *("flake.nix", "shell.nix", "devbox.json", "lefthook.yml", "sitecustomize.py", "usercustomize.py", "x.desktop"),
    *("lib/site-packages/x.pth", ".yarnrc.yml", ".bazelrc", ".justfile", "src/.hidden/deep/x", "autorun.inf"),
    *("\u200c.gitignore", "\u017fkill.md", "results/.claude/x", "results/AGENTS.md", "htmlcov/CLAUDE.md"),
)
ORDINARY = {"main.py": "1", "Makefile": "a:", "package.json": "{}", "results/model.pth": "x", "docs/config.json": "{}"}


async def test_what_runs_or_instructs_by_its_name_stays_there_and_is_told_once(world: World) -> None:
    await in_step(world, {"a.py": "1"})
    write(world.there, {**dict.fromkeys(NAMES, "do this"), **ORDINARY})
    moved = await world.bring()
    assert contents(world.here) == {"a.py": "1", **ORDINARY}
    assert moved.kept_there_count == len(NAMES)
    assert set(moved.kept_there) < set(NAMES)
    assert f" and {len(NAMES) - MOST_NAMED} more, since files of such names" in moved.line()
    assert not moved.problems
    for _ in range(2):
        assert (await world.bring()).is_quiet
        assert (await world.send()).is_quiet
    state = await world.app.workspaces.state(world.workspace)
    assert (state.is_in_step, state.kept_there_count) == (True, len(NAMES))
    write(world.there, {"CLAUDE.md": "do that instead"})
    assert (await world.bring()).kept_there == ("CLAUDE.md",)
    assert contents(world.here) == {"a.py": "1", **ORDINARY}


async def test_a_change_that_stays_there_is_neither_overwritten_nor_a_conflict_until_it_changes_here(
    world: World,
) -> None:
    await in_step(world, {".pre-commit-config.yaml": "v1", "CLAUDE.md": "ours", "a": "1"})
    write(world.there, {".pre-commit-config.yaml": "version 2"})
    (world.there / "CLAUDE.md").unlink()
    moved = await world.bring()
    assert (moved.kept_there, moved.conflicts) == ((".pre-commit-config.yaml", "CLAUDE.md (deleted there)"), ())
    write(world.here, {"a": "2"})
    assert (await world.send()).sent == ("a",)
    assert contents(world.there) == {".pre-commit-config.yaml": "version 2", "a": "2"}
    assert contents(world.here) == {".pre-commit-config.yaml": "v1", "CLAUDE.md": "ours", "a": "2"}
    write(world.here, {".pre-commit-config.yaml": "v3, here"})
    assert (await world.send()).conflicts == (".pre-commit-config.yaml",)
    await world.decide(keep_remote=(".pre-commit-config.yaml",), keep_local=("CLAUDE.md",))
    assert contents(world.here) == contents(world.there)
    assert contents(world.here)[".pre-commit-config.yaml"] == "version 2"
    assert (await world.bring()).is_quiet


async def test_what_is_deleted_here_and_changed_there_waits_for_a_decision(world: World) -> None:
    await in_step(world, {"CLAUDE.md": "ours", "a": "1"})
    write(world.there, {"CLAUDE.md": "theirs!"})
    await world.bring()
    (world.here / "CLAUDE.md").unlink()
    assert (await world.send()).conflicts == ("CLAUDE.md",)
    world.sandbox.asked.clear()
    assert (await world.send()).is_quiet
    assert not world.sandbox.asked
    await world.decide(keep_local=("CLAUDE.md",))
    assert contents(world.there) == {"a": "1"}


async def test_the_same_content_with_another_time_is_no_change(world: World) -> None:
    await in_step(world, {".gitignore": "x\n", "a": "1"})
    os.utime(world.there / ".gitignore", (1, 1))
    assert (await world.bring()).is_quiet
    assert contents(world.there)[".gitignore"] == "x\n"
    assert (await world.send()).is_quiet


@pytest.mark.parametrize(
    ("decided", "comes"),
    [
        (("CLAUDE.md", ".github"), {"CLAUDE.md", ".github/a.yml"}),
        (("docs",), {"docs/x.md"}),
        ((".claude/settings.json", ".vscode/tasks.json"), set()),
    ],
    ids=["the very path", "a folder around it", "what starts programs"],
)
async def test_a_decision_fetches_the_very_path(world: World, decided: tuple[str, ...], comes: set[str]) -> None:
    await in_step(world, {"a": "1"})
    there = (
        "CLAUDE.md",
        ".github/a.yml",
        ".github/.x",
        "docs/CLAUDE.md",
        ".claude/settings.json",
        ".vscode/tasks.json",
    )
    write(world.there, dict.fromkeys(there, "x"))
    (world.there / "docs/x.md").write_bytes(b"\0")
    await world.bring()
    moved = await world.decide(keep_remote=decided)
    assert contents(world.here).keys() == {"a", *comes}
    assert len(moved.problems) == (0 if comes else 2)


# The trash


def trashed(world: World) -> dict[str, str]:
    return {each.path: each.file.read_text() for each in world.app.workspaces.trash.all()}


async def test_what_is_deleted_or_emptied_there_can_be_restored(world: World) -> None:
    await in_step(world, {"a": "mine", "src/b": "mine, too", "src/deep/c": "also mine", "keep": "1"})
    (world.here / "src/deep/c").chmod(0o750)
    await world.bring()
    write(world.there, {"a": ""})
    shutil.rmtree(world.there / "src")
    moved = await world.bring()
    assert contents(world.here) == {"a": "", "keep": "1"}
    assert "moved to the trash, since deleted there: src/b, src/deep/c (remote-sandbox-mcp workspaces" in moved.line()
    assert trashed(world) == {"a": "mine", "src/b": "mine, too", "src/deep/c": "also mine"}
    top = paths.state_folder() / "trash"
    assert top.stat().st_mode & 0o777 == 0o700
    # It outlives the link.
    await world.app.workspaces.unlink(str(world.here))
    world.app.workspaces.trash.restore(str(world.here / "src"))
    with pytest.raises(trash.BadArgument, match="is there, and another one"):
        world.app.workspaces.trash.restore(str(world.here / "a"))
    world.app.workspaces.trash.restore(str(world.here / "a"), force=True)
    assert contents(world.here) == {"a": "mine", "src/b": "mine, too", "src/deep/c": "also mine", "keep": "1"}
    assert (world.here / "src/deep/c").stat().st_mode & 0o777 == 0o750
    assert trashed(world) == {"a": ""}
    with pytest.raises(trash.BadArgument, match="not in the trash"):
        world.app.workspaces.trash.restore(str(world.here / "src"))


async def test_a_file_that_is_replaced_by_one_of_its_size_and_time_is_kept(world: World) -> None:
    """It is listed with another time than it is sent with."""
    await in_step(world, {"a": "mine", "b": "1"})
    before = (world.here / "a").stat()
    write(world.there, {"a": "evil"})
    os.utime(world.there / "a", ns=(1, before.st_mtime_ns + 1))

    def set_back(verb: str, lane: object) -> None:
        if verb == "send":
            os.utime(world.there / "a", ns=(1, before.st_mtime_ns))

    world.sandbox.asking = set_back  # type: ignore[assignment]
    await world.bring()
    now = (world.here / "a").stat()
    assert (now.st_size, now.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert (contents(world.here)["a"], trashed(world)) == ("evil", {"a": "mine"})


async def test_what_is_restored_goes_there_again(world: World) -> None:
    await in_step(world, {"a": "mine", "b": "1"})
    (world.there / "a").unlink()
    await world.bring()
    world.app.workspaces.trash.restore(str(world.here / "a"))
    assert (await world.send()).sent == ("a",)
    assert contents(world.there) == contents(world.here) == {"a": "mine", "b": "1"}


async def test_results_and_what_was_edited_meanwhile_are_not_in_the_trash(world: World) -> None:
    await in_step(world, {"a": "1", "b": "1"})
    write(world.there, {"results/x": "1"})
    await world.bring()
    write(world.there, {"results/x": "22"})
    await world.bring()
    assert trashed(world) == {}


async def test_a_machine_cannot_push_out_of_the_trash_what_it_deleted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trash, "MOST_BYTES", 1000)
    await in_step(world, {"mine": "x" * 600, "other": "y" * 600, "keep": "1"})
    (world.there / "mine").unlink()
    await world.bring()
    (world.there / "other").unlink()
    write(world.there, {"new": "1", "keep": "changed"})
    moved = await world.bring()
    assert "2 files deleted or changed there stay as they were here, because the trash would hold" in moved.line()
    assert contents(world.here) == {"other": "y" * 600, "keep": "1", "new": "1"}
    assert trashed(world) == {"mine": "x" * 600}
    # After a week there is room.
    (batch,) = (paths.state_folder() / "trash" / world.workspace.id).glob("[0-9]*")
    batch.rename(batch.with_name(str(int((time.time() - trash.YOUNG_S - 60) * 1e9))))
    await world.bring()
    assert contents(world.here) == contents(world.there)
    assert trashed(world) == {"other": "y" * 600, "keep": "1"}


async def test_what_is_in_the_trash_for_long_goes(world: World) -> None:
    await in_step(world, {"a": "1", "b": "1", "c": "1"})
    (world.there / "a").unlink()
    await world.bring()
    (batch,) = (paths.state_folder() / "trash" / world.workspace.id).glob("[0-9]*")
    batch.rename(batch.with_name(str(int((time.time() - trash.OLD_S - 60) * 1e9))))
    (world.there / "b").unlink()
    await world.bring()
    assert trashed(world) == {"b": "1"}
    assert world.app.workspaces.trash.empty(str(world.here)) == 1
    assert trashed(world) == {}


# Size

RESULTS = {"results/small": b"s", "results/large": bytes(5 * MIB), "results/other": bytes(4 * MIB)}


async def fetched(world: World) -> set[str]:
    await world.bring()
    await world.app.transfers.settled()
    return {name for name in contents(world.here) if name.startswith("results/")}


async def test_a_result_that_is_too_large_stays_there_and_is_told_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "LARGEST_RESULT", 4 * MIB)
    await in_step(world, {"a": "1"})
    write(world.there, RESULTS)
    moved = await world.bring()
    assert "stayed there, because of the size or the free space here: results/large; sync_remote_to" in moved.line()
    await world.app.transfers.settled()
    assert await fetched(world) == {"results/small", "results/other"}
    assert (await world.bring()).is_quiet


async def test_a_result_that_grows_before_it_is_fetched_stays_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await in_step(world, {"a": "1"})
    write(world.there, RESULTS)
    monkeypatch.setattr(passes, "LARGEST_RESULT", 5 * MIB)
    assert (await world.bring()).transfer
    write(world.there, {"results/large": bytes(6 * MIB)})
    await world.app.transfers.settled()
    assert await fetched(world) == {"results/small", "results/other"}


@pytest.mark.parametrize("room", [0, 5 * MIB], ids=["none", "some"])
async def test_a_full_disk_gets_no_results(world: World, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    monkeypatch.setattr(passes, "_room_on_disk", lambda folder: room)
    await in_step(world, {"a": "1"})
    write(world.there, {**RESULTS, "new.py": "text comes"})
    assert await fetched(world) == ({"results/small", "results/other"} if room else set())
    assert contents(world.here)["new.py"] == "text comes"


def test_a_part_of_the_disk_stays_free(tmp_path: Path) -> None:
    found = os.statvfs(tmp_path)
    assert 0 <= passes._room_on_disk(str(tmp_path)) <= found.f_bavail * found.f_frsize * 0.9


async def test_the_rules_of_a_link_open_no_name(world: World) -> None:
    world.rules = Rules(pull=("**", ".claude/**", "CLAUDE.md"), includes=(".envrc",))
    await in_step(world, {"a": "1"})
    write(world.there, {".claude/x": "1", "CLAUDE.md": "1", ".envrc": "1"})
    assert (await world.bring()).kept_there == (".claude/x", ".envrc", "CLAUDE.md")
    assert contents(world.here) == {"a": "1"}


async def test_a_folder_of_programs_in_the_project_goes_and_is_not_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As direnv leaves it: the project's own bin is in PATH."""
    monkeypatch.setenv("PATH", f"{world.here / 'bin'}:{os.environ['PATH']}")
    world.app.transfers.gate.reconfigure(Settings(allowed_roots=(str(world.here),)), ())
    write(world.here, {"bin/tool": "1"})
    await world.link(free=False)
    assert contents(world.there)["bin/tool"] == "1"
    write(world.there, {"bin/tool": "evil", "bin/new": "evil", "a": "1"})
    moved = await world.bring()
    assert contents(world.here) == {"bin/tool": "1", "a": "1"}
    assert any("a folder of programs" in problem for problem in moved.problems)
