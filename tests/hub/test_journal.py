"""Calls that must not be made twice: the next hub answers them as the one before did, or says that it does not know."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from mcp.types import CallToolResult, TextContent, ToolAnnotations

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.config import paths
from remote_sandbox_mcp.core.client import Call, Calls, begin_call
from remote_sandbox_mcp.core.commands.command import Completed
from remote_sandbox_mcp.core.errors import FileProblem
from remote_sandbox_mcp.fronts.mcp.journal import Journal, is_kept
from remote_sandbox_mcp.fronts.mcp.results import about_error
from remote_sandbox_mcp.fronts.mcp.toolbox import PLAIN, Declaration
from remote_sandbox_mcp.services.fleet import Fleet
from tests.fronts.mcp.conftest import member
from tests.support.fakes.sandbox import Answer, FakeSandbox, after
from tests.support.hubs import kill_hub
from tests.support.server import entry, until, wire
from tests.support.sshd import Sshd, wait_until

DONE = CallToolResult(content=[TextContent(type="text", text="done")], structured_content={"size": 3})
CHANGES = ToolAnnotations(read_only_hint=False, idempotent_hint=False)
REPEATABLE = ToolAnnotations(read_only_hint=False, idempotent_hint=True)
READS = ToolAnnotations(read_only_hint=True)


class Made:
    """Counts how often a call is made."""

    def __init__(self) -> None:
        self.times = 0

    async def __call__(self) -> CallToolResult:
        self.times += 1
        return DONE


async def test_a_repeated_call_gets_the_answer_of_the_first() -> None:
    made = Made()
    await Journal().once(Call("s 1.0"), "edit_remote_file", made)
    again = await Journal().once(Call("s 1.0", again=True), "edit_remote_file", made)
    assert again.model_dump(exclude_none=True) == DONE.model_dump(exclude_none=True)
    assert made.times == 1


async def test_a_call_that_began_without_an_answer_is_not_repeated() -> None:
    async def killed() -> CallToolResult:
        raise asyncio.CancelledError

    made = Made()
    with pytest.raises(asyncio.CancelledError):
        await Journal().once(Call("s 1.0"), "edit_remote_file", killed)
    answer = await Journal().once(Call("s 1.0", again=True), "edit_remote_file", made)
    assert isinstance(answer, CallToolResult)
    assert answer.is_error
    assert "whether it was done is not known; look first" in str(answer.content)
    assert about_error(answer)["outcome"] == "unknown"
    assert made.times == 0


async def test_a_repeated_call_is_not_made_while_the_records_cannot_be_read() -> None:
    made = Made()
    await Journal().once(Call("s 1.0"), "edit_remote_file", made)
    for file in paths.state_folder().glob("state.db*"):
        file.write_bytes(b"no database" * 1000)
    answer = await Journal().once(Call("s 1.0", again=True), "edit_remote_file", made)
    assert about_error(answer)["outcome"] == "unknown"
    assert made.times == 1


async def test_a_call_that_never_began_is_made() -> None:
    made = Made()
    await Journal().once(Call("s 1.0", again=True), "edit_remote_file", made)
    assert made.times == 1


async def test_calls_are_made_even_if_they_cannot_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(paths.HOME, "/dev/null/state")
    made = Made()
    await Journal().once(Call("s 1.0"), "edit_remote_file", made)
    assert made.times == 1


@pytest.mark.parametrize(
    ("tool", "hints", "arguments", "expected"),
    [
        pytest.param(Declaration(names_its_work=True), CHANGES, {}, False, id="a command has a name of its own"),
        pytest.param(PLAIN, CHANGES, {}, True, id="an edit"),
        pytest.param(PLAIN, REPEATABLE, {}, False, id="the same content twice is the same file"),
        pytest.param(PLAIN, REPEATABLE, {"create_only": True}, True, id="a file that must be new"),
        pytest.param(Declaration(answers_once=True), REPEATABLE, {}, True, id="a second deletion would fail"),
        pytest.param(PLAIN, READS, {}, False, id="reading"),
        pytest.param(PLAIN, None, {}, False, id="a tool without annotations"),
    ],
)
def test_only_calls_that_must_not_be_repeated_are_recorded(
    tool: Declaration, hints: ToolAnnotations, arguments: dict[str, Any], expected: bool
) -> None:
    assert is_kept(tool, hints, arguments) is expected


def test_lines_that_are_sent_again_keep_their_names() -> None:
    first = Calls("s", "1.")
    names = [first.next().name for _ in range(3)]
    second = Calls("s", "2.", [None, {"name": "1.2", "waited_s": 4.5}])
    calls = [second.next() for _ in range(3)]
    assert [call.name for call in calls] == ["s 2.0", names[2], "s 2.2"]
    assert [(call.again, call.waited_s) for call in calls] == [(False, 0), (True, 4.5), (False, 0)]
    assert len({*names, calls[0].name, calls[2].name}) == 5


def test_an_edit_with_an_unknown_outcome_is_reported_as_such(machine: Sshd, tmp_path: Path) -> None:
    file = machine.home / "unknown"
    file.write_text("a\n")
    os.chown(file, machine.uid, machine.uid)
    with wire(tmp_path, entry(machine)) as line:
        line.initialize()
        line.call("exec_bash", command="true")
        machine.freeze()
        try:
            number = line.start_call("edit_remote_file", remote_path=str(file), old_text="a", new_text="aa")
            wait_until(lambda: begun(tmp_path), what="the call to begin", seconds=20)
            kill_hub(tmp_path)
        finally:
            machine.thaw()
        while (message := line.receive()).get("id") != number:
            pass
        assert message["result"]["isError"]
        assert "whether it was done is not known" in json.dumps(message)


def begun(home: Path) -> list[Any]:
    # Before anything is written down there is no table.
    with (
        suppress(sqlite3.OperationalError),
        closing(sqlite3.connect(home / "state" / "state.db", timeout=10)) as connection,
    ):
        return connection.execute("SELECT 1 FROM calls WHERE answer IS NULL").fetchall()
    return []


# Commands


async def test_a_command_that_is_cancelled_before_it_is_found_again_is_stopped() -> None:
    """The hub that begins the conversation anew is still logging in when it hears that the call is cancelled."""
    fake = FakeSandbox({"sleep 600": Answer(then=after(600))})
    first, second = App(Fleet([member(fake)])), App(Fleet([member(fake)]))
    begin_call(Call("session 1.5"))
    await first.commands.run("sleep 600", patience_s=0.05)
    begin_call(Call("session 1.5", again=True, waited_s=1.0))
    fake.delay_s = 0.2
    again = asyncio.ensure_future(second.commands.run("sleep 600"))
    await asyncio.sleep(0.05)
    again.cancel()
    await asyncio.wait((again,))
    assert again.cancelled()
    run_id = fake.commands[0].run_id

    async def is_ended() -> bool:
        return isinstance(await fake.observe(run_id), Completed)

    await until(is_ended, "the command to end")
    assert len(fake.commands) == 1
    await asyncio.gather(first.close(), second.close())


# Files


@pytest.mark.parametrize("is_written", [True, False], ids=["by us", "by another"])
async def test_a_write_that_is_made_again_is_not_refused_for_what_it_has_written_itself(is_written: bool) -> None:
    """The process that wrote the file died before it could note the new version or answer."""
    fake, path = FakeSandbox(), f"written {is_written}"
    app = App(Fleet([member(fake)]))
    await app.files.write(path, b"old")
    await fake.write(path, b"new" if is_written else b"another's")
    begin_call(Call("session 1.5", again=True))
    if is_written:
        assert (await app.files.write(path, b"new")).size == 3
        assert (await app.files.write(path, b"newer")).size == 5
    else:
        with pytest.raises(FileProblem, match="changed since"):
            await app.files.write(path, b"new")
    await app.close()
