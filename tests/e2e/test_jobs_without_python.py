"""Background jobs through the real server, on a machine that has neither python3 nor tmux."""

from __future__ import annotations

from pathlib import Path

from tests.support.server import entry, serve
from tests.support.sshd import Fleet


async def test_a_job_is_started_checked_waited_for_listed_and_stopped(fleet: Fleet, tmp_path: Path) -> None:
    machine = fleet.machine("bare", python=False, tmux=False)
    job = {"tmux_session": "long"}
    async with serve(tmp_path, entry(machine)) as server:
        assert await server.output("command -v python3 || echo none") == "none\n"
        order = {"command": "echo ready; sleep 600", "session_name": "long", "watch": False}
        assert (await server.call("exec_bash_background", **order))["status"] == "started"
        waited = await server.call("wait_background_task", until_pattern="^ready$", timeout_s=20, **job)
        assert (waited["running"], waited["log_tail"]) == (True, "ready")
    # Another server, later: the job is its machine's.
    async with serve(tmp_path, entry(machine)) as server:
        assert (await server.call("check_background_task", **job))["running"]
        listed = (await server.call("list_background_tasks"))["tasks"]
        assert [(task["tmux_session"], task["status"]) for task in listed] == [("long", "running")]
        stopped = await server.call("stop_background_task", **job)
        assert (stopped["stopped"], stopped["running"]) == (True, False)
        assert (await server.call("check_background_task", **job))["log_tail"].endswith("EXIT_CODE=143")
    assert "sleep 600" not in machine.processes().values()
