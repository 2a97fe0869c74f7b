"""The tools that the page may call."""

from __future__ import annotations

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.fronts.mcp.server import build
from remote_sandbox_mcp.fronts.page.calls import ToolCaller
from remote_sandbox_mcp.services.fleet import Fleet


def test_it_calls_those_that_are_declared_for_it() -> None:
    assert ToolCaller(build(App(Fleet([])))).tools == {
        *("stop_background_task", "resume_background_task", "check_background_task", "exec_bash_background"),
        "raise_background_task",
        *("create_sandbox", "delete_sandbox", "run_command", "exec_bash", "forward_port"),
        *("link_workspace", "cancel_file_transfer_task"),
    }
