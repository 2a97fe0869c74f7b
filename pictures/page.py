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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters, stdio_client
from mcp.types import Implementation
from playwright.async_api import Browser, Page, async_playwright

from remote_sandbox_mcp.config.allowances import Allowance, allow

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


@dataclass(frozen=True)
class Run:
    """A training run that has come so far in an hour; `rate` is how well it learns."""

    name: str
    total: int
    now: int
    rate: float

    def command(self, first: int) -> str:
        return f"python3 train.py {self.name} {self.total} {first} {self.now} {self.rate} {3600 / self.now:.3f}"


# Each with its machine and the number of its GPUs.
RUNS = (
    ("gpu1", 4, Run("llama-7b", 4000, 1480, 1.0)),
    ("gpu1", 2, Run("vit-large", 6000, 2210, 0.8)),
    ("gpu2", 2, Run("whisper-ft", 4000, 3320, 1.6)),
    ("gpu2", 1, Run("sweep-1", 3000, 1900, 0.6)),
    ("gpu2", 1, Run("sweep-2", 3000, 1900, 1.3)),
    ("gpu3", 4, Run("dino-s", 9000, 2600, 0.9)),
)
# So that lines of the last hour have something to show, and jobs have come some way.
SETTLE_S = 60.0
SHOWN_S = 60_000
# What two have changed.
CONFIG = """\
from model import Model

config = dict(
    model=Model(layers=24, heads=16),
    data="/data/imagenet",
    optimizer="adamw",
    lr=3e-4,
    warmup=2_000,
    steps=6_000,
    batch=1024,
    workers=8,
)
"""
# Test users and loopback addresses would tell a reader nothing: in text nodes alone, and in those that change until the
# picture is taken.
RENAME = """
(names) => {
  const rename = () => {
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walk.nextNode(); node; node = walk.nextNode())
      for (const [from, to] of names)
        if (node.data.includes(from)) node.data = node.data.replaceAll(from, to);
  };
  rename();
  new MutationObserver(rename).observe(document.body, { subtree: true, childList: true, characterData: true });
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
    for machine, cards, run in RUNS:
        watch = ("--checkpoint", f"runs/{run.name}.json", "--resume", run.command(run.now - 10), "--auto-resume")
        here.start(machine, run.name, "--gpus", str(cards), *watch, "--", run.command(0))
    here.start("gpu2", "eval-mmlu", "--", "echo accuracy 0.712")
    here.start("gpu2", "prep-data", "--", "python3 prepare.py")
    here.start("cluster", "tokenize", "--", "sleep 600")
    interrupt(here, "vit-large")
    here.use_cards("gpu1", ("llama-7b", 4), ("vit-large", 2), ("?gpu2", 1))
    here.use_cards("gpu2", ("whisper-ft", 2), ("sweep-1", 1), ("sweep-2", 1))
    here.use_cards("gpu3", ("dino-s", 4))
    here.backdate(3600)
    asyncio.run(agent(here))


def interrupt(here: Lab, job: str) -> None:
    """Kill a training run, and resume the job as its user would."""
    machine = here.machines[0]
    found = subprocess.run(["pgrep", "-u", machine.user, "-f", f"train.py {job}"], capture_output=True, text=True)
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
        await disagree(here, client)


async def disagree(here: Lab, client: Client) -> None:
    """A linked folder, in which a person here and somebody there have changed the same file."""
    project = here.home / "vision"
    project.mkdir()
    (project / "config.py").write_text(CONFIG, encoding="utf-8")
    allow(Allowance(str(project)), here.home / ".state/remote-sandbox-mcp")
    await client.call_tool("link_workspace", {"remote_path": "gpu1:vision", "local_path": str(project)})
    (project / "config.py").write_text(CONFIG.replace("3e-4", "1e-4").replace("2_000", "4_000"), encoding="utf-8")
    theirs = CONFIG.replace("3e-4", "5e-4").replace("8,", "16,\n    compile=True,")
    await client.call_tool(
        "exec_bash", {"command": f"cat >~/vision/config.py <<'E'\n{theirs}E", "sandbox_name": "gpu1"}
    )


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
            ("dark", WIDE, "#/fleet", "dashboard-fleet-dark.png"),
            ("dark", WIDE, "#/jobs", "dashboard-jobs.png"),
            ("dark", WIDE, "#/machines/gpu1", "dashboard-machine.png"),
            ("light", WIDE, "#/usage", "dashboard-usage.png"),
            ("light", WIDE, "#/calls", "dashboard-calls.png"),
            ("dark", PHONE, "#/fleet", "dashboard-phone.png"),
        ):
            await picture(here, await opened(browser, address, theme, size, view), name)
        curves = await opened(browser, address, "light", WIDE, "#/jobs/gpu2%2Fsweep-2")
        await curves.get_by_label("Compare with").select_option("gpu2/sweep-1", timeout=SHOWN_S)
        await picture(here, curves, "dashboard-curves.png")
        log = await opened(browser, address, "dark", WIDE, "#/jobs/gpu2%2Fprep-data")
        await log.get_by_role("button", name="First error").click(timeout=SHOWN_S)
        await log.wait_for_selector(".log-line.current", timeout=SHOWN_S)
        await picture(here, log, "dashboard-log.png")
        conflict = await opened(browser, address, "light", WIDE, "#/workspaces")
        await conflict.get_by_role("button", name="Compare").click(timeout=SHOWN_S)
        await conflict.wait_for_selector(".diff-line", timeout=SHOWN_S)
        await picture(here, conflict, "dashboard-conflict.png")
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
