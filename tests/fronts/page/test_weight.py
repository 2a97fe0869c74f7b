"""What the page keeps and draws for a large lab: counts, which no other work on this computer changes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from tests.support.busy_page import BEGIN, HOUR, BusyLab, busy_page
from tests.support.chromium import Tab, chromium, tabs

if TYPE_CHECKING:
    from playwright.async_api import Browser

MACHINES, JOBS = 100, 1000
# Of the script's memory, after an hour; elements of a view, of which most are empty rows; and of all trends.
MOST_BYTES, MOST_NODES, MOST_POINTS = 15_000_000, 4_000, 320
# Changes of the document in one sample of all machines: only what is near the screen is drawn.
CHANGES = """async () => {
  let count = 0;
  const counting = new MutationObserver((found) => (count += found.length));
  counting.observe(document.body, { childList: true, subtree: true, attributes: true, characterData: true });
  const { feed } = await import("/ui/feed.js");
  for (const [name, row] of feed.rows("machines")) {
    const gpu = row.resources.gpu.map((gpu) => ({ ...gpu, util_pct: (gpu.util_pct + 7) % 100 }));
    const put = { [name]: { ...row, resources: { ...row.resources, gpu } } };
    feed._hear("change", { topic: "machines", put, gone: [] });
  }
  await new Promise((done) => setTimeout(done, 1500));
  counting.disconnect();
  return count;
}"""


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as running:
        yield running


@pytest.fixture
async def tab(browser: Browser) -> AsyncIterator[Tab]:
    # Nothing comes by itself while it is counted.
    with busy_page(BusyLab(MACHINES, JOBS), pause_s=100_000.0) as address:
        async with tabs(browser, viewport={"width": 1280, "height": 860}) as new_tab:
            opened = await new_tab()
            await opened.page.add_init_script(BEGIN)
            await opened.open(address)
            await opened.until("() => window.shownAt")
            yield opened


async def test_an_hour_of_a_large_lab_stays_small(tab: Tab) -> None:
    tool = await tab.page.context.new_cdp_session(tab.page)
    await tool.send("Performance.enable")
    names = BusyLab(MACHINES, JOBS).names
    await tab.page.evaluate(HOUR, [names, time.time()])
    points = (
        "import('/ui/feed.js').then(({ feed }) => [...feed.rows('trends').values()].map((row) => row.points.length))"
    )
    counts = await tab.page.evaluate(points)
    assert len(counts) == MACHINES
    assert 0.8 * MOST_POINTS < max(counts) <= MOST_POINTS
    await tool.send("HeapProfiler.collectGarbage")
    found = {each["name"]: each["value"] for each in (await tool.send("Performance.getMetrics"))["metrics"]}
    assert found["JSHeapUsedSize"] <= MOST_BYTES


@pytest.mark.parametrize(
    ("view", "row", "most"),
    [
        pytest.param("fleet", ".gpu", 200, id="cards"),
        pytest.param("fleet?as=lines", ".fleet-line", 500, id="lines"),
        pytest.param("fleet?as=table", ".fleet-table td", 500, id="table"),
        pytest.param("jobs", ".job-name", 50, id="jobs"),
    ],
)
async def test_only_what_is_seen_is_drawn(tab: Tab, view: str, row: str, most: int) -> None:
    await tab.go(view)
    await tab.shows(row)
    assert await tab.page.evaluate("document.querySelectorAll('*').length") <= MOST_NODES
    count = await tab.page.evaluate(CHANGES)
    assert count <= most, count
