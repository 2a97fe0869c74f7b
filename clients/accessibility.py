"""The page in a browser, looked at by axe: what keeps people from using it by keyboard, screen reader or weak eyes."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clients import places, serving

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

VIEWS = ("fleet", "jobs", "sandboxes", "workspaces", "transfers", "events", "calls", "usage", "files")
# What axe calls moderate or minor is told to nobody: it depends on taste.
GRAVE = ("serious", "critical")
LOOK = """() => axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations.map(
    (one) => ({id: one.id, impact: one.impact, help: one.help, node: one.nodes[0].html.slice(0, 200)})))"""
SOON_MS = 30_000


def problems(folder: Path) -> Iterator[str]:
    """One sentence for each grave finding, in both themes and at two widths."""
    program = shutil.which("chromium")
    if program is None:
        print("      left out: there is no chromium on this machine")
        return
    with serving.over_http(folder / "page-home") as server:
        address = server["url"].removesuffix("/mcp")
        key = server["headers"]["Authorization"].removeprefix("Bearer ")
        yield from asyncio.run(_all(program, f"{address}/ui/", key))


async def _all(program: str, page: str, key: str) -> list[str]:
    from playwright.async_api import async_playwright

    words = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=words)
        try:
            return [
                f"{theme}, {width} pixels wide, {found}"
                for theme in ("light", "dark")
                for width in (1280, 360)
                async for found in _look(browser, page, key, color_scheme=theme, viewport=_size(width))
            ]
        finally:
            await browser.close()


def _size(width: int) -> dict[str, int]:
    return {"width": width, "height": 800}


async def _look(browser: Browser, address: str, key: str, **options: Any) -> AsyncIterator[str]:
    # Our policy allows no foreign script; that it holds is tested elsewhere.
    context = await browser.new_context(bypass_csp=True, **options)
    page = await context.new_page()
    page.set_default_timeout(SOON_MS)
    await page.add_init_script(path=places.FOLDER / "node_modules/axe-core/axe.min.js")
    await page.goto(address)
    await page.wait_for_selector(".door")
    async for found in _findings(page, "the door"):
        yield found
    await page.fill(".door input", key)
    await page.keyboard.press("Enter")
    await page.wait_for_selector(".live[data-phase=live]")
    for view in VIEWS:
        await page.evaluate("view => { location.hash = `#/${view}` }", view)
        await page.wait_for_selector(f".nav-link[aria-current][href='#/{view}']")
        async for found in _findings(page, view):
            yield found
    await page.keyboard.press("?")
    await page.wait_for_selector("dialog")
    async for found in _findings(page, "the keys"):
        yield found
    await context.close()


async def _findings(page: Page, where: str) -> AsyncIterator[str]:
    for found in await page.evaluate(LOOK):
        if found["impact"] in GRAVE:
            yield f"{where}: {found['id']} ({found['impact']}): {found['help']}: {found['node']}"
