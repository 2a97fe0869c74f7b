"""remote-sandbox-mcp 0.7, README, section 7 文件操作: sync_local_to_remote, sync_remote_to_local."""

from __future__ import annotations

from pathlib import Path

import pytest

from remote_sandbox_mcp.core.sync.transfer import Order, Place
from remote_sandbox_mcp.local.store.transfers import Transfer, id_of
from remote_sandbox_mcp.views.sync_results import transfer_fields
from tests.support.server import Caller, text_of

# DEFAULT_EXCLUDES of 0.7.6, and .venv.
EXCLUDED = (".git/x", ".idea/x", ".vscode/x", "__pycache__/x", "old.pyc", "deep/old.pyc", "node_modules/x", ".venv/x")


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


async def test_the_default_excludes_are_the_originals(tools: Caller, project: Path) -> None:
    write(project / "here", "main.py", *EXCLUDED)
    write(project / "there", ".vscode/kept", "kept.pyc", "extra")
    given = {"local_path": "here", "remote_path": str(project / "there"), "delete_extras": True}
    done = await tools.call("sync_local_to_remote", **given)
    assert files_in(project / "there") == {"main.py", ".vscode/kept", "kept.pyc"}
    hit = ["*.pyc", ".git", ".idea", ".venv", ".vscode", "__pycache__", "node_modules"]
    assert done["excluded_by_default"] == hit


@pytest.mark.parametrize(
    ("line", "stays"),
    [("./build/", "build/x"), ("  build/x", "build/x"), ("./*.log", "a.log"), ("././a.log", "a.log")],
)
async def test_a_pattern_means_what_its_writer_means(tools: Caller, project: Path, line: str, stays: str) -> None:
    """0.7.6 takes ./ and spaces away from the beginning of a pattern."""
    write(project / "here", "build/x", "deep/build/y", "a.log", "deep/a.log", "main.py")
    (project / "patterns").write_text(f"{line}\n")
    for number, given in enumerate(({"excludes": [line]}, {"exclude_file": "patterns"})):
        there = project / f"there{number}"
        await tools.call("sync_local_to_remote", local_path="here", remote_path=str(there), **given)
        assert files_in(project / "here") - files_in(there) == {stays}


async def test_a_push_without_paths_sends_this_folder_to_the_home_folder(tools: Caller) -> None:
    listed = {tool.name: tool.input_schema for tool in (await tools.client.list_tools()).tools}
    schema = listed["sync_local_to_remote"]
    assert [schema["properties"][name]["default"] for name in ("local_path", "remote_path")] == [".", "."]
    assert not schema.get("required")


async def test_a_pull_without_a_local_path_goes_to_remote_mirror(tools: Caller, project: Path) -> None:
    write(project / "there", "result")
    await tools.call("sync_remote_to_local", remote_path=str(project / "there"))
    assert files_in(project / "remote_mirror") == {"result"}


async def test_a_pull_brings_the_logs_of_jobs_and_no_other_hidden_folder(tools: Caller, project: Path) -> None:
    """exec_bash_background writes to .codex_logs of the folder that it runs in."""
    write(project / "there", ".codex_logs/train.log", ".codex_logs/.state", ".hidden/x", ".codex/config.toml")
    done = await tools.call("sync_remote_to_local", remote_path=str(project / "there"))
    assert files_in(project / "remote_mirror") == {".codex_logs/train.log"}
    assert {it["path"] for it in done["problems"]} == {".codex", ".codex_logs/.state", ".hidden"}


async def test_a_pull_says_that_it_fetched(tools: Caller, project: Path) -> None:
    write(project / "there", "result")
    given = {"remote_path": str(project / "there"), "local_path": "back"}
    assert text_of(await tools.ask("sync_remote_to_local", dry_run=True, **given)).startswith(
        "on fake: would fetch 1 file"
    )
    assert text_of(await tools.ask("sync_remote_to_local", **given)).startswith("on fake: 1 file fetched, 0 unchanged")


async def test_sync_local_to_remote_background_can_be_called(tools: Caller, project: Path) -> None:
    """README of 0.7.2, section 7: one of the tools that are always there."""
    write(project / "here", "a")
    given = {"local_path": "here", "remote_path": str(project / "there")}
    begun = await tools.client.call_tool("sync_local_to_remote_background", given)
    fields = begun.structured_content or {}
    assert fields["mode"] == "background"
    done = await tools.call("check_file_transfer_task", task_id=fields["task_id"], wait_s=20)
    assert (done["status"], files_in(project / "there")) == ("completed", {"a"})


@pytest.mark.parametrize(("status", "shown"), [("queued", {"pending": True}), ("running", {"running": True})])
def test_a_transfer_that_has_not_begun_is_pending(status: str, shown: dict[str, bool]) -> None:
    """check_file_transfer_task: pending, running, stale."""
    order = Order(source=Place("", "/a"), target=Place("gpu1", "b"))
    transfer = Transfer(id=id_of(7), order=order, status=status, log_file="", created=1.0, updated=1.0)
    assert transfer_fields(transfer, stale=False) == {"task_id": 7, "status": status} | shown
    assert transfer_fields(transfer, stale=True) == {"task_id": 7, "status": status, "stale": True}
