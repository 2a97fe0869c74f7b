"""The pictures of docs/dashboard.md and the README: the page in a real browser, on a lab of real machines."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters, stdio_client
from mcp.types import Implementation
from playwright.async_api import Browser, Page, async_playwright

from .fleet import Lab, lab

DOCS = Path(__file__).parent.parent / "docs"
CHROMIUM = "/usr/bin/chromium"
WIDE, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 844}
CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("list_sandboxes", {"check_resources": True}),
    ("exec_bash", {"command": "nvidia-smi --query-gpu=memory.used --format=csv", "sandbox_name": "gpu2"}),
    ("write_remote_file", {"remote_path": "eval.py", "content": "print('accuracy 0.712')\n", "sandbox_name": "gpu2"}),
    ("exec_bash", {"command": "python3 eval.py", "sandbox_name": "gpu2"}),
    ("exec_bash", {"command": "python3 eval.py --split test", "cwd": "~/nowhere", "sandbox_name": "gpu2"}),
    ("check_background_task", {"tmux_session": "llama-7b"}),
    ("create_sandbox", {"timeout": 3600}),
    ("exec_bash", {"command": "hostname", "sandbox_name": "gpu3"}),
    ("search_remote_files", {"glob": "runs/*.json", "sandbox_name": "gpu1"}),
)
# So that lines of the last hour have something to show, and jobs have come some way.
SETTLE_S = 60.0
SHOWN_S = 60_000
# In text nodes alone, right before a picture is taken: test users and loopback addresses would tell a reader nothing.
RENAME = """
(names) => {
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode())
    for (const [from, to] of names)
      if (node.data.includes(from)) node.data = node.data.replaceAll(from, to);
}
"""


def main() -> int:
    with lab() as here:
        work(here)
        with dashboard(here) as address:
            asyncio.run(take_all(here, address))
    return 0


def work(here: Lab) -> None:
    """What a lab does on an ordinary day."""
    train = ("--checkpoint", "runs/{}.json", "--resume", "python3 train.py 4000 900 {}", "--auto-resume", "--")
    for machine, name, begun in (("gpu1", "llama-7b", 1312), ("gpu1", "vit-large", 204), ("gpu2", "whisper-ft", 3120)):
        words = [word.format(name) for word in train]
        here.start(machine, name, *words, f"python3 train.py 4000 {begun} {name}")
    here.start("gpu2", "eval-mmlu", "--", "echo accuracy 0.712")
    here.start("gpu2", "prep-data", "--", "echo 'no space left on device' >&2; exit 1")
    here.start("cluster", "sweep-lr", "--", "sleep 600")
    interrupt(here, "vit-large")
    here.use_cards()
    asyncio.run(agent(here))


def interrupt(here: Lab, job: str) -> None:
    """Kill a training run, and resume the job as its user would."""
    machine = here.machines[0]
    found = subprocess.run(["pgrep", "-u", machine.user, "-f", f"train.py.*{job}"], capture_output=True, text=True)
    for pid in found.stdout.split():
        os.kill(int(pid), signal.SIGKILL)
    here.run("jobs", "wait", job, "--sandbox", machine.name, check=False)
    here.run("jobs", "resume", job, "--sandbox", machine.name)


async def agent(here: Lab) -> None:
    """Calls as a coding agent makes them."""
    server = StdioServerParameters(command="remote-sandbox-mcp", env=here.environment, cwd=here.home)
    async with Client(
        stdio_client(server), client_info=Implementation(name="claude-code", version="2.1.325")
    ) as client:
        for tool, arguments in CALLS:
            await client.call_tool(tool, arguments)


@contextmanager
def dashboard(here: Lab) -> Iterator[str]:
    """The address of a running one."""
    words = ["remote-sandbox-mcp", "dashboard", "--no-open", "--json", "--port", "0"]
    process = subprocess.Popen(words, env=here.environment, cwd=here.home, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.terminate()
        process.wait()


async def take_all(here: Lab, address: str) -> None:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        looked = await opened(browser, address, "light", WIDE)
        await looked.wait_for_selector("article.machine .gpu", timeout=SHOWN_S)
        await asyncio.sleep(SETTLE_S)
        await picture(here, looked, "dashboard-fleet.png")
        for theme, size, view, name in (
            ("dark", WIDE, "#/jobs", "dashboard-jobs.png"),
            ("dark", WIDE, "#/machines/gpu1", "dashboard-machine.png"),
            ("light", WIDE, "#/usage", "dashboard-usage.png"),
            ("light", WIDE, "#/calls", "dashboard-calls.png"),
            ("dark", PHONE, "#/fleet", "dashboard-phone.png"),
        ):
            await picture(here, await opened(browser, address, theme, size, view), name)
        log = await opened(browser, address, "dark", WIDE, "#/jobs")
        await log.get_by_text("llama-7b").first.click()
        await log.wait_for_selector("text=loss", timeout=SHOWN_S)
        await picture(here, log, "dashboard-log.png")
        await browser.close()


async def opened(browser: Browser, address: str, theme: str, size: dict[str, int], view: str = "") -> Page:
    context = await browser.new_context(color_scheme=theme, viewport=size, device_scale_factor=2, locale="en-US")
    page = await context.new_page()
    await page.goto(address)
    await page.wait_for_selector("article.machine .gpu", timeout=SHOWN_S)
    if view:
        await page.evaluate("(view) => (location.hash = view)", view)
    return page


async def picture(here: Lab, page: Page, name: str) -> None:
    # Lists are filled as they come near the screen.
    await asyncio.sleep(2)
    names = sorted(here.shown.items(), key=lambda pair: -len(pair[0]))
    await page.evaluate(RENAME, [list(pair) for pair in names])
    await page.screenshot(path=DOCS / name)


if __name__ == "__main__":
    sys.exit(main())
