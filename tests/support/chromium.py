"""A real browser for tests of the page: one Chromium for a module, and tabs that keep nothing from each other."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Locator, Page, Position

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
# Beside other work, a first login to a machine may take this long.
SOON_MS = 40_000
# In a row, beside the links in it.
LEFT: Position = {"x": 20, "y": 20}


def require_chromium() -> str:
    """Ends the test as skipped where there is no browser; `make test` installs one where it can."""
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        pytest.skip("there is no Chromium on this machine")
    return found


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    program = require_chromium()
    from playwright.async_api import async_playwright

    # Root has no sandbox of Chromium; the pages of these tests are our own.
    words = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=[*words, "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            await browser.close()


class Tab:
    """One tab. `complaints` are errors of scripts and of the browser, such as what the page's policy forbids."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        # Requests that came to nothing or to an error, for the failure of a test: some tests cut lines on purpose.
        self.lost: list[str] = []
        page.set_default_timeout(SOON_MS)
        page.on("requestfailed", lambda request: self.lost.append(f"{request.url}: {request.failure}"))
        page.on("pageerror", lambda problem: self.complaints.append(str(problem)))
        page.on("console", self._hear)
        page.on("dialog", lambda dialog: self.complaints.append(f"a script opened a dialog: {dialog.message}"))

    def _hear(self, message: Any) -> None:
        # That a request was refused, or its line cut, is a part of some tests.
        if message.type == "error" and not re.search(r"Failed to load resource|net::ERR", message.text):
            self.complaints.append(message.text)

    async def open(self, address: str, view: str = "") -> None:
        # One behind another gets few frames, or none.
        await self.page.bring_to_front()
        await self.page.goto(address)
        await self.live()
        if view:
            await self.go(view)

    async def live(self) -> None:
        """Wait until the page is connected; else tell what it shows instead."""
        from playwright.async_api import TimeoutError

        try:
            await self.page.locator(".live[data-phase=live]").wait_for()
        except TimeoutError:
            shown = await self.page.evaluate("document.readyState + ' ' + document.documentElement.outerHTML")
            entries = (
                "performance.getEntriesByType('resource').map((it) => `${it.name} ${it.responseStatus} ${it.duration}`)"
            )
            got = await self.page.evaluate(entries)
            raise AssertionError(
                f"not connected: {shown[:600]!r}, {self.complaints}, {self.lost[-20:]}, {got[-40:]}"
            ) from None

    async def go(self, view: str) -> None:
        await self.page.evaluate("view => { location.hash = `#/${view}` }", view)

    def find(self, what: str, text: str | re.Pattern[str] | None = None) -> Locator:
        """An element by its selector, with this text in it."""
        return self.page.locator(what, has_text=text) if text else self.page.locator(what)

    async def shows(self, what: str, text: str | re.Pattern[str] | None = None) -> Locator:
        """The first such element, once it can be seen."""
        found = self.find(what, text).first
        await found.wait_for(state="visible")
        return found

    async def gone(self, what: str, text: str | re.Pattern[str] | None = None) -> None:
        await self.find(what, text).first.wait_for(state="hidden")

    async def until(self, script: str, given: Any = None) -> Any:
        """Wait until a JavaScript function is true."""
        return await self.page.wait_for_function(script, arg=given)


Opener = Callable[..., Awaitable[Tab]]


@asynccontextmanager
async def fresh(tab: Tab) -> AsyncIterator[Tab]:
    """A tab that stays open, loaded anew on its first view: that takes a third of the work of a new one."""
    await tab.page.bring_to_front()
    await tab.go("fleet")
    await tab.page.reload()
    await tab.live()
    tab.complaints.clear()
    yield tab
    assert not tab.complaints


@asynccontextmanager
async def tabs(browser: Browser, **options: Any) -> AsyncIterator[Opener]:
    """Opens tabs of one person; at the end nothing has complained."""
    context: BrowserContext = await browser.new_context(**{"locale": "en-US", **options})
    opened: list[Tab] = []

    async def open_tab() -> Tab:
        opened.append(Tab(await context.new_page()))
        return opened[-1]

    try:
        yield open_tab
        assert not [complaint for tab in opened for complaint in tab.complaints]
    finally:
        await context.close()
