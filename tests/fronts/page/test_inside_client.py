"""The cards that clients show beside a result, in a real browser, in a frame without any rights."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from remote_sandbox_mcp.fronts.mcp.resources import FILES, SCRIPTS, as_value, cards_page
from tests.support.chromium import chromium

if TYPE_CHECKING:
    from playwright.async_api import FrameLocator, Locator, LocatorAssertions, Page

# What a client does that shows an app: it frames the document and speaks to it (MCP Apps, 2026-01-26).
CLIENT = """
([html, context, result, again]) => {
  const frame = document.createElement("iframe");
  frame.sandbox = "allow-scripts";
  globalThis.heard = [];
  const send = (message) => frame.contentWindow.postMessage({jsonrpc: "2.0", ...message}, "*");
  const answers = {
    "ui/initialize": {protocolVersion: "2026-01-26", hostInfo: {name: "a client", version: "1"},
                      hostCapabilities: again ? {serverTools: {}} : {}, hostContext: context},
    "tools/call": again,
  };
  addEventListener("message", ({source, data}) => {
    if (source !== frame.contentWindow) return;
    heard.push(data);
    if (data.method in answers) send({id: data.id, result: answers[data.method]});
    if (data.method !== "ui/notifications/initialized") return;
    send({method: "ui/notifications/tool-input", params: {arguments: {check_resources: true}}});
    send({method: "ui/notifications/tool-result", params: result});
  });
  frame.srcdoc = html;
  document.body.replaceChildren(frame);
}
"""
GPU = {"index": 0, "name": "NVIDIA H200", "util_pct": 97, "mem_used_mb": 120000, "mem_total_mb": 143771}
BUSY = GPU | {"state": "busy", "processes": [{"pid": 7, "user": "alice", "name": "python", "mem_mb": 120000}]}
MACHINES = {
    "sandboxes": [
        {"name": "gpu1", "kind": "ssh", "connection_alive": True, "resources": {"gpu": [BUSY], "idle_score": 0.1}},
        {
            "name": "gpu2",
            "kind": "ssh",
            "connection_alive": False,
            "connection_error": "unable to open gpu2: no answer",
        },
    ]
}


def expect(found: Locator) -> LocatorAssertions:
    # Loaded here: every worker reads this file, and one of them runs it.
    from playwright.async_api import expect

    return expect(found)


@pytest.fixture(scope="module")
async def page() -> AsyncIterator[Page]:
    async with chromium() as browser:
        yield await browser.new_page()


async def shown(page: Page, structured: dict[str, Any], again: Any = None, **context: Any) -> FrameLocator:
    context |= {"toolInfo": {"tool": {"name": "list_sandboxes"}}}
    await page.evaluate(CLIENT, [cards_page(), context, {"content": [], "structuredContent": structured}, again])
    return page.frame_locator("iframe")


async def test_machines_are_shown_as_cards_and_made_anew_when_asked(page: Page) -> None:
    freed = {
        "sandboxes": [
            {"name": "gpu1", "connection_alive": True, "resources": {"gpu": [GPU | {"util_pct": 0, "state": "free"}]}}
        ]
    }
    frame = await shown(page, MACHINES, {"content": [], "structuredContent": freed})
    await expect(frame.locator("article.machine")).to_have_count(2)
    await expect(frame.locator(".gpu-who")).to_contain_text("alice")
    await expect(frame.get_by_text("unable to open gpu2: no answer")).to_be_visible()
    await frame.get_by_role("button", name="Refresh").click()
    await expect(frame.get_by_text("all free")).to_be_visible()
    (call,) = [said for said in await page.evaluate("heard") if said["method"] == "tools/call"]
    assert call["params"] == {"name": "list_sandboxes", "arguments": {"check_resources": True}}


async def test_a_job_is_shown_with_its_progress_and_the_end_of_its_log_in_the_clients_theme_and_language(
    page: Page,
) -> None:
    job = {"tmux_session": "train-7", "running": True, "running_s": 4221.0, "log_tail": "loss 0.2"}
    job |= {"checkpoint": {"text": "...", "progress": {"share": 0.3, "words": "step 300 / 1,000"}}}
    frame = await shown(page, job, theme="dark", locale="zh-CN")
    await expect(frame.get_by_text("step 300 / 1,000")).to_be_visible()
    await expect(frame.locator("pre")).to_have_text("loss 0.2")
    await expect(frame.get_by_text("运行中")).to_be_visible()
    await expect(frame.locator("html")).to_have_attribute("data-theme", "dark")
    assert not await frame.get_by_role("button").count(), "this client cannot call tools"


async def test_what_a_machine_says_is_text(page: Page) -> None:
    hostile = '<img src=x onerror="document.title=1"><script>document.title=1</script>'
    await shown(page, {"tmux_session": hostile, "running": False, "log_tail": hostile, "error": hostile})
    frame = page.frame_locator("iframe")
    await expect(frame.locator("pre")).to_have_text(hostile)
    assert not await frame.locator("main img, main script").count()


async def test_the_client_learns_how_high_the_cards_are(page: Page) -> None:
    await shown(page, MACHINES)
    told = "heard.filter((said) => said.method === 'ui/notifications/size-changed' && said.params.height > 100).length"
    await page.wait_for_function(told)


def test_the_document_loads_nothing_and_ends_no_script_early() -> None:
    sources = [as_value(name, (FILES / f"{name}.js").read_text("utf-8")) for name in SCRIPTS]
    assert not any(line.startswith(("import ", "export ")) for source in sources for line in source.splitlines())
    assert cards_page().count("</script") == 1
    assert "http://" not in cards_page().replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in cards_page()
