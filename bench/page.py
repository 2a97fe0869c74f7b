"""What the page costs in a browser: a made-up lab of 100 machines with 8 GPUs each and 1,000 jobs.

python -m bench.page [--machines N] [--jobs N] [--seconds S]
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import TYPE_CHECKING, Any

from tests.support.busy_page import BEGIN, HOUR, BusyLab, busy_page
from tests.support.chromium import chromium

if TYPE_CHECKING:
    from playwright.async_api import Browser, CDPSession, Page


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machines", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0, help="for how long to look at the script")
    options = parser.parse_args()
    print(f"{options.machines} machines, {options.jobs} jobs")
    async with chromium() as browser:
        lab = BusyLab(options.machines, options.jobs)
        with busy_page(lab) as address:
            firsts = [await first_row(browser, address) for _ in range(5)]
            print(f"first GPU on the page: {sorted(firsts)[2]:.2f} s (middle of 5; slowest {max(firsts):.2f} s)")
            for view in ("fleet", "fleet?as=lines", "fleet?as=table", "jobs"):
                print(f"script in a second on #/{view}: {await script(browser, address, view, options.seconds):.1f} ms")
            opened, tool = await shown(browser, address)
            before = await heap(tool)
            await opened.evaluate(HOUR, [lab.names, time.time()])
            print(f"heap: {before:.1f} MB at first, {await heap(tool):.1f} MB after an hour of changes, told at once")
            await opened.context.close()


async def shown(browser: Browser, address: str) -> tuple[Page, CDPSession]:
    context = await browser.new_context(viewport={"width": 1280, "height": 860})
    opened = await context.new_page()
    await opened.add_init_script(BEGIN)
    await opened.goto(address)
    await opened.wait_for_function("() => window.shownAt")
    tool = await context.new_cdp_session(opened)
    await tool.send("Performance.enable")
    return opened, tool


async def first_row(browser: Browser, address: str) -> float:
    opened, _ = await shown(browser, address)
    took = float(await opened.evaluate("() => window.shownAt"))
    await opened.context.close()
    return took / 1000


async def script(browser: Browser, address: str, view: str, seconds: float) -> float:
    """Milliseconds of script in a second."""
    opened, tool = await shown(browser, address)
    await opened.evaluate("view => { location.hash = `#/${view}` }", view)
    await asyncio.sleep(3)
    before = await metrics(tool)
    await asyncio.sleep(seconds)
    after = await metrics(tool)
    await opened.context.close()
    return 1000 * float(after["ScriptDuration"] - before["ScriptDuration"]) / (after["Timestamp"] - before["Timestamp"])


async def heap(tool: CDPSession) -> float:
    await tool.send("HeapProfiler.collectGarbage")
    return float((await metrics(tool))["JSHeapUsedSize"]) / 1e6


async def metrics(tool: CDPSession) -> dict[str, Any]:
    return {each["name"]: each["value"] for each in (await tool.send("Performance.getMetrics"))["metrics"]}


if __name__ == "__main__":
    asyncio.run(main())
