"""Tools, resources and prompts of the operator's own, through a real hub and a real machine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.hub_desk import Desk, desk_in
from tests.support.server import Wire, entry
from tests.support.sshd import Sshd, wait_until

TOOLS = '''
from remote_sandbox_mcp.extensions import Sandboxes, prompt, resource, tool


@tool
async def custom_benchmark(boxes: Sandboxes, sandbox_id: str, repeat: int = 3) -> dict[str, object]:
    """Run our benchmark suite in a sandbox."""
    box = await boxes.open(sandbox_id)
    first = await box.run(f"echo first {repeat}")
    second = await box.run("cat", input=b"second", env={"A": "b"})
    return {"seconds": first.text.strip(), "more": second.text}


@tool
async def exec_bash(boxes: Sandboxes, command: str) -> str:
    """Takes the place of ours."""
    return "mine"


@tool
async def untyped(boxes, what):
    return what


@tool
def blocking(boxes: Sandboxes) -> str:
    return "no"


@tool
async def strange(boxes: Sandboxes, what: Sandboxes) -> str:
    return "no"


@tool
async def fails(boxes: Sandboxes, how: str = "") -> str:
    """Fails."""
    if how == "ours":
        await boxes.open("no-such-sandbox")
    raise ValueError("not\\ntoday")


@tool
async def long(boxes: Sandboxes) -> str:
    """Says much."""
    return "x" * 5_000_000


@tool
async def sends(boxes: Sandboxes, sandbox_id: str, path: str) -> str:
    """Sends a file."""
    return str((await (await boxes.open(sandbox_id)).push(path, "sent")).sent_files)


@resource("benchmark://{sandbox_id}/results")
async def results(boxes: Sandboxes, sandbox_id: str) -> str:
    """The last results."""
    return (await (await boxes.open(sandbox_id)).run("echo results")).text


@resource("sandbox://{sandbox_id}/results")
async def theirs(boxes: Sandboxes, sandbox_id: str) -> str:
    return ""


@prompt
async def tune(boxes: Sandboxes, goal: str) -> str:
    """Tune it."""
    return f"Tune for {goal} on {(await boxes.list())[0]}."
'''


class Lab:
    """A user with a file of tools, and clients of the hub."""

    def __init__(self, desk: Desk, sshd: Sshd) -> None:
        self.desk = desk
        self.sshd = sshd
        self.tools = desk.home / "lab_tools.py"
        self.config = desk.home / "lab.toml"
        self.write(TOOLS)
        self.config.write_text('extensions = ["~/lab_tools.py"]\n[local]\nenabled = false\n')
        self.config.chmod(0o600)

    def write(self, text: str) -> None:
        fresh = self.tools.with_suffix(".new")
        fresh.write_text(text)
        fresh.chmod(0o600)
        fresh.replace(self.tools)

    def client(self, **env: str) -> Any:
        return self.desk.client(entry(self.sshd, name="gpu1"), config_file=self.config, **env)


@pytest.fixture
def lab(tmp_path: Path, sshd: Sshd) -> Iterator[Lab]:
    with desk_in(tmp_path) as desk:
        yield Lab(desk, sshd)


def names(wire: Wire) -> list[str]:
    return [tool["name"] for tool in wire.ask("tools/list")["result"]["tools"]]


def problems(wire: Wire) -> str:
    return "\n".join(wire.call("list_sandboxes")["structuredContent"].get("problems", []))


def until(condition: Callable[[], object], what: str) -> None:
    wait_until(condition, what=what, seconds=60)


def test_its_tools_are_offered_called_and_kept_in_the_history(lab: Lab) -> None:
    with lab.client() as wire:
        wire.initialize()
        (listed,) = [it for it in wire.ask("tools/list")["result"]["tools"] if it["name"] == "custom_benchmark"]
        assert listed["description"] == "Run our benchmark suite in a sandbox."
        assert listed["inputSchema"]["properties"] == {
            "sandbox_id": {"type": "string"},
            "repeat": {"type": "integer", "default": 3},
        }
        assert listed["inputSchema"]["required"] == ["sandbox_id"]
        called = wire.call("custom_benchmark", sandbox_id="gpu1", repeat=7)
        assert called["structuredContent"] == {"seconds": "first 7", "more": "second"}
        assert json.loads(called["content"][0]["text"]) == called["structuredContent"]
        refused = wire.call("custom_benchmark", sandbox_id="gpu1", repeat="many")
        assert refused["isError"]
        assert "repeat" in refused["content"][0]["text"]
        assert "custom_benchmark has no argument" in wire.call("custom_benchmark", x=1)["content"][0]["text"]

        def calls() -> str:
            return lab.desk("calls", "--json", "--config", str(lab.config))[1]

        until(lambda: "custom_benchmark" in calls(), "the call in the history")


def test_what_fails_is_a_sentence_and_what_is_long_is_cut(lab: Lab) -> None:
    with lab.client() as wire:
        wire.initialize()
        failed = wire.call("fails")
        assert failed["isError"]
        assert failed["content"][0]["text"] == "fails of lab_tools.py ended with an error: ValueError: not today"
        assert "no-such-sandbox" in wire.call("fails", how="ours")["content"][0]["text"]
        long = wire.call("long")
        assert long["structuredContent"]["truncated"] is True
        assert len(json.dumps(long)) < 300_000


def test_what_cannot_be_offered_is_a_problem_and_never_in_our_place(lab: Lab) -> None:
    with lab.client() as wire:
        wire.initialize()
        assert not {"untyped", "blocking", "strange"} & {*names(wire)}
        assert "mine" not in json.dumps(wire.call("exec_bash", command="echo ours", sandbox_name="gpu1"))
        said = problems(wire)
        for sentence in (
            "exec_bash is not offered: exec_bash is the name of another tool",
            "untyped is not offered: its parameter what has no type",
            "blocking is not offered: it is no async function",
            "strange is not offered: ",
            "theirs is not offered: its address must be like benchmark://",
        ):
            assert sentence in said


def test_its_resources_and_prompts_are_offered(lab: Lab) -> None:
    with lab.client() as wire:
        wire.initialize()
        answer = wire.ask("resources/read", {"uri": "benchmark://gpu1/results"})
        assert "result" in answer, problems(wire)
        found = answer["result"]["contents"]
        assert [it["text"] for it in found] == ["results\n"]
        asked = wire.ask("prompts/get", {"name": "tune", "arguments": {"goal": "speed"}})["result"]
        assert asked["messages"][0]["content"]["text"] == "Tune for speed on gpu1."


def test_its_local_paths_pass_the_gate(lab: Lab) -> None:
    secret = lab.desk.home.parent / "secret"
    secret.write_text("x")
    with lab.client(REMOTE_SANDBOX_ALLOWED_ROOTS="/nonexistent") as wire:
        wire.initialize()
        refused = wire.call("sends", sandbox_id="gpu1", path=str(secret))
        assert refused["isError"]
        assert "outside" in refused["content"][0]["text"] or "allow" in refused["content"][0]["text"]


def test_an_agent_cannot_write_one_not_even_in_its_project(lab: Lab) -> None:
    """What is in it runs in the hub, with all rights of its user."""
    project = lab.desk.home / "project"
    project.mkdir()
    tools = project / "lab_tools.py"
    lab.tools.replace(tools)
    lab.config.write_text(f'extensions = ["{tools}"]\n[local]\nenabled = false\n')
    with lab.client(REMOTE_SANDBOX_ALLOWED_ROOTS=str(project)) as wire:
        wire.initialize()
        assert "custom_benchmark" in names(wire)
        wire.call(
            "exec_bash", command="mkdir -p sent && echo 'raise SystemExit' >sent/lab_tools.py", sandbox_name="gpu1"
        )
        wire.call("sync_remote_to_local", remote_path="sent", local_path=str(project), sandbox_name="gpu1")
        for target in (tools, project / "link.py"):
            (project / "link.py").unlink(missing_ok=True)
            (project / "link.py").symlink_to(tools)
            wire.call(
                "sync_remote_to_local", remote_path="sent/lab_tools.py", local_path=str(target), sandbox_name="gpu1"
            )
        assert tools.read_text() == TOOLS


def test_a_change_counts_at_once_and_an_error_kills_nothing(lab: Lab) -> None:
    with lab.client() as wire:
        wire.initialize()
        assert "custom_benchmark" in names(wire)
        lab.write(TOOLS.replace("custom_benchmark", "other_benchmark"))
        until(lambda: "other_benchmark" in names(wire), "the new tool")
        assert "custom_benchmark" not in names(wire)
        lab.write("import no_such_module_of_the_lab\n")
        until(lambda: "No module named 'no_such_module_of_the_lab'" in problems(wire), "the problem")
        assert "other_benchmark" not in names(wire)
        lab.write("raise SystemExit(3)\n")
        until(lambda: "SystemExit: 3" in problems(wire), "the second problem")
        assert not wire.call("exec_bash", command="true", sandbox_name="gpu1").get("isError")
        lab.write(TOOLS)
        until(lambda: "custom_benchmark" in names(wire), "the first tool again")


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_can_write_is_not_loaded(lab: Lab, mode: int) -> None:
    lab.tools.chmod(mode)
    with lab.client() as wire:
        wire.initialize()
        assert "custom_benchmark" not in names(wire)
        assert "is not loaded, because others can write it" in problems(wire)


def test_a_file_of_another_user_is_not_loaded(lab: Lab) -> None:
    if os.geteuid():
        pytest.skip("needs root")
    os.chown(lab.tools, 65534, 65534)
    with lab.client() as wire:
        wire.initialize()
        assert "custom_benchmark" not in names(wire)
        assert "it belongs to another user" in problems(wire)
