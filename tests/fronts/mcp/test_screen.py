"""The window of a job in tmux, as a client sees it."""

from __future__ import annotations

from remote_sandbox_mcp.core.jobs.job import screen_script
from tests.support.fakes.sandbox import Answer, FakeSandbox
from tests.support.server import Caller


async def test_a_jobs_window_is_shown_as_a_person_sees_it(tools: Caller, fake: FakeSandbox) -> None:
    fake.answers = {screen_script("t"): Answer(b"80 24 2 1\n  menu  \n> \x1b[31m\n\n\n")}
    await tools.call("exec_bash_background", command="x", session_name="t", watch=False)
    shown = await tools.call("check_background_task", tmux_session="t", screen=True)
    assert shown["screen"].split("\n")[0] == "  menu"
    assert "\x1b" not in shown["screen"]
    assert (shown["screen_size"], shown["cursor"]) == ("80x24", {"line": 2, "column": 3})
    # Not by `call`, which knows the results of listed tools alone.
    unlisted = await tools.client.call_tool("read_screen", {"tmux_session": "t"})
    assert unlisted.structured_content == shown | {"sandbox": "fake"}


async def test_a_tool_that_is_not_listed_is_not_in_the_list(tools: Caller) -> None:
    listed = {tool.name for tool in (await tools.client.list_tools()).tools}
    assert not listed & {"read_screen", "resume_background_task", "raise_background_task"}


async def test_what_has_no_screen_says_why(tools: Caller, fake: FakeSandbox) -> None:
    await tools.call("exec_bash_background", command="x", session_name="t", watch=False)
    assert "cannot be read by tmux" in (await tools.fail("read_screen", tmux_session="t"))["error"]
    fake.jobs.end(fake.jobs.started[-1].job_id)
    assert "t does not run, so it has no screen" in (await tools.fail("read_screen", tmux_session="t"))["error"]
    fake.jobs._via = "detached"
    await tools.call("exec_bash_background", command="x", session_name="d", watch=False)
    assert "d runs without tmux, so it has no screen" in (await tools.fail("read_screen", tmux_session="d"))["error"]
    told = (await tools.fail("read_screen", tmux_session="run-0123456789abcdef"))["error"]
    assert "is a command of exec_bash and no job" in told
