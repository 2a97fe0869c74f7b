"""What the server says of itself before anything is called: its tools, their size, their hints, its instructions."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import jsonschema
import pytest
from mcp.server.apps import APP_MIME_TYPE, EXTENSION_ID
from mcp.types import ListToolsResult

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.config.schema import Settings
from remote_sandbox_mcp.core.sync.transfer import Listener, Order, Outcome, Place
from remote_sandbox_mcp.fronts.mcp.server import build
from remote_sandbox_mcp.fronts.mcp.toolbox import CARDS
from remote_sandbox_mcp.fronts.mcp.waking import NOTE
from remote_sandbox_mcp.services.fleet import Fleet
from tests.fronts.mcp.conftest import connected, member
from tests.fronts.mcp.pin import FILE, HOW, surface
from tests.support.fakes.sandbox import FakeSandbox
from tests.support.pythons import python_answer
from tests.support.server import Caller, error_of

BYTES_PER_TOKEN = 4
MOST_TOKENS = 8300


@pytest.fixture(autouse=True)
def sample(project: Path) -> None:
    (project / "sample").write_text("x")


@pytest.fixture(scope="module")
async def refusing() -> AsyncIterator[Caller]:
    """One server for all calls that are refused before they do anything."""
    async with connected(App(Fleet([member(FakeSandbox()), member(FakeSandbox(name="other"))]))) as caller:
        yield caller


async def test_the_tool_list_is_the_one_that_clients_know(tools: Caller) -> None:
    listed = (await tools.client.list_tools()).tools
    assert surface(listed) == json.loads(FILE.read_text()), HOW


async def test_the_tool_list_leaves_room_for_the_rest_of_a_context(tools: Caller) -> None:
    # Pictures are for people: clients send models none (make clients looks at what their models are sent).
    listed = [tool.model_copy(update={"icons": None}) for tool in (await tools.client.list_tools()).tools]
    size = len(ListToolsResult(tools=listed).model_dump_json(by_alias=True, exclude_none=True).encode())
    assert size / BYTES_PER_TOKEN <= MOST_TOKENS


async def test_every_tool_has_a_picture_and_all_of_them_are_small(tools: Caller) -> None:
    listed = (await tools.client.list_tools()).tools
    pictures = {tool.name: icon.src for tool in listed for icon in tool.icons or ()}
    assert pictures.keys() == {tool.name for tool in listed}
    for source in pictures.values():
        assert ElementTree.fromstring(unquote(source.partition(",")[2])).tag.endswith("svg")
    assert sum(map(len, pictures.values())) < 5_000
    assert len({*pictures.values()}) == 8


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
            if "default" in schema:
                assert name not in tool.input_schema.get("required", ()), (tool.name, name)
                jsonschema.validate(schema["default"], schema)


@pytest.mark.parametrize("advanced", [False, True], ids=["usual", "advanced"])
async def test_every_listed_parameter_says_what_it_is(advanced: bool) -> None:
    app = App(Fleet([]), settings=Settings(expose_advanced_tools=advanced))
    async with connected(app) as tools:
        for tool in (await tools.client.list_tools()).tools:
            for name, schema in tool.input_schema["properties"].items():
                assert schema.get("description"), (tool.name, name)


async def test_the_tools_that_work_begins_with_are_not_kept_behind_a_search(tools: Caller) -> None:
    listed = (await tools.client.list_tools()).tools
    loaded = {tool.name for tool in listed if (tool.meta or {}).get("anthropic/alwaysLoad") is True}
    assert loaded == {"exec_bash", "list_sandboxes", "read_remote_file"}


async def test_clients_that_render_apps_find_the_cards_of_two_tools(tools: Caller) -> None:
    listed = (await tools.client.list_tools()).tools
    pages = {tool.name: tool.meta["ui"]["resourceUri"] for tool in listed if tool.meta and "ui" in tool.meta}
    assert pages == dict.fromkeys(("list_sandboxes", "check_background_task"), CARDS)
    assert EXTENSION_ID in (tools.client.server_capabilities.extensions or {})
    (document,) = (await tools.client.read_resource(CARDS)).contents
    assert document.mime_type == APP_MIME_TYPE


async def test_the_instructions_are_short_and_name_only_tools_that_exist(tools: Caller) -> None:
    instructions = tools.client.instructions or ""
    # Claude Code cuts them there, with the note on channels that comes before them.
    assert 0 < len(NOTE) + len(instructions) <= 2048
    names = {tool.name for tool in (await tools.client.list_tools()).tools}
    for word in ("list_sandboxes", "exec_bash", "wait_background_task", "edit_remote_file"):
        assert word in instructions
    mentioned = {word.strip(",.;:()") for word in instructions.split()}
    arguments = {name for tool in json.loads(FILE.read_text()).values() for name in tool}
    results = {"idle_score", "not_started", "connection_error"}
    unknown = {word for word in mentioned if "_" in word and "=" not in word} - names - arguments - results
    assert not unknown


GOOD: dict[str, dict[str, Any]] = {
    "list_sandboxes": {},
    "select_sandbox": {"sandbox_name": "other"},
    "get_active_sandbox": {},
    "exec_bash": {"command": "true"},
    "run_python": {"code": "1"},
    "exec_bash_background": {"command": "true", "ensure_watchdog": False},
    "wait_background_task": {"tmux_session": "prompt", "timeout_s": 0},
    "list_background_tasks": {},
    "send_background_input": {"tmux_session": "prompt", "text": "yes"},
    "check_background_task": {"tmux_session": "prompt"},
    "stop_background_task": {"tmux_session": "prompt"},
    "list_remote_files": {"remote_path": "~"},
    "read_remote_file": {"remote_path": "~/notes.txt"},
    "write_remote_file": {"remote_path": "~/new", "content": "x"},
    "edit_remote_file": {"remote_path": "~/notes.txt", "old_text": "two", "new_text": "2"},
    "search_remote_files": {"glob": "*.py"},
    "sync_local_to_remote": {"local_path": "sample", "remote_path": "/nowhere/x", "dry_run": True},
    "sync_remote_to_local": {"remote_path": "/etc/hostname", "local_path": "x", "dry_run": True},
    "link_workspace": {},
    "create_sandbox": {"name": "clean"},
    "run_command": {"command": "true", "sandbox_id": "fake"},
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
    assert await tools.call(tool, **await prepared(tools, app, tool))


async def prepared(tools: Caller, app: App, tool: str) -> dict[str, Any]:
    """The arguments of a good call, and what it needs to be there."""
    given = GOOD[tool]
    if tool in ("delete_sandbox", "run_tests"):
        await tools.call("create_sandbox", name="clean")
        given = given | {"sandbox_id": "clean"}
    if tool == "run_python":
        for sandbox in (await app.fleet.get("fake"), await app.fleet.get("other")):
            assert isinstance(sandbox, FakeSandbox)
            sandbox.answers = python_answer
    if given.get("tmux_session") == "prompt":
        await tools.call("exec_bash_background", command="ask", session_name="prompt", watch=False)
    if "task_id" in given:
        order = Order(source=Place("", "/etc/hostname"), target=Place("", "/nowhere/x"))
        given = {"task_id": (await app.transfers.background.begin(order, nothing_to_do, wait_s=10)).id}
    return given


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
    assert ("sandbox" in (named.structured_content or error_of(named))) == (
        tool in ("exec_bash_background", "deploy_app")
    )


@pytest.mark.parametrize("tool", GOOD)
async def test_an_unknown_argument_is_refused_with_the_right_names(refusing: Caller, tool: str) -> None:
    problem = await refusing.fail(tool, **GOOD[tool], comand="x")
    assert problem["code"] == "bad_argument"
    assert "'comand'" in problem["error"]
    names = set(json.loads(FILE.read_text())[tool]) or {"none"}
    assert names <= set(problem["error"].partition("it takes: ")[2].split(", "))


# Sent by configurations that were written for earlier programs.
EARLIER: dict[str, dict[str, Any]] = {
    "create_sandbox": {"keep": True},
    "run_python": {"max_output_chars": 100},
    "exec_bash_background": {"max_log_lines": 100},
    "wait_background_task": {"watch_id": 0},
    "stop_background_task": {"watch_id": 0},
    "send_background_input": {"watch_id": 0},
}
WATCHED: dict[str, Any] = {
    "ensure_watchdog": False,
    "run_id": "r-1",
    "watch_name": "w",
    "resume_plan_json": '{"resume_command": "true"}',
    "notify_local": False,
    "metadata_json": '{"a": 1}',
    "alert_after_failures": 3,
    "resume_delay_s": 60,
}


@pytest.mark.parametrize(
    ("tool", "argument"), [(tool, argument) for tool, given in EARLIER.items() for argument in given]
)
async def test_what_earlier_configurations_send_is_taken_without_being_listed(
    tools: Caller, app: App, tool: str, argument: str
) -> None:
    assert argument not in json.loads(FILE.read_text())[tool]
    given = await prepared(tools, app, tool)
    assert await tools.call(tool, **given | {argument: EARLIER[tool][argument]})
    problem = await tools.fail(tool, **given | {argument: [[]]})
    assert problem["error"].startswith(f"{tool}: {argument}")
    misspelt = await tools.fail(tool, **given, **{f"{argument}x": 1})
    assert f"did you mean {argument}?" in misspelt["error"]


async def test_a_watch_is_as_it_was_ordered() -> None:
    fake = FakeSandbox()
    app = App(Fleet([member(fake)]), settings=Settings(expose_advanced_tools=True))
    async with connected(app) as tools:
        started = await tools.call("exec_bash_background", command="ask", **WATCHED)
        watch = (await tools.call("get_background_watch", watch_id=started["watch_id"]))["watch"]
    kept = {"run_id": "r-1", "name": "w", "resume_command": "true", "metadata": {"a": 1}, "notify_local": False}
    assert {name: watch[name] for name in kept} == kept
    assert (watch["alert_after_failures"], watch["resume_delay_s"]) == (3, 60)


@pytest.mark.parametrize(
    ("tool", "given"),
    [
        ("exec_bash", {"command": "true", "sandbox_id": "other", "timeout": 5}),
        ("run_command", {"command": "true", "sandbox_name": "other", "timeout_s": 5}),
    ],
    ids=str,
)
async def test_a_tool_takes_the_name_that_another_tool_has_for_the_same_thing(
    tools: Caller, other: FakeSandbox, tool: str, given: dict[str, Any]
) -> None:
    assert "exit_code" in await tools.call(tool, **given)
    assert other.commands[-1].timeout_s == 5
    place = "sandbox_id" if "sandbox_name" in given else "sandbox_name"
    twice = await tools.fail(tool, **given | {place: "fake"})
    assert twice["error"].startswith(f"{tool} has no argument")


WRONG: dict[str, Any] = {
    **{"string": 3, "boolean": "perhaps", "integer": "many", "number": "long", "array": "one", "object": "one"},
    "any of": "perhaps",
}


def kind_of(schema: dict[str, Any]) -> str:
    takes_object = {"type": "object"} in schema.get("anyOf", ())
    return "object" if takes_object else schema.get("type", "any of")


@pytest.mark.parametrize(
    ("tool", "argument", "kind"),
    [
        (tool, argument, kind_of(schema))
        for tool, takes in json.loads(FILE.read_text()).items()
        for argument, schema in takes.items()
    ],
)
@pytest.mark.parametrize("value", ["another type", [[]], {}], ids=["other", "list", "object"])
async def test_a_value_of_the_wrong_type_is_refused_by_name(
    refusing: Caller, tool: str, argument: str, kind: str, value: Any
) -> None:
    wrong = WRONG[kind] if value == "another type" or (value == {} and kind == "object") else value
    # One text stands for a list of it.
    wrong = 3 if wrong == "one" and kind == "array" else wrong
    # An id may be given as a text.
    wrong = True if argument == "task_id" and wrong == "many" else wrong
    problem = await refusing.fail(tool, **GOOD[tool] | {argument: wrong})
    assert problem["code"] == "bad_argument"
    assert problem["error"].startswith(f"{tool}: {argument}")


NEED_NOTHING = (
    *("list_remote_files", "create_sandbox", "check_file_transfer_task"),
    *("sync_local_to_remote", "sync_remote_to_local"),
)


@pytest.mark.parametrize("tool", [tool for tool, given in GOOD.items() if given and tool not in NEED_NOTHING])
async def test_a_missing_argument_is_named(refusing: Caller, tool: str) -> None:
    problem = await refusing.fail(tool)
    assert problem["code"] == "bad_argument"
    assert next(iter(GOOD[tool])) in problem["error"]


async def test_a_tool_that_does_not_exist_is_told(refusing: Caller) -> None:
    problem = await refusing.fail("no_such_tool")
    assert problem == {"error": "Unknown tool: no_such_tool", "code": "bad_argument"}


async def test_a_call_makes_the_schemas_of_its_tool_alone(app: App) -> None:
    server = build(app)
    await server.call_tool("exec_bash", {"command": "true"})
    made = server._tool_manager._tools
    assert set(made) == {"exec_bash"}
    offered = [tool.name for tool in await server.list_tools()]
    assert (offered[0], set(made)) == ("list_sandboxes", set(offered))
    await app.close()
