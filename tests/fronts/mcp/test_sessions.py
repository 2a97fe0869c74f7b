"""Sessions that keep their state between calls, as a client sees them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.core.commands.session_handle import SessionHandle, Sessions, SessionSeen
from remote_sandbox_mcp.core.errors import BadArgument
from remote_sandbox_mcp.services.fleet import Fleet
from tests.fronts.mcp.conftest import connected, member
from tests.support.fakes.sandbox import FakeSandbox
from tests.support.server import Caller


class Few:
    """A kind of sessions that are only noted down."""

    def __init__(self, kind: str, *places: tuple[str, str]) -> None:
        self.seen = [
            SessionSeen(handle=SessionHandle(kind, name), sandbox=sandbox, used=number, folder="/work")
            for number, (name, sandbox) in enumerate(places)
        ]

    async def list(self, sandbox: str) -> Sequence[SessionSeen]:
        return [it for it in self.seen if not sandbox or it.sandbox == sandbox]

    async def close(self, name: str, sandbox: str) -> SessionSeen:
        found = [it for it in self.seen if (it.handle.name, it.sandbox) == (name, sandbox)]
        if not found:
            raise BadArgument(f"there is no session {name} on {sandbox}")
        self.seen.remove(found[0])
        return found[0]


@pytest.fixture
async def tools(fake: FakeSandbox, other: FakeSandbox) -> AsyncIterator[Caller]:
    app = App(Fleet([member(fake), member(other)]))
    shells, pythons = Few("shell", ("main", "fake"), ("main", "other"), ("two", "other")), Few("python", ("m", "other"))
    app.sessions = Sessions({"shell": lambda: shells, "python": lambda: pythons})
    async with connected(app) as caller:
        yield caller


async def test_sessions_of_every_kind_are_listed_with_the_jobs(tools: Caller) -> None:
    listed = (await tools.call("list_background_tasks"))["tasks"]
    assert [(it["tmux_session"], it["kind"], it["sandbox"]) for it in listed] == [
        ("shell:two", "shell", "other"),
        ("shell:main", "shell", "other"),
        ("shell:main", "shell", "fake"),
        ("python:m", "python", "other"),
    ]
    assert (listed[0]["status"], listed[0]["used_ts"], listed[0]["folder"]) == ("idle", 2, "/work")
    assert (await tools.call("list_background_tasks", status="running"))["tasks"] == []


async def test_a_session_is_closed_by_its_handle_where_it_is(tools: Caller) -> None:
    closed = await tools.call("stop_background_task", tmux_session="shell:two")
    assert (closed["tmux_session"], closed["running"], closed["stopped"]) == ("shell:two", False, True)
    # Two sandboxes have one of this name: the selected one is meant.
    await tools.call("stop_background_task", tmux_session="shell:main")
    left = (await tools.call("list_background_tasks"))["tasks"]
    assert [(it["tmux_session"], it["sandbox"]) for it in left] == [("shell:main", "other"), ("python:m", "other")]


async def test_a_session_is_no_job(tools: Caller) -> None:
    problem = await tools.fail("send_background_input", tmux_session="shell:two")
    assert "shell:two is a session and no job" in problem["error"]


@pytest.mark.parametrize("tool", ["check_background_task", "wait_background_task"])
async def test_a_session_is_checked_and_waited_for_as_every_task(tools: Caller, tool: str) -> None:
    seen = await tools.call(tool, tmux_session="shell:two")
    assert (seen["tmux_session"], seen["outcome"], seen["running"]) == ("shell:two", "idle", False)
    problem = await tools.fail(tool, tmux_session="shell:three")
    assert (problem["code"], "there is no session of that name" in problem["error"]) == ("unknown_task", True)


@pytest.mark.parametrize("name", ["", "../x", "a/b", "-x", "a" * 61, "a b", "ä", "a\n"])
async def test_odd_names_are_refused(tools: Caller, name: str) -> None:
    assert (
        "cannot be a session's name"
        in (await tools.fail("stop_background_task", tmux_session=f"shell:{name}"))["error"]
    )


async def test_a_shell_lives_from_call_to_call_until_it_is_closed(local_tools: Caller) -> None:
    first = await local_tools.call("exec_bash", command="mkdir w; cd w; x=1; echo hi; exit 3", session="main")
    assert (first["exit_code"], first["stdout"], first["session"]) == (3, "hi\n", "new")
    second = await local_tools.call("exec_bash", command="pwd; echo $x", session="main")
    assert (second["stdout"].split("/")[-1], second["session"]) == ("w\n1\n", "kept")
    (row,) = (await local_tools.call("exec_bash", command="echo $x", session="main", sandbox_names=["local"]))[
        "results"
    ]
    assert (row["stdout"], row["session"]) == ("1\n", "kept")
    assert "session" not in await local_tools.call("exec_bash", command="echo ${x-}")
    (listed,) = (await local_tools.call("list_background_tasks"))["tasks"]
    assert (listed["tmux_session"], listed["kind"], listed["status"]) == ("shell:main", "shell", "idle")
    assert listed["folder"].endswith("/w")
    await local_tools.call("stop_background_task", tmux_session="shell:main")
    assert (await local_tools.call("list_background_tasks"))["tasks"] == []
    assert (
        "there is no session main"
        in (await local_tools.fail("stop_background_task", tmux_session="shell:main"))["error"]
    )
    again = await local_tools.call("exec_bash", command="echo ${x-none}; pwd", session="main")
    assert (again["stdout"].startswith("none\n"), again["session"]) == (True, "new")
    assert "cannot be a session's name" in (await local_tools.fail("exec_bash", command="x", session="../x"))["error"]
