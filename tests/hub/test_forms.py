"""What a client's user fills in: it reaches the hub that asked, and is kept nowhere on the way."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from mcp_types import ElicitResult

from remote_sandbox_mcp.core.sandboxes.login import challenge
from remote_sandbox_mcp.fronts.mcp.forms import Form, Forms
from remote_sandbox_mcp.hub.transcript import Transcript, is_answer
from remote_sandbox_mcp.local.asking import NoAnswer, Question
from remote_sandbox_mcp.services.session import Session, begin
from tests.support.hubs import kill_hub
from tests.support.second_factor import Factor, assert_found_nowhere, machine_with_code
from tests.support.server import entry, serve
from tests.support.sshd import Fleet

CODE = "271828"


@pytest.fixture(scope="module")
def factor(fleet: Fleet) -> Factor:
    return machine_with_code(fleet, name="site")


def test_a_call_is_kept_without_the_answers_that_it_carries() -> None:
    responses = {"login-1": {"action": "accept", "content": {"answer": CODE}}}
    params = {"name": "exec_bash", "arguments": {"command": "ls"}, "inputResponses": responses, "requestState": CODE}
    message = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
    kept = Transcript()
    request = kept.note(message, json.dumps(message).encode() + b"\n")
    assert request
    assert json.loads(request.line)["params"] == {"name": "exec_bash", "arguments": {"command": "ls"}}
    assert CODE not in repr(kept.opening(0))


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"jsonrpc": "2.0", "id": 1, "result": {"action": "accept"}}, True),
        ({"jsonrpc": "2.0", "id": 1, "error": {}}, True),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, False),
        ({"jsonrpc": "2.0", "method": "notifications/initialized"}, False),
        ([], False),
    ],
)
def test_answers_to_a_hub_that_is_gone_are_not_held_for_another(message: Any, expected: bool) -> None:
    assert is_answer(message) is expected


def question() -> Question:
    return Question(challenge("site", "site (example.org)", [], [("Code:", False)]))


class Retry:
    """A call that is made again with answers."""

    def __init__(self, key: str, *fields: str) -> None:
        self.input_responses = {key: ElicitResult(action="accept", content=dict.fromkeys(fields, CODE))}


async def test_no_other_session_can_answer() -> None:
    forms, asked = Forms(), question()
    form = Form(asked)
    mine, other = Session(), Session()
    begin(mine)
    forms.keep(form)
    answer: Any = Retry(form.key, *form.schema["properties"])
    begin(other)
    forms.deliver(answer)
    assert not asked.answers.done()
    begin(mine)
    forms.deliver(Retry("login-guessed", *form.schema["properties"]))  # type: ignore[arg-type]
    assert not asked.answers.done()
    forms.deliver(answer)
    assert asked.answers.result() == (CODE,)


@pytest.mark.parametrize(
    "content", [None, {}, {"answer": CODE}, "of another form", {"n": 123456}, "a\x1b[2Jb", "x" * 1001]
)
async def test_what_is_no_answer_to_this_form_is_none(content: Any) -> None:
    form, another = Form(question()), Form(question())
    (field,) = (another if content == "of another form" else form).schema["properties"]
    given = {field: content} if isinstance(content, str) else content
    with pytest.raises(NoAnswer, match="without an answer"):
        form.read(ElicitResult(action="accept", content=given))


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_hub_that_dies_while_the_form_is_open_is_followed_by_one_that_asks_again(
    factor: Factor, tmp_path: Path, mode: str
) -> None:
    factor.renew()
    forms = []

    async def fill_in(context: Any, params: Any) -> ElicitResult:
        forms.append(params)
        if len(forms) == 1:
            await asyncio.to_thread(kill_hub, tmp_path)
        code = factor.code() if len(forms) > 1 else factor.wrong_code()
        return ElicitResult(action="accept", content=dict.fromkeys(params.requested_schema["properties"], code))

    before = factor.attempts
    async with serve(tmp_path, entry(factor.machine), mode=mode, elicitation=fill_in) as server:
        assert await server.output("whoami") == f"{factor.machine.user}\n"
        assert_found_nowhere(factor.codes, tmp_path, server.everything_said)
    assert len(forms) == 2
    assert factor.attempts == before
