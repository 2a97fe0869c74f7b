"""What the server says of itself before anything is called: its tools, their size, their hints, its instructions."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.core.transfer import Listener, Order, Outcome, Place
from tests.mcp_server.pin import FILE, HOW, surface
from tests.support.server import Caller, error_of

BYTES_PER_TOKEN = 4
MOST_TOKENS = 8000


async def test_the_tool_list_is_the_one_that_clients_know(tools: Caller) -> None:
    listed = (await tools.client.list_tools()).tools
    assert surface(listed) == json.loads(FILE.read_text()), HOW


async def test_the_tool_list_leaves_room_for_the_rest_of_a_context(tools: Caller) -> None:
    listed = await tools.client.list_tools()
    size = len(listed.model_dump_json(by_alias=True, exclude_none=True).encode())
    assert size / BYTES_PER_TOKEN <= MOST_TOKENS


async def test_every_tool_says_what_it_is_and_what_it_may_do(tools: Caller) -> None:
    for tool in (await tools.client.list_tools()).tools:
        assert tool.title, tool.name
        assert tool.description, tool.name
        hints = tool.annotations
        assert hints is not None, tool.name
        assert hints.read_only_hint is not None, tool.name
        assert hints.open_world_hint is not None, tool.name
        if not hints.read_only_hint:
            assert hints.destructive_hint is not None, tool.name
            assert hints.idempotent_hint is not None, tool.name


async def test_tools_that_only_look_say_so(tools: Caller) -> None:
    listed = {tool.name: tool.annotations for tool in (await tools.client.list_tools()).tools}
    looking = {name for name, hints in listed.items() if hints and hints.read_only_hint}
    assert looking == {
        *("list_sandboxes", "get_active_sandbox"),
        *("check_background_task", "wait_background_task", "list_background_tasks"),
        *("list_remote_files", "read_remote_file", "search_remote_files", "check_file_transfer_task"),
    }


async def test_every_schema_is_a_strict_object(tools: Caller) -> None:
    for tool in (await tools.client.list_tools()).tools:
        assert tool.output_schema is not None, tool.name
        for schema in (tool.input_schema, tool.output_schema):
            jsonschema.Draft202012Validator.check_schema(schema)
            assert schema["type"] == "object", tool.name
        assert tool.input_schema["additionalProperties"] is False, tool.name


async def test_every_default_fits_its_own_schema(tools: Caller) -> None:
    for tool in (await tools.client.list_tools()).tools:
        for name, schema in tool.input_schema["properties"].items():
            if name not in tool.input_schema.get("required", ()):
                jsonschema.validate(schema["default"], schema)


async def test_the_instructions_are_short_and_name_only_tools_that_exist(tools: Caller) -> None:
    instructions = tools.client.instructions or ""
    assert 0 < len(instructions) < 4000
    names = {tool.name for tool in (await tools.client.list_tools()).tools}
    for word in ("list_sandboxes", "exec_bash", "wait_background_task", "edit_remote_file"):
        assert word in instructions
    mentioned = {word.strip(",.;:()") for word in instructions.split()}
    arguments = {name for tool in json.loads(FILE.read_text()).values() for name in tool}
    results = {"idle_score", "not_started", "connection_error"}
    unknown = {word for word in mentioned if "_" in word and "=" not in word} - names - arguments - results
    assert not unknown


# Accepted for the sake of earlier clients.
UNLISTED = {"create_sandbox": ["keep"]}
GOOD: dict[str, dict[str, Any]] = {
    "list_sandboxes": {},
    "select_sandbox": {"sandbox_name": "other"},
    "get_active_sandbox": {},
    "exec_bash": {"command": "true"},
    "exec_bash_background": {"command": "true", "ensure_watchdog": False},
    "wait_background_task": {"tmux_session": "run-0123456789abcdef"},
    "list_background_tasks": {},
    "send_background_input": {"tmux_session": "prompt", "text": "yes"},
    "check_background_task": {"tmux_session": "run-0123456789abcdef"},
    "stop_background_task": {"tmux_session": "run-0123456789abcdef"},
    "list_remote_files": {"remote_path": "~"},
    "read_remote_file": {"remote_path": "~/notes.txt"},
    "write_remote_file": {"remote_path": "~/new", "content": "x"},
    "edit_remote_file": {"remote_path": "~/notes.txt", "old_text": "two", "new_text": "2"},
    "search_remote_files": {"glob": "*.py"},
    "sync_local_to_remote": {"local_path": "/etc/hostname", "remote_path": "/nowhere/x", "dry_run": True},
    "sync_remote_to_local": {"remote_path": "/etc/hostname", "local_path": "/nowhere/x", "dry_run": True},
    "create_sandbox": {"name": "clean"},
    "run_command": {"sandbox_id": "fake", "command": "true"},
    "upload_files": {"sandbox_id": "fake", "files": [{"path": "~/new", "text": "x"}]},
    "download_files": {"sandbox_id": "fake", "paths": ["~/notes.txt"]},
    "delete_sandbox": {"sandbox_id": "clean"},
    "run_tests": {"sandbox_id": "fake", "command": "pytest"},
    "deploy_app": {"sandbox_id": "fake", "command": "serve", "port": 8000, "timeout": 1},
    "forward_port": {"sandbox_id": "fake", "port": 8000},
    "check_file_transfer_task": {"task_id": "tr-00000000"},
    "cancel_file_transfer_task": {"task_id": "tr-00000000"},
}


@pytest.mark.parametrize("tool", GOOD)
async def test_a_good_call_answers_as_its_schema_says(tools: Caller, app: App, tool: str) -> None:
    given = GOOD[tool]
    if tool in ("delete_sandbox", "run_tests"):
        await tools.call("create_sandbox", name="clean")
        given = given | {"sandbox_id": "clean"}
    if tool == "send_background_input":
        await tools.call("exec_bash_background", command="ask", session_name="prompt", watch=False)
    if "task_id" in given:
        order = Order(source=Place("", "/etc/hostname"), target=Place("", "/nowhere/x"))
        given = {"task_id": (await app.copies.transfers.begin(order, nothing_to_do, wait_s=10)).id}
    assert await tools.call(tool, **given)


async def nothing_to_do(order: Order, listener: Listener) -> Outcome:
    return Outcome(synced_type="file")


# What is named in the path of a sync, or means all sandboxes, is named.
UNNAMED = {
    tool: {name: value for name, value in given.items() if name != "sandbox_id"}
    | ({"sandbox_id": ""} if "sandbox_id" in given else {})
    for tool, given in GOOD.items()
    if {"sandbox_name", "sandbox_id"} & json.loads(FILE.read_text())[tool].keys()
    and tool not in ("select_sandbox", "delete_sandbox", "list_background_tasks")
}


@pytest.mark.parametrize("tool", UNNAMED)
async def test_a_call_that_names_no_sandbox_says_where_it_was_and_others_do_not(tools: Caller, tool: str) -> None:
    await tools.call("select_sandbox", sandbox_name="other")
    await tools.call("exec_bash_background", command="ask", session_name="prompt", watch=False)
    answer = await tools.ask(tool, **UNNAMED[tool])
    assert (error_of(answer) if answer.is_error else answer.structured_content or {})["sandbox"] == "other"
    assert "other" in getattr(answer.content[0], "text", "")
    place = "sandbox_id" if "sandbox_id" in UNNAMED[tool] else "sandbox_name"
    named = await tools.ask(tool, **UNNAMED[tool] | {place: "other"})
    assert ("sandbox" in (named.structured_content or error_of(named))) == (tool == "exec_bash_background")


@pytest.mark.parametrize("tool", GOOD)
async def test_an_unknown_argument_is_refused_with_the_right_names(tools: Caller, tool: str) -> None:
    problem = await tools.fail(tool, **GOOD[tool], comand="x")
    assert problem["code"] == "bad_argument"
    assert "'comand'" in problem["error"]
    names = list(json.loads(FILE.read_text())[tool]) + UNLISTED.get(tool, [])
    assert problem["error"].endswith(f"it takes: {', '.join(names) or 'none'}")


WRONG: dict[str, Any] = {
    **{"string": 3, "boolean": "perhaps", "integer": "many", "number": "long", "array": "one", "object": "one"},
    "any of": "perhaps",
}


@pytest.mark.parametrize(
    ("tool", "argument", "kind"),
    [
        (tool, argument, schema.get("type", "any of"))
        for tool, takes in json.loads(FILE.read_text()).items()
        for argument, schema in takes.items()
    ],
)
@pytest.mark.parametrize("value", ["another type", [[]], {}], ids=["other", "list", "object"])
async def test_a_value_of_the_wrong_type_is_refused_by_name(
    tools: Caller, tool: str, argument: str, kind: str, value: Any
) -> None:
    wrong = WRONG[kind] if value == "another type" or (value == {} and kind == "object") else value
    problem = await tools.fail(tool, **GOOD[tool] | {argument: wrong})
    assert problem["code"] == "bad_argument"
    assert problem["error"].startswith(f"{tool}: {argument}")


NEED_NOTHING = ("list_remote_files", "create_sandbox")


@pytest.mark.parametrize("tool", [tool for tool, given in GOOD.items() if given and tool not in NEED_NOTHING])
async def test_a_missing_argument_is_named(tools: Caller, tool: str) -> None:
    problem = await tools.fail(tool)
    assert problem["code"] == "bad_argument"
    assert next(iter(GOOD[tool])) in problem["error"]


async def test_a_tool_that_does_not_exist_is_told(tools: Caller) -> None:
    problem = await tools.fail("no_such_tool")
    assert problem == {"error": "Unknown tool: no_such_tool", "code": "bad_argument"}
