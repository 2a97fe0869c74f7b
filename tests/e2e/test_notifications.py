"""Clients hear that sandboxes are new, over, or stand otherwise, whichever server or process changed them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from mcp.shared.subscriptions import ResourcesListChanged, ResourceUpdated

from remote_sandbox_mcp.local.waiting import within
from tests.support.server import Wire, serve, wire

ADVANCED = {"REMOTE_SANDBOX_EXPOSE_ADVANCED_TOOLS": "1"}
LIST_CHANGED, UPDATED = "notifications/resources/list_changed", "notifications/resources/updated"
# A second or two, and what a machine that is busy with other tests takes.
SOON_S = 10.0


@pytest.fixture(params=[False, True], ids=["a server of its own", "the hub"])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Wire, Wire]]:
    """Two servers on one state folder, each a process of its own; the second may be the hub."""
    with ExitStack() as stack:
        hubs = (False, request.param)
        first, second = (stack.enter_context(wire(tmp_path, env=ADVANCED, hub=hub)) for hub in hubs)
        yield first, second


def done(answer: dict[str, Any]) -> dict[str, Any]:
    assert not answer.get("isError"), answer
    return dict(answer["structuredContent"])


def listed(line: Wire) -> dict[str, str]:
    """The disposable sandboxes as the resource has them, with their status."""
    (content,) = line.ask("resources/read", {"uri": "sandbox://list"})["result"]["contents"]
    return {it["id"]: it["status"] for it in json.loads(content["text"])["sandboxes"] if "id" in it}


def wait_for(line: Wire, method: str, uri: str = "") -> float:
    """Read until such a notification has come; the seconds that it took."""
    begun = time.monotonic()
    while True:
        message = line.receive()
        assert time.monotonic() < begun + SOON_S, message
        if message.get("method") == method and message.get("params", {}).get("uri", "") == uri:
            return time.monotonic() - begun


def hears(line: Wire, sandbox: str) -> None:
    """What a client is told of one change: the list is another, and what it has subscribed to."""
    wait_for(line, LIST_CHANGED)
    for uri in ("sandbox://list", f"sandbox://{sandbox}/status"):
        wait_for(line, UPDATED, uri)


def test_a_client_hears_of_what_another_server_does(servers: tuple[Wire, Wire]) -> None:
    first, second = servers
    assert second.initialize()["capabilities"]["resources"] == {"listChanged": True, "subscribe": True}
    first.initialize()
    for uri in ("sandbox://list", "sandbox://web/status"):
        assert second.ask("resources/subscribe", {"uri": uri})["result"] == {}
    made = done(first.call("create_sandbox", name="web", timeout=600))["sandbox_id"]
    hears(second, "web")
    assert listed(second) == {made: "running"}
    for tool, status in (("pause_sandbox", "paused"), ("resume_sandbox", "running")):
        done(first.call(tool, sandbox_id="web"))
        hears(second, "web")
        assert listed(second) == {made: status}
    done(first.call("delete_sandbox", sandbox_id=made))
    hears(second, "web")
    assert listed(second) == {}
    second.ask("resources/unsubscribe", {"uri": "sandbox://web/status"})
    again = done(first.call("create_sandbox", name="web", timeout=2))["sandbox_id"]
    wait_for(second, LIST_CHANGED)
    wait_for(second, UPDATED, "sandbox://list")
    assert again in listed(second)
    # Its time is over.
    wait_for(second, LIST_CHANGED)
    wait_for(second, UPDATED, "sandbox://list")
    assert listed(second) == {}


def test_a_client_hears_of_what_it_does_itself_once(servers: tuple[Wire, Wire]) -> None:
    _, line = servers
    line.initialize()
    number = line.start_call("create_sandbox", timeout=600)
    messages = [line.receive(), line.receive()]
    (made,) = [message["result"]["structuredContent"] for message in messages if message.get("id") == number]
    assert [message["method"] for message in messages if "method" in message] == [LIST_CHANGED]
    number = line.start_call("delete_sandbox", sandbox_id=made["sandbox_id"])
    messages = [line.receive(), line.receive()]
    assert {message.get("method", message.get("id")) for message in messages} == {LIST_CHANGED, number}


async def test_a_client_that_listens_hears_of_what_another_server_does(tmp_path: Path) -> None:
    async with serve(tmp_path, hub=False) as first, serve(tmp_path, hub=False) as second:
        wanted = ["sandbox://list", "sandbox://web/status"]
        async with second.client.listen(resources_list_changed=True, resource_subscriptions=wanted) as events:
            await first.call("create_sandbox", name="web")
            heard = [await within(anext(events), SOON_S) for _ in range(3)]
        await first.call("delete_sandbox", sandbox_id="web")
    assert heard == [ResourcesListChanged(), *map(ResourceUpdated, wanted)]
