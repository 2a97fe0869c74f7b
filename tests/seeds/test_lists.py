"""Section 7 of remote-sandbox-mcp's README, and the tools of the guide: which tools and parameters there are."""

from __future__ import annotations

import re
from typing import Any

import pytest

from .promise import shown_by
from .scene import TRANSPORTS, session

PARAMETER = re.compile(r"(?P<tool>\w+)(?:\((?P<name>\w+)(?P<needed>!?)(?:=(?P<default>[^)]*))?\))?")
ADVANCED = {"REMOTE_SANDBOX_EXPOSE_ADVANCED_TOOLS": "1"}

Listed = dict[str, dict[str, Any]]


@pytest.fixture(scope="module", params=TRANSPORTS)
async def lists(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Listed, Listed]:
    """The input schemas of the tools by default, and with those of the watchdog."""
    found = []
    for env in ({}, ADVANCED):
        async with session(request.param, tmp_path_factory.mktemp("lists"), env=env) as caller:
            found.append({it.name: it.input_schema for it in (await caller.client.list_tools()).tools})
    return found[0], found[1]


def documented(promise: str) -> re.Match[str]:
    found = PARAMETER.fullmatch(promise)
    assert found, promise
    return found


@pytest.mark.parametrize("promise", shown_by("test_lists.py::test_listed"))
async def test_listed(lists: tuple[Listed, Listed], promise: str) -> None:
    found, (by_default, everything) = documented(promise), lists
    schema = by_default.get(found["tool"], everything[found["tool"]])
    if not found["name"]:
        return
    parameter = schema["properties"][found["name"]]
    assert parameter["description"]
    assert (found["name"] in schema.get("required", ())) == bool(found["needed"])
    if found["default"]:
        assert str(parameter["default"]).lower() == found["default"]


async def test_a_tool_of_the_watchdog_is_not_listed_by_default(lists: tuple[Listed, Listed]) -> None:
    by_default, everything = lists
    hidden = everything.keys() - by_default.keys()
    of_watchdog = {documented(it)["tool"] for it in shown_by("test_lists.py::test_listed")} - by_default.keys()
    assert of_watchdog <= hidden
    assert "get_watchdog_status" in of_watchdog
