"""remote-sandbox-mcp 0.7, README, section 7 命令执行 and 高级 Watchdog 工具."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.config.schema import Settings
from remote_sandbox_mcp.core.jobs.job import JobStarted
from remote_sandbox_mcp.core.permission import Hook, Notify
from remote_sandbox_mcp.services.fleet import Fleet
from remote_sandbox_mcp.services.jobs.start import Begun
from remote_sandbox_mcp.views.job_results import begun_fields
from tests.fronts.mcp.conftest import connected, member
from tests.support.fakes.sandbox import FakeSandbox
from tests.support.server import Caller

STARTED = JobStarted(job_id="1", session="s", log_file="/l", cwd="/", via="tmux")
WAKE = 'codex exec "$RSMCP_SUGGESTED_PROMPT"'


async def test_max_log_lines_is_a_parameter_of_a_job(advanced: Caller) -> None:
    begun = await advanced.call("exec_bash_background", command="ask", max_log_lines=7, ensure_watchdog=False)
    assert begun["watch_id"]
    problem = await advanced.fail("exec_bash_background", command="ask", max_log_lines=0)
    assert "max_log_lines" in problem["error"]


async def test_checkpoint_max_bytes_is_a_parameter_of_a_jobs_progress(advanced: Caller) -> None:
    """Signature of get_background_watch_progress in 0.7.6."""
    begun = await advanced.call("exec_bash_background", command="ask", ensure_watchdog=False)
    given = {"watch_id": begun["watch_id"], "checkpoint_max_bytes": 20000}
    assert (await advanced.call("get_background_watch_progress", **given))["watch"]["id"] == begun["watch_id"]


@pytest.mark.parametrize(
    ("hook", "allows"),
    [
        ({"webhook_url": "https://ci.example.org/x"}, 'webhooks = ["https://ci.example.org/"] under [notify]'),
        ({"event_command": "notify-me --now"}, 'command = ["notify-me", "--now"] under [hooks.NAME]'),
        ({"event_command": WAKE}, f"command = {json.dumps(['sh', '-c', WAKE])} under [hooks.NAME]"),
        ({"codex_wakeup": True}, 'kind = "codex" under [hooks.codex]'),
    ],
    ids=str,
)
async def test_a_job_with_a_hook_starts(advanced: Caller, hook: dict[str, Any], allows: str) -> None:
    """Parameters webhook_url, event_command, codex_wakeup: one that is not allowed is left out."""
    begun = await advanced.call("exec_bash_background", command="ask", ensure_watchdog=False, **hook)
    (note,) = begun["notes"]
    assert note.startswith(next(iter(hook)) if "codex_wakeup" not in hook else "codex_command and codex_wakeup")
    assert allows in note
    watch = (await advanced.call("get_background_watch", watch_id=begun["watch_id"]))["watch"]
    assert not watch.get("webhook_url")
    assert not watch.get("hooks")


async def test_the_advice_for_a_hook_works(fake: FakeSandbox) -> None:
    """Section 7, event_command: codex exec "$RSMCP_SUGGESTED_PROMPT"."""
    settings = Settings(notify=Notify(hooks={"wake": Hook(("sh", "-c", WAKE))}))
    async with connected(App(Fleet([member(fake)]), settings=settings)) as tools:
        begun = await tools.call("exec_bash_background", command="ask", event_command=WAKE, ensure_watchdog=False)
    assert "notes" not in begun


@pytest.mark.parametrize("recovered", [False, True])
def test_a_job_that_had_begun_already_is_told(recovered: bool) -> None:
    """exec_bash_background, launch_recovered."""
    fields = begun_fields(Begun(replace(STARTED, recovered=recovered), "gpu1"))
    assert fields.get("launch_recovered", False) is recovered
