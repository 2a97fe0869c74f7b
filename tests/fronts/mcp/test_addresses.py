"""Paths that name their sandbox, as gpu1:data does, mean the same to every tool that takes one."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import remote_sandbox_mcp
from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.config.schema import Settings
from remote_sandbox_mcp.fronts.mcp.prefetch import OPENERS
from remote_sandbox_mcp.fronts.mcp.server import build
from remote_sandbox_mcp.services.fleet import Fleet
from tests.support.fakes.sandbox import FakeSandbox
from tests.support.server import Caller, text_of

# The arguments of each tool besides its sandbox, with PATH in place of the path on a sandbox.
TOOLS: dict[str, dict[str, Any]] = {
    "list_remote_files": {"remote_path": "PATH"},
    "read_remote_file": {"remote_path": "PATH"},
    "write_remote_file": {"remote_path": "PATH", "content": "x"},
    "edit_remote_file": {"remote_path": "PATH", "old_text": "one", "new_text": "1"},
    "search_remote_files": {"remote_path": "PATH", "glob": "*"},
    "upload_files": {"files": [{"path": "PATH", "text": "x"}]},
    "download_files": {"paths": ["PATH"]},
    "sync_local_to_remote": {"local_path": "here", "remote_path": "PATH"},
    "sync_remote_to_local": {"local_path": "here", "remote_path": "PATH"},
    "link_workspace": {"remote_path": "PATH", "dry_run": True},
}
OTHER_END = ("sync_local_to_remote", "sync_remote_to_local")
# Read before the tools are loaded; the words of the command line. Neither is a table of facts about tools.
MAY_NAME_TOOLS = ("fronts/mcp/tools/", "fronts/mcp/prefetch.py", "cli/words.py")


def filled(value: Any, path: str) -> Any:
    if isinstance(value, dict):
        return {key: filled(item, path) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, path) for item in value]
    return path if value == "PATH" else value


async def refusal(tools: Caller, tool: str, **given: Any) -> str:
    return str((await tools.fail(tool, **given))["error"])


def place_of(tool: str) -> str:
    return "sandbox_id" if tool in ("upload_files", "download_files") else "sandbox_name"


def all_declarations() -> dict[str, Any]:
    return dict(build(App(Fleet([]), settings=Settings(expose_advanced_tools=True))).declarations)


def test_every_tool_with_such_a_path_is_tried_here() -> None:
    declared = {name for name, tool in all_declarations().items() if tool.paths}
    assert declared - {"sync_local_to_remote_background"} == set(TOOLS)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("named", [{}, {"PLACE": "fake"}], ids=["alone", "beside a sandbox"])
async def test_an_unknown_name_before_a_colon_is_refused(tools: Caller, tool: str, named: dict[str, str]) -> None:
    given = filled(TOOLS[tool], "fak:notes.txt") | {place_of(tool): name for name in named.values()}
    problem = await refusal(tools, tool, **given)
    assert "no sandbox is named 'fak'; did you mean fake?" in problem
    assert "A path with a colon is written ./fak:notes.txt" in problem


@pytest.mark.parametrize("tool", TOOLS)
async def test_a_path_on_another_sandbox_than_the_named_one_is_refused(tools: Caller, tool: str) -> None:
    problem = await refusal(tools, tool, **filled(TOOLS[tool], "other:x"), **{place_of(tool): "fake"})
    assert "other:x names another sandbox than fake" in problem


@pytest.mark.parametrize("tool", OTHER_END)
async def test_an_unknown_name_at_the_other_end_is_refused(tools: Caller, tool: str) -> None:
    problem = await refusal(tools, tool, local_path="fak:x", remote_path="x")
    assert "did you mean fake?" in problem


async def test_a_path_names_the_sandbox_of_its_call(tools: Caller, other: FakeSandbox) -> None:
    await tools.call("write_remote_file", remote_path="other:~/new.txt", content="there")
    await tools.call("upload_files", files=[{"path": "other:~/up.txt", "text": "there"}])
    assert (await tools.call("read_remote_file", remote_path="other:~/new.txt"))["content"] == "there"
    listed = await tools.call("list_remote_files", remote_path="other:~")
    assert {"/home/fake/new.txt", "/home/fake/up.txt"} <= {entry["path"] for entry in listed["entries"]}
    found = await tools.call("search_remote_files", remote_path="other:~", glob="new*")
    assert len(found["matches"]) == 1
    assert {path.rpartition("/")[2] for path in other.files} >= {"new.txt", "up.txt"}


async def test_a_path_of_its_own_with_a_colon_begins_with_a_dot(tools: Caller, fake: FakeSandbox) -> None:
    await tools.call("write_remote_file", remote_path="./other:x", content="mine")
    assert (await tools.call("read_remote_file", remote_path="./other:x"))["content"] == "mine"
    assert any(path.endswith("other:x") for path in fake.files)


@pytest.mark.parametrize("tool", TOOLS)
async def test_a_dot_before_a_colon_keeps_every_tool_from_looking_for_a_sandbox(tools: Caller, tool: str) -> None:
    given = filled(TOOLS[tool], "./gpu9:x") | {place_of(tool): "fake"}
    answer = await tools.client.call_tool(tool, given)
    assert "no sandbox is named" not in text_of(answer)
    assert "names another sandbox" not in text_of(answer)


# Declarations


def tables(tree: ast.AST) -> list[ast.AST]:
    return [node for node in ast.walk(tree) if isinstance(node, (ast.Dict, ast.Set, ast.Tuple, ast.List))]


def names_in(table: ast.AST) -> set[str]:
    parts = table.keys if isinstance(table, ast.Dict) else getattr(table, "elts", ())
    return {part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)}


def test_no_module_but_the_tools_own_names_a_tool_in_a_table() -> None:
    root, tools = Path(remote_sandbox_mcp.__file__).parent, set(all_declarations())
    found = {
        (name, *sorted(names_in(table) & tools))
        for file in root.rglob("*.py")
        if not (name := file.relative_to(root).as_posix()).startswith(MAY_NAME_TOOLS)
        for table in tables(ast.parse(file.read_text()))
        if names_in(table) & tools
    }
    assert found == set()


def test_the_sandboxes_of_first_calls_are_opened_only_for_tools_that_use_one() -> None:
    declared = all_declarations()
    assert all(declared[name].starts or declared[name].paths for name in OPENERS)
