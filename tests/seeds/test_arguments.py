"""Arguments as users and models of the two originals send them: remote-sandbox-mcp 0.7, README, section 7."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fronts.mcp.pin import FILE
from tests.support.fakes.sandbox import Answer, FakeSandbox
from tests.support.server import Caller

NOTES = "~/notes.txt"
# Every parameter of a tool that is offered by default.
DOCUMENTED = {
    "list_sandboxes": "check_resources",
    "select_sandbox": "sandbox_name",
    "get_active_sandbox": "",
    "exec_bash": "command cwd timeout_s max_output_chars sandbox_name",
    "exec_bash_background": (
        "command session_name log_file cwd sandbox_name watch ensure_watchdog run_id watch_name resume_command "
        "resume_plan_json checkpoint_path checkpoint_command checkpoint_format interval_s alert_after_failures "
        "resume_delay_s notify_local webhook_url event_command auto_resume max_resume_attempts metadata_json "
        "codex_wakeup codex_command"
    ),
    "check_background_task": "tmux_session log_file watch_id last_n_lines sandbox_name",
    "list_remote_files": "remote_path recursive max_entries sandbox_name",
    "read_remote_file": "remote_path max_bytes sandbox_name",
    "sync_local_to_remote": "local_path remote_path delete_extras excludes exclude_file sandbox_name",
    "sync_remote_to_local": "remote_path local_path excludes exclude_file sandbox_name",
    "check_file_transfer_task": "task_id last_n_lines",
    "cancel_file_transfer_task": "task_id force_kill_after_s",
    "create_sandbox": "image timeout env",
    "run_command": "sandbox_id command timeout",
    "upload_files": "sandbox_id files",
    "download_files": "sandbox_id paths",
    "delete_sandbox": "sandbox_id",
}


async def test_every_documented_parameter_is_listed_with_a_description(tools: Caller) -> None:
    listed = {tool.name: tool.input_schema["properties"] for tool in (await tools.client.list_tools()).tools}
    for tool, names in DOCUMENTED.items():
        assert not set(names.split()) - {name for name, schema in listed[tool].items() if schema.get("description")}


@pytest.mark.parametrize(
    ("tool", "given"),
    [
        ("exec_bash", {"cmd": "true", "workdir": "~", "description": "Does nothing"}),
        ("exec_bash_background", {"cmd": "ask", "description": "Waits", "ensure_watchdog": False}),
        ("read_remote_file", {"path": NOTES}),
        ("read_remote_file", {"file_path": NOTES}),
        ("edit_remote_file", {"file_path": NOTES, "old_string": "two", "new_string": "2"}),
        ("search_remote_files", {"query": "two", "path": "~"}),
        ("list_remote_files", {"path": "~"}),
        ("download_files", {"sandbox_id": "fake", "paths": NOTES}),
        ("download_files", {"sandbox_id": "fake", "paths": json.dumps([NOTES])}),
        ("download_files", {"sandbox_name": "fake", "path": NOTES}),
        ("send_background_input", {"tmux_session": "prompt", "keys": "C-c"}),
    ],
    ids=str,
)
async def test_the_names_that_models_send_are_taken(tools: Caller, tool: str, given: dict[str, Any]) -> None:
    await tools.call("exec_bash_background", command="ask", session_name="prompt", watch=False)
    assert await tools.call(tool, **given)


@pytest.mark.parametrize(
    ("tool", "given", "wrong"),
    [
        ("exec_bash", {"command": "true", "cmd": "true"}, "cmd"),
        ("read_remote_file", {"path": NOTES, "file_path": NOTES}, "file_path"),
        ("sync_local_to_remote", {"path": "x"}, "path"),
        ("exec_bash", {"command": "true", "shell": "zsh"}, "shell"),
    ],
    ids=str,
)
async def test_what_is_unclear_is_refused_with_all_names(
    tools: Caller, tool: str, given: dict[str, Any], wrong: str
) -> None:
    problem = (await tools.fail(tool, **given))["error"]
    assert f"has no argument {wrong!r}" in problem
    assert set(problem.partition("it takes: ")[2].split(", ")) >= json.loads(FILE.read_text())[tool].keys()


@pytest.mark.parametrize(
    ("cwd", "there"),
    [("$HOME/x", "~/x"), ("${HOME}", "~"), ("~/x", "~/x"), ("$HOMES/x", "$HOMES/x"), ("/a/$HOME", "/a/$HOME")],
)
async def test_home_is_expanded_in_cwd_on_the_far_side(tools: Caller, fake: FakeSandbox, cwd: str, there: str) -> None:
    """exec_bash of 0.7.6 runs cd {cwd} in a shell there."""
    fake.answers = {"pwd": Answer()}
    await tools.call("exec_bash", command="pwd", cwd=cwd)
    assert fake.commands[-1].cwd == there


async def test_home_in_cwd_is_the_home_folder_of_the_sandbox(local_tools: Caller) -> None:
    await local_tools.call("exec_bash", command="mkdir -p ~/work")
    home = (await local_tools.output("echo ~")).strip()
    assert await local_tools.output("pwd", cwd="$HOME/work") == f"{home}/work\n"
    failed = await local_tools.fail("exec_bash", command="pwd", cwd="$PATH")
    assert "$PATH" in failed["error"]
