"""Logs of jobs as resources: listed, read, completed, and told of when they grow, in both ways of subscribing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from mcp import MCPError
from mcp.types import PromptReference, ResourceTemplateReference, TextResourceContents

from remote_sandbox_mcp.fronts.mcp import job_logs
from tests.fronts.mcp.test_job_tools import UNWATCHED, job_of
from tests.support.fakes.sandbox import FakeSandbox
from tests.support.server import Caller
from tests.support.waiting import eventually

LOG = "job://train-7/log"


async def started(tools: Caller, fake: FakeSandbox, said: bytes = b"one\ntwo\n") -> None:
    await tools.call("exec_bash_background", command="x", session_name="train-7", **UNWATCHED)
    fake.jobs.print(job_of(fake), said)


async def read(tools: Caller) -> str:
    (content,) = (await tools.client.read_resource(LOG)).contents
    assert isinstance(content, TextResourceContents)
    return content.text


async def test_a_log_is_listed_read_and_completed(tools: Caller, fake: FakeSandbox) -> None:
    assert not [it for it in (await tools.client.list_resources()).resources if str(it.uri).startswith("job:")]
    await started(tools, fake, b"one\n\x1b[31mtwo\n" + b"x" * 200_000 + b"\nlast\n")
    assert LOG in [str(it.uri) for it in (await tools.client.list_resources()).resources]
    text = await read(tools)
    assert text.endswith("last\n")
    assert "\x1b" not in text
    assert len(text) <= job_logs.MOST_READ
    reference = ResourceTemplateReference(uri=job_logs.ADDRESS)
    found = await tools.client.complete(reference, {"name": "name", "value": "tr"})
    assert found.completion.values == ["train-7"]
    nothing = await tools.client.complete(PromptReference(name="put_up"), {"name": "name", "value": "tr"})
    assert nothing.completion.values == []


async def test_a_log_that_is_not_there_is_an_error(tools: Caller) -> None:
    with pytest.raises(MCPError, match=r"(knows|is) no task"):
        await read(tools)


async def test_a_client_hears_when_a_log_has_grown(
    tools: Caller, fake: FakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_logs, "LOOK_S", 0.02)
    await started(tools, fake)
    heard: list[Any] = []
    async with tools.client.listen(resource_subscriptions=[LOG, "job://other/log"]) as subscription:

        async def listen() -> None:
            async for event in subscription:
                heard.append(event)

        async def printed() -> int:
            fake.jobs.print(job_of(fake), b"more\n")
            return len(heard)

        listening = asyncio.ensure_future(listen())
        await eventually(printed, bool, "the news of the log")
        listening.cancel()
    assert LOG in str(heard[0])
