"""run_python as a client sees it."""

from __future__ import annotations

import base64
import json
import math

from mcp.types import CallToolResult, ImageContent, TextContent

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.core.commands.command import Command
from remote_sandbox_mcp.core.texts.image import recognise
from remote_sandbox_mcp.services.fleet import Fleet
from tests.fronts.mcp.conftest import connected, member
from tests.support.fakes.sandbox import Answer, FakeSandbox, after
from tests.support.images import png
from tests.support.pythons import order_in, python_answer, record_line
from tests.support.server import Caller


def answering(fake: FakeSandbox, printed: bytes = b"", **record: object) -> None:
    """Let all code on a scripted sandbox have this record."""

    def answer(command: Command) -> Answer:
        order = order_in(command)
        if order["verb"] != "call":
            return python_answer(command)
        return Answer(printed + record_line(order["word"], {"state": "done", "seconds": 0.1} | record))

    fake.answers = answer


def text_of(answer: CallToolResult) -> str:
    first = answer.content[0]
    assert isinstance(first, TextContent)
    return first.text


async def test_a_result_says_what_there_is_and_nothing_else(tools: Caller, fake: FakeSandbox) -> None:
    answering(fake, b"printed\n", value="42", new=True, version="3.11.2", python="/usr/bin/python3", memory=30_000_000)
    answer = await tools.ask("run_python", code="6 * 7", sandbox_name="fake")
    assert answer.structured_content == {
        **{"value": "42", "stdout": "printed\n", "new": True, "python": "3.11.2 /usr/bin/python3", "memory_mb": 30},
    }
    assert text_of(answer) == (
        "done after 0.1 s, in a new session of 3.11.2 /usr/bin/python3\nvalue: 42, memory_mb: 30\nstdout:\nprinted"
    )
    # The session is there: the next call is one command.
    before = len(fake.commands)
    await tools.call("run_python", code="1", session="main")
    assert [order_in(command)["verb"] for command in fake.commands[before:]] == ["call"]


async def test_a_session_that_ended_is_begun_again(tools: Caller, fake: FakeSandbox) -> None:
    answering(fake)
    await tools.call("run_python", code="1")
    states = ["no_session", "done"]

    def answer(command: Command) -> Answer:
        order = order_in(command)
        state = states.pop(0) if order["verb"] == "call" else "begun"
        return Answer(record_line(order["word"], {"state": state}))

    fake.answers = answer
    before = len(fake.commands)
    await tools.call("run_python", code="1")
    orders = [order_in(command) for command in fake.commands[before:]]
    assert [order["verb"] for order in orders] == ["call", "begin", "call"]
    # The same call, whatever the number of commands: it is known by its id.
    assert orders[0]["id"] == orders[2]["id"]


async def test_images_are_checked_and_shown_as_blocks(tools: Caller, fake: FakeSandbox) -> None:
    fake.files |= {"/s/1.png": png(3, 2), "/s/2.png": b"no image", "/s/3.png": png(9000, 1)}
    answering(fake, images=[{"path": f"/s/{number}.png", "size": 1} for number in (1, 2, 3, 4)], unseen="2")
    answer = await tools.ask("run_python", code="figure()")
    (block,) = [part for part in answer.content if isinstance(part, ImageContent)]
    shown = recognise(base64.b64decode(block.data))
    assert (block.mime_type, shown and shown.width) == ("image/png", 3)
    fields = answer.structured_content or {}
    assert [row.get("problem", "")[:9] for row in fields["images"]] == ["", "it is no ", "not shown"]
    assert fields["images_not_shown"] == 2


async def test_what_the_machine_says_is_text_of_a_stranger(tools: Caller, fake: FakeSandbox) -> None:
    answering(
        fake, value="\x1b[31mred\u202e", traceback="t\x00", python="/p\x1b[2J", new=True, earlier="\x07e", state="error"
    )
    answer = await tools.ask("run_python", code="1")
    said = json.dumps(answer.structured_content) + text_of(answer)
    assert not {"\x1b", "\u202e", "\x07", "\x00"} & set(said)
    assert "\\u001b" not in said


async def test_a_result_fits_its_client(tools: Caller, fake: FakeSandbox) -> None:
    answering(fake, b"o" * 90_000, value="v" * 900_000, traceback="t" * 900_000, earlier="e" * 60_000, state="error")
    answer = await tools.ask("run_python", code="1", max_output_chars=1_000_000)
    assert len(json.dumps(answer.structured_content)) <= 100_000


async def test_code_that_outlasts_its_call_is_found_by_its_handle(fake: FakeSandbox) -> None:
    def answer(command: Command) -> Answer:
        is_call = order_in(command)["verb"] == "call"
        return Answer(b"so far\n", then=after(math.inf)) if is_call else python_answer(command)

    fake.answers = answer
    async with connected(App(Fleet([member(fake)]), patience_s=1.1)) as tools:
        seen = await tools.call("run_python", code="train()")
        assert (seen["running"], seen["stdout"]) == (True, "so far\n")
        (task,) = (await tools.call("list_background_tasks"))["tasks"]
        assert (task["tmux_session"], task["command"]) == (seen["tmux_session"], "run_python, session main:\ntrain()")
        assert (await tools.call("stop_background_task", tmux_session=seen["tmux_session"]))["running"] is False


async def test_errors_say_what_to_do(tools: Caller, fake: FakeSandbox) -> None:
    answering(fake, state="busy", busy_s=70, busy_with="train()")
    busy = await tools.fail("run_python", code="1", timeout_s=30)
    assert "main was still busy after 30 s: code of an earlier call ('train()') has run for 1 min" in busy["error"]
    assert "end this one with stop_background_task(tmux_session='python:main') (nothing was started)" in busy["error"]
    fake.answers = {}
    none = await tools.fail("run_python", code="1", session="other")
    assert "unable to run Python on fake: there is no Python 3 there" in none["error"]
    assert "pass python=PATH" in none["error"]
    fake.answers = lambda command: Answer(b"nonsense", b"Segmentation fault\n", 139)
    assert "Segmentation fault" in (await tools.fail("run_python", code="1", session="more"))["error"]
