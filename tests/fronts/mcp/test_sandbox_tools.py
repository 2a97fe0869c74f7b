"""list_sandboxes, select_sandbox and get_active_sandbox as a client sees them."""

from __future__ import annotations

from pathlib import Path

import pytest

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.core.errors import Unreachable
from remote_sandbox_mcp.services.fleet import Fleet, Member
from tests.fronts.mcp.conftest import connected, member
from tests.support.fakes.sandbox import Answer, FakeSandbox, after
from tests.support.server import Caller

FIRST = {"name": "fake", "kind": "fake", "is_active": True, "connection_alive": True}
SECOND = {"name": "other", "kind": "fake", "is_active": False, "connection_alive": True}
TROUBLE = "unable to open other (192.0.2.1): no answer within 5 s"


async def test_all_sandboxes_are_listed(tools: Caller) -> None:
    assert await tools.call("list_sandboxes") == {"active_sandbox": "fake", "sandboxes": [FIRST, SECOND]}


async def test_one_that_does_not_answer_is_told_as_such_and_the_others_are_listed(
    tools: Caller, other: FakeSandbox
) -> None:
    other.fail(Unreachable(TROUBLE))
    seen = await tools.call("list_sandboxes", check_resources=False)
    assert seen["sandboxes"] == [FIRST, SECOND | {"connection_alive": False, "connection_error": TROUBLE}]


async def test_resources_that_cannot_be_measured_say_why(tools: Caller) -> None:
    seen = await tools.call("list_sandboxes", check_resources=True)
    assert all(list(sandbox["resources"]) == ["error"] for sandbox in seen["sandboxes"])


async def test_the_resources_of_a_real_machine_are_told(local_tools: Caller) -> None:
    (sandbox,) = (await local_tools.call("list_sandboxes", check_resources=True))["sandboxes"]
    resources = sandbox["resources"]
    assert set(resources["cpu"]) >= {"load_1m", "load_5m", "load_15m", "count"}
    assert set(resources["memory"]) >= {"total_mb", "used_mb", "free_mb", "used_pct"}
    assert 0 <= resources["idle_score"] <= 1


async def test_configuration_problems_are_told_with_the_list(fake: FakeSandbox) -> None:
    problem = "REMOTE_SANDBOX_LIST entry 2 is left out: host is missing."
    async with connected(App(Fleet([member(fake)]), problems=(problem,))) as tools:
        assert (await tools.call("list_sandboxes"))["problems"] == [problem]


async def test_a_sandbox_that_is_not_offered_here_is_not_listed(fake: FakeSandbox, other: FakeSandbox) -> None:
    async def why_not() -> str:
        return "bubblewrap is not installed"

    absent = Member("other", lambda: other.description, member(other).opener, why_not)
    async with connected(App(Fleet([member(fake), absent]))) as tools:
        assert (await tools.call("list_sandboxes"))["sandboxes"] == [FIRST]


async def test_the_selected_sandbox_is_the_one_that_is_used(
    tools: Caller, fake: FakeSandbox, other: FakeSandbox
) -> None:
    assert await tools.call("select_sandbox", sandbox_name="other") == {
        "active_sandbox": "other",
        "status": "selected",
    }
    await tools.run("ls")
    assert [command.script for command in other.commands] == ["ls"]
    assert not fake.commands
    active = await tools.call("get_active_sandbox")
    assert active == {"active_sandbox": "other", "kind": "fake", "connection_alive": True}


async def test_the_active_sandbox_says_when_it_does_not_answer(tools: Caller, fake: FakeSandbox) -> None:
    fake.fail(Unreachable(TROUBLE))
    active = await tools.call("get_active_sandbox")
    assert active == {
        "active_sandbox": "fake",
        "kind": "fake",
        "connection_alive": False,
        "connection_error": TROUBLE,
    }


@pytest.mark.parametrize(
    ("tool", "given"),
    [
        ("select_sandbox", {}),
        ("exec_bash", {"command": "ls"}),
        ("check_background_task", {"tmux_session": "run-0123456789abcdef"}),
        ("stop_background_task", {"tmux_session": "run-0123456789abcdef"}),
        ("list_remote_files", {}),
        ("read_remote_file", {"remote_path": "x"}),
        ("write_remote_file", {"remote_path": "x", "content": "y"}),
        ("edit_remote_file", {"remote_path": "x", "old_text": "y", "new_text": "z"}),
        ("search_remote_files", {"glob": "*"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_an_unknown_name_is_told_with_the_right_ones(tools: Caller, tool: str, given: dict[str, str]) -> None:
    problem = await tools.fail(tool, **given, sandbox_name="othr")
    assert problem == {
        "error": "no sandbox is named 'othr'; did you mean other? there are: fake, other",
        "code": "unknown_sandbox",
        "available": ["fake", "other"],
    }


async def test_with_nothing_configured_every_call_says_how_to_configure() -> None:
    async with connected(App(Fleet([]))) as tools:
        problem = await tools.fail("exec_bash", command="ls")
        assert problem["code"] == "unknown_sandbox"
        assert "REMOTE_SANDBOX_LIST" in problem["error"]
        assert (await tools.fail("get_active_sandbox"))["code"] == "unknown_sandbox"


# Where a call goes that names no sandbox


async def test_a_running_command_is_found_where_it_began_whatever_is_selected_since() -> None:
    first, second = FakeSandbox({"long": Answer("so far", then=after(3600))}, name="first"), FakeSandbox(name="second")
    async with connected(App(Fleet([member(first), member(second)]), patience_s=0.05)) as tools:
        handle = (await tools.call("exec_bash", command="long"))["tmux_session"]
        await tools.call("select_sandbox", sandbox_name="second")
        stopped = await tools.ask("stop_background_task", tmux_session=handle)
        assert (stopped.structured_content or {}) | {"sandbox": "first", "stopped": True} == stopped.structured_content


async def test_a_job_in_a_sandbox_that_is_over_is_not_looked_for_elsewhere(tools: Caller, fake: FakeSandbox) -> None:
    made = (await tools.call("create_sandbox"))["sandbox_id"]
    for name in (made, "fake"):
        await tools.call("exec_bash_background", command="x", session_name="work", sandbox_name=name, watch=False)
    await tools.call("exec_bash_background", command="x", session_name="only", sandbox_name=made, watch=False)
    await tools.call("delete_sandbox", sandbox_id=made)
    assert "was deleted at" in (await tools.fail("stop_background_task", tmux_session="only"))["error"]


async def test_a_path_cannot_lead_an_upload_into_another_sandbox(
    tools: Caller, tmp_path: Path, clean_environment: Path
) -> None:
    (tmp_path / "mine").write_text("x")
    file = {"path": "other:copy", "local_path": str(tmp_path / "mine")}
    assert "another sandbox" in (await tools.fail("upload_files", sandbox_id="fake", files=[file]))["error"]
    await tools.call("upload_files", sandbox_id="fake", files=[{**file, "path": "./other:copy"}])
    assert (clean_environment / "other:copy").read_text() == "x"
