"""Prompts as a client gets them: with and without arguments, in both eras of the protocol."""

from __future__ import annotations

import re
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS

from remote_sandbox_mcp.app import App
from tests.fronts.mcp.conftest import connected
from tests.support.server import Caller

NAMES = ("test-in-sandbox", "debug-in-sandbox", "deploy-to-sandbox")
ERAS = ["legacy", "auto"]
# Tools in the calls that a prompt suggests, and how each names its sandbox.
PLACES = {
    "sync_local_to_remote": "sandbox_name",
    "exec_bash_background": "sandbox_name",
    "run_tests": "sandbox_id",
    "run_command": "sandbox_id",
    "deploy_app": "sandbox_id",
    "delete_sandbox": "sandbox_id",
}


async def text_of(tools: Caller, name: str, **given: str) -> str:
    asked = await tools.client.get_prompt(name, given)
    return str(getattr(asked.messages[0].content, "text", ""))


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("no-such-prompt", {}, "test-in-sandbox"),
        ("test-in-sandbox\x1b]0;x\x07", {}, "debug-in-sandbox"),
        ("test-in-sandbox", {"projct": "/p"}, "it takes: project, image, command, sandbox"),
    ],
    ids=["unknown", "unknown with controls", "unknown argument"],
)
async def test_what_is_not_there_is_told_as_invalid_parameters(
    app: App, mode: str, name: str, given: dict[str, str], says: str
) -> None:
    async with connected(app, mode) as tools:
        with pytest.raises(MCPError) as problem:
            await tools.client.get_prompt(name, given)
    assert problem.value.error.code == INVALID_PARAMS
    assert says in problem.value.error.message
    assert "\x1b" not in problem.value.error.message


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("given", [{}, {"sandbox": "gpu1"}, {"project": "/p q", "sandbox": "gpu1"}], ids=str)
async def test_a_prompt_numbers_its_steps_copies_the_project_and_names_the_sandbox(
    tools: Caller, name: str, given: dict[str, Any]
) -> None:
    text = await text_of(tools, name, **given)
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", text, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= 4
    place = "'gpu1'" if "sandbox" in given else "ID"
    assert ("create_sandbox(" in text) == (place == "ID")
    for tool, argument in PLACES.items():
        for call in re.findall(rf"{tool}\(([^)]*)", text):
            assert f"{argument}={place}" in call, call
    copies = re.findall(r"sync_local_to_remote\(([^)]*)", text)
    assert len(copies) == 1
    assert ("'/p q'" in copies[0]) == ("project" in given)


async def test_no_argument_of_a_prompt_is_needed(tools: Caller) -> None:
    prompts = (await tools.client.list_prompts()).prompts
    assert {prompt.name for prompt in prompts} == set(NAMES)
    for prompt in prompts:
        assert not [argument.name for argument in prompt.arguments or () if argument.required]


@pytest.mark.parametrize("project", ["..", "/", ".", "/home/me/.."])
async def test_a_project_is_never_copied_over_the_home_folder(tools: Caller, project: str) -> None:
    text = await text_of(tools, "test-in-sandbox", project=project, sandbox="gpu1")
    assert "remote_path='~/remote-sandbox/project'" in text
