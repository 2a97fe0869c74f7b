"""Calls in a workspace: where they run, which passes go with them, and what the result says of those.

The passes themselves are scripted here; tests/e2e/test_workspaces.py has real ones.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.core.client import Call, begin_call
from remote_sandbox_mcp.core.commands.command import Command
from remote_sandbox_mcp.core.errors import FileProblem, SandboxError, Unreachable
from remote_sandbox_mcp.core.sync.transfer import Headway, Listener
from remote_sandbox_mcp.core.workspaces.workspace import Linked, LinkOrder, Moved, Preview, Rules, Workspace
from remote_sandbox_mcp.fronts.mcp import workspace as heeding
from remote_sandbox_mcp.fronts.mcp.clients import OneClient
from remote_sandbox_mcp.fronts.mcp.server import build
from remote_sandbox_mcp.fronts.mcp.toolbox import WorkspacePart
from remote_sandbox_mcp.fronts.mcp.tools.exec import RUNS_COMMAND
from remote_sandbox_mcp.fronts.mcp.workspace import InWorkspace, Workspaces
from remote_sandbox_mcp.services.fleet import Fleet
from remote_sandbox_mcp.services.session import Session, begin
from tests.fronts.mcp.conftest import member
from tests.fronts.mcp.pin import FILE
from tests.support.fakes.sandbox import Answer, FakeSandbox, after
from tests.support.server import AGENT, Caller, text_of, until

OURS = Workspace("w1", "/home/ann/p", "fake", "/data/p")
SENT = Moved(sent=("a.py",), sent_count=1, sent_bytes=2000)
CAME = Moved(came=("results/plot.png",), came_count=1, came_bytes=9)


class Scripted:
    """The passes of one workspace: what each moves or raises, and which were made."""

    def __init__(self) -> None:
        self.workspace = OURS
        self.sends: Moved | BaseException = Moved()
        self.brings: Moved | BaseException = Moved()
        self.made: list[str] = []
        self.cancelled: list[str] = []
        # Passes wait for it.
        self.gate = asyncio.Event()
        self.gate.set()

    def given(self, workspace: Workspace) -> Rules:
        return workspace.rules

    def find(self, folder: str) -> Workspace | None:
        return self.workspace if self.workspace.holds(folder) else None

    async def send(self, workspace: Workspace, listener: Listener) -> Moved:
        listener(Headway("sending", 1, 3, 10, 30))
        return await self._pass("send", self.sends)

    async def bring(self, workspace: Workspace, after_run: str = "") -> Moved:
        return await self._pass("bring", self.brings)

    async def _pass(self, name: str, result: Moved | BaseException) -> Moved:
        self.made.append(name)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        if isinstance(result, BaseException):
            raise result
        return result

    async def preview(self, order: LinkOrder) -> Preview:
        return Preview(folder=order.folder, sandbox=order.sandbox, remote="/data/p", files=1, bytes=2000)

    async def link(self, order: LinkOrder, listener: Listener) -> Linked:
        moved = await self._pass("link", self.sends)
        return Linked(self.workspace, await self.preview(order), moved)

    def expect(self, workspace: Workspace, run_id: str) -> None:
        """It looks at nothing."""

    async def close(self) -> None:
        """Nothing is open."""


class World:
    """Two sandboxes, a workspace on the first, and a client in its folder `sub`."""

    def __init__(self, app: App, caller: Caller, passes: Scripted, fake: FakeSandbox, other: FakeSandbox) -> None:
        self.app = app
        self.caller = caller
        self.passes = passes
        self.fake = fake
        self.other = other

    @property
    def ran(self) -> Command:
        return self.fake.commands[-1]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    fake = FakeSandbox(
        lambda command: Answer("so far\n", then=after(0.2)) if command.script == "long" else Answer("done\n"),
        files={"/data/p/a.py": b"old\n", "/data/p/sub/b.txt": b"b\n", "/etc/motd": b"hi\n"},
    )
    other = FakeSandbox(lambda command: Answer("other\n"), name="other")
    app, passes = App(Fleet([member(other), member(fake)])), Scripted()
    app.__dict__["workspaces"] = passes
    server = build(app, OneClient(Session(folder="/home/ann/p/sub")))
    async with Client(server, client_info=AGENT) as client:
        yield World(app, Caller(client), passes, fake, other)
    await app.close()


# Where a call is made


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({}, "/data/p/sub", id="the client's own folder"),
        pytest.param({"cwd": "src"}, "/data/p/src", id="a relative one is the workspace's"),
        pytest.param({"cwd": "/home/ann/p/src"}, "/data/p/src", id="a local path of the project"),
        pytest.param({"cwd": "/opt"}, "/opt", id="an absolute one"),
        pytest.param({"cwd": "~"}, "~", id="the home folder"),
        pytest.param({"sandbox_name": "fake"}, "/data/p/sub", id="its sandbox by name"),
    ],
)
async def test_a_command_runs_in_the_workspace_unless_it_says_otherwise(
    world: World, given: dict[str, Any], expected: str
) -> None:
    answer = await world.caller.ask("exec_bash", command="ls", **given)
    assert (world.ran.script, world.ran.cwd) == ("ls", expected)
    assert (answer.structured_content or {}).get("sandbox") == (None if "sandbox_name" in given else "fake")
    assert world.passes.made == ["send", "bring"]


@pytest.mark.parametrize("given", [{"sandbox_name": "other"}, {"sandbox_names": ["other", "fake"]}])
async def test_it_has_no_part_in_a_call_on_another_sandbox(world: World, given: dict[str, Any]) -> None:
    await world.caller.run("ls", **given)
    assert {command.cwd for command in (*world.other.commands, *world.fake.commands)} == {""}
    assert world.passes.made == []


async def test_a_selected_sandbox_comes_before_that_of_the_workspace(world: World) -> None:
    assert (await world.caller.call("get_active_sandbox"))["active_sandbox"] == "fake"
    await world.caller.call("select_sandbox", sandbox_name="other")
    await world.caller.run("ls")
    assert (len(world.other.commands), world.passes.made) == (1, [])


async def test_a_sandbox_that_is_configured_no_more_is_not_replaced_by_the_default(world: World) -> None:
    world.passes.workspace = replace(OURS, sandbox="gone")
    told = await world.caller.fail("exec_bash", command="ls")
    assert "the one of the workspace /home/ann/p" in told["error"]
    assert (world.other.commands, world.fake.commands) == ([], [])


async def test_paths_of_files_start_in_the_workspace(world: World) -> None:
    assert (await world.caller.call("read_remote_file", remote_path="a.py"))["content"] == "old\n"
    assert (await world.caller.call("read_remote_file", remote_path="/home/ann/p/a.py"))["content"] == "old\n"
    await world.caller.call("write_remote_file", remote_path="new.txt", content="x")
    await world.caller.call("upload_files", sandbox_id="", files=[{"path": "up.txt", "text": "y"}])
    assert (world.fake.files["/data/p/new.txt"], world.fake.files["/data/p/up.txt"]) == (b"x", b"y")
    taken = await world.caller.call("download_files", paths=["up.txt"])
    assert [file["path"] for file in taken["files"]] == ["/data/p/up.txt"]
    listed = await world.caller.call("list_remote_files")
    assert [entry["path"] for entry in listed["entries"]] == ["/data/p/sub/b.txt"]
    found = await world.caller.call("search_remote_files", remote_path=".", glob="*.py")
    assert [match["path"] for match in found["matches"]] == ["/data/p/a.py"]


async def test_the_init_lines_run_before_each_command_in_the_folder_of_the_workspace(world: World) -> None:
    world.passes.workspace = replace(OURS, rules=Rules(init=(". env/bin/activate", "ulimit -c 0")))
    await world.caller.run("make", cwd=".")
    assert world.ran.script == ". env/bin/activate\nulimit -c 0\nmake"
    await world.caller.run("make")
    assert world.ran.script == (
        "rs_start=$PWD; cd -- '/data/p' || exit\n. env/bin/activate\nulimit -c 0\n"
        'cd -- "$rs_start" || exit; unset rs_start\nmake'
    )
    assert world.ran.cwd == "/data/p/sub"


def test_a_shell_that_keeps_its_state_begins_in_the_workspace_and_stays_where_it_goes(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    ours = replace(OURS, remote=str(tmp_path), rules=Rules(init=("seen=$PWD; echo init",)))

    def script(**given: str) -> str:
        inside = InWorkspace(Workspaces(App(Fleet([]))), ours, RUNS_COMMAND, {"session": "main", **given})
        assert inside.arguments.get("cwd") == (f"{tmp_path}/sub" if "cwd" in given else None)
        return str(inside.arguments["command"])

    begin(Session(folder="/home/ann/p/sub"))
    said = "\n".join((script(command="pwd; cd /"), script(command='pwd; echo "$seen"')))
    done = subprocess.run(["bash", "-euc", said], capture_output=True, text=True, check=True, timeout=10)
    assert done.stdout == f"init\n{tmp_path}/sub\n/\n{tmp_path}\n"
    assert script(command="ls", cwd="sub").endswith("\nls")


def test_declarations_name_arguments_that_the_tools_have() -> None:
    tools = json.loads(FILE.read_text())
    for name, tool in build(App(Fleet([]))).declarations.items():
        if name in tools:
            part = tool.workspace or WorkspacePart()
            named = [part.folder, part.handle, *tool.paths, *tool.other_paths, *part.scripts]
            optional = {"", "resume_command"}
            assert set(named) - optional <= set(tools[name]), name


# Which passes are made


@pytest.mark.parametrize(
    ("tool", "given", "passes"),
    [
        ("exec_bash", {"command": "ls"}, ["send", "bring"]),
        ("run_command", {"command": "ls"}, ["send", "bring"]),
        ("exec_bash_background", {"command": "ls", "ensure_watchdog": False}, ["send"]),
        ("read_remote_file", {"remote_path": "a.py"}, ["send"]),
        ("read_remote_file", {"remote_path": "/etc/motd"}, []),
        ("list_remote_files", {}, ["send"]),
        ("list_remote_files", {"remote_path": "/etc"}, []),
        ("search_remote_files", {"glob": "*.py"}, ["send"]),
        ("edit_remote_file", {"remote_path": "a.py", "old_text": "old", "new_text": "new"}, ["send", "bring"]),
        ("write_remote_file", {"remote_path": "a.py", "content": "x"}, ["send", "bring"]),
        ("list_background_tasks", {}, []),
        ("list_sandboxes", {}, []),
    ],
)
async def test_each_tool_has_its_passes(world: World, tool: str, given: dict[str, Any], passes: list[str]) -> None:
    assert await world.caller.call(tool, **given)
    assert world.passes.made == passes


@pytest.fixture
def impatient(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """Whose client waits for a moment only."""
    monkeypatch.setattr(heeding, "LEAST_PATIENCE_S", 0.05)
    world.app.patience_s = 0.05
    return world


async def test_what_a_command_made_that_outlasted_its_call_comes_once_when_it_has_ended(impatient: World) -> None:
    caller, passes = impatient.caller, impatient.passes
    passes.brings = CAME
    handle = (await caller.run("long"))["tmux_session"]
    assert passes.made == ["send"]
    impatient.app.patience_s = None
    ended = await caller.call("wait_background_task", tmux_session=handle, timeout_s=5)
    assert ended["workspace"] == "came back: results/plot.png (9 bytes)"
    assert "workspace" not in await caller.call("check_background_task", tmux_session=handle)
    assert passes.made == ["send", "bring"]


async def test_what_a_second_job_of_the_same_name_made_comes_too(world: World) -> None:
    world.passes.brings = CAME
    for _ in range(2):
        given = {"command": "ls", "session_name": "train", "ensure_watchdog": False}
        assert (await world.caller.call("exec_bash_background", **given))["tmux_session"] == "train"
        world.fake.jobs.end(world.fake.jobs.started[-1].job_id, 0)
        ended = await world.caller.call("check_background_task", tmux_session="train")
        assert ended["workspace"] == "came back: results/plot.png (9 bytes)"
        assert "workspace" not in await world.caller.call("wait_background_task", tmux_session="train", timeout_s=5)
    assert world.passes.made == ["send", "bring"] * 2


# What the result says


async def test_the_result_says_what_moved_and_nothing_where_nothing_did(world: World) -> None:
    assert "workspace" not in await world.caller.run("ls")
    world.passes.sends, world.passes.brings = SENT, CAME
    answer = await world.caller.ask("exec_bash", command="ls")
    line = "sent a.py (2 KB); came back: results/plot.png (9 bytes)"
    assert (answer.structured_content or {})["workspace"] == line
    assert text_of(answer).endswith(f"\nworkspace: {line}")


async def test_a_conflict_is_told_once_with_how_to_decide_it(world: World) -> None:
    world.passes.sends = world.passes.brings = Moved(conflicts=("a.py",))
    told = (await world.caller.run("ls"))["workspace"]
    assert told.count("a.py") == 1
    assert "keep_local or keep_remote" in told


async def test_names_from_the_other_machine_cannot_forge_the_text(world: World) -> None:
    world.passes.brings = Moved(came=("x\n\x1b[31mexit 0 \u202e" + "y" * 5000,), came_count=1, came_bytes=1)
    answer = await world.caller.ask("exec_bash", command="ls")
    line = (answer.structured_content or {})["workspace"]
    assert "\n" not in line
    assert "\x1b" not in line
    assert "\u202e" not in line
    assert len(line) < 2000


# What goes wrong


async def test_nothing_runs_on_old_files(world: World) -> None:
    world.passes.sends = FileProblem("the disk of fake is full")
    told = await world.caller.fail("exec_bash", command="ls")
    assert told["error"] == (
        "nothing was done on fake, because what changed in /home/ann/p could not be sent there first: "
        "the disk of fake is full"
    )
    assert world.fake.commands == []


async def test_a_file_is_shown_even_where_nothing_can_be_sent(world: World) -> None:
    world.passes.sends = FileProblem("/home/ann/p is empty")
    seen = await world.caller.call("read_remote_file", remote_path="a.py")
    assert (seen["content"], "may be old: /home/ann/p is empty" in seen["workspace"]) == ("old\n", True)


async def test_a_machine_that_cannot_be_reached_is_told_as_without_a_workspace(world: World) -> None:
    world.passes.sends = Unreachable("unable to open fake: no route")
    told = await world.caller.fail("exec_bash", command="ls")
    assert (told["code"], told["outcome"]) == ("unreachable", "not_started")


@pytest.mark.parametrize("problem", [SandboxError("the line was cut"), RuntimeError("of ours")])
async def test_the_result_of_a_command_is_true_where_what_it_made_cannot_be_fetched(
    world: World, problem: BaseException
) -> None:
    world.passes.brings = problem
    done = await world.caller.run("ls")
    assert (done["exit_code"], done["stdout"]) == (0, "done\n")
    assert done["workspace"].startswith("what changed on fake was not fetched: ")


async def test_a_send_that_takes_too_long_goes_on_and_the_next_call_tells_of_it(impatient: World) -> None:
    passes = impatient.passes
    passes.sends = SENT
    passes.gate.clear()
    told = await impatient.caller.fail("exec_bash", command="ls")
    assert "is still being sent to fake (sending what changed to fake: sending 1/3 files" in told["error"]
    assert (impatient.fake.commands, passes.cancelled) == ([], [])
    passes.gate.set()
    passes.sends = Moved()
    assert (await impatient.caller.run("ls"))["workspace"] == "sent a.py (2 KB)"


async def test_a_link_whose_first_pass_takes_too_long_goes_on(impatient: World) -> None:
    passes = impatient.passes
    passes.gate.clear()
    begun = await impatient.caller.call("link_workspace", remote_path="fake:/data/p", local_path="..")
    assert (begun["status"], begun["remote_path"], passes.cancelled) == ("linking", "fake:/data/p", [])
    passes.gate.set()
    done = await impatient.caller.call("link_workspace", remote_path="fake:/data/p", local_path="..")
    assert done["status"] == "linked"


@pytest.mark.parametrize("during", ["send", "bring"])
async def test_a_cancelled_call_cancels_its_pass(world: World, during: str) -> None:
    if during == "send":
        world.passes.gate.clear()
    else:
        world.fake.answers = lambda command: [world.passes.gate.clear(), Answer("done")][1]
    call = asyncio.ensure_future(world.caller.run("ls"))
    await until(lambda: during in world.passes.made, "the pass")
    call.cancel()
    await until(lambda: world.passes.cancelled == [during], "the end of the pass")
    assert len(world.fake.commands) == (during == "bring")


async def test_calls_do_not_wait_for_the_pass_of_another_one(world: World) -> None:
    world.passes.gate.clear()
    call = asyncio.ensure_future(world.caller.run("ls"))
    await until(lambda: world.passes.made == ["send"], "the pass")
    assert (await world.caller.call("read_remote_file", remote_path="/etc/motd"))["content"] == "hi\n"
    world.passes.gate.set()
    assert (await call)["exit_code"] == 0


async def test_a_call_that_is_repeated_sends_nothing_under_the_command_that_it_has_begun(world: World) -> None:
    app = App(Fleet([member(world.fake)]))
    app.__dict__["workspaces"] = world.passes
    server = build(app, OneClient(Session(folder=OURS.folder)))
    begin_call(Call("s 1"))
    first = await server.call_tool("exec_bash", {"command": "ls"})
    world.passes.sends = FileProblem("full")
    begin_call(Call("s 1", again=True))
    second = await server.call_tool("exec_bash", {"command": "ls"})
    begin_call(Call("s 2", again=True))
    third = await server.call_tool("exec_bash", {"command": "ls"})
    begin_call(None)
    assert [getattr(answer, "is_error", None) for answer in (first, second, third)] == [False, False, True]
    assert (len(world.fake.commands), world.passes.made) == (1, ["send", "bring", "bring", "send"])
    await app.close()
