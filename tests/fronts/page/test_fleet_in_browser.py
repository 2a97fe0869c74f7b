"""The page in a real browser, on a fleet of a machine, a container engine and a cluster."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.fronts.http.conftest import connected
from tests.support.chromium import LEFT, Opener, Tab, chromium, fresh, require_chromium, tabs
from tests.support.dashboards import Dashboard, dashboard
from tests.support.engine_place import WITH_PYTHON, Place
from tests.support.server import Caller, entry
from tests.support.slurm import Cluster
from tests.support.sshd import Sshd

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = [pytest.mark.xdist_group("engine"), pytest.mark.timeout(240)]

ALL_OF_N1 = {"nodelist": "n1", "exclusive": True}
# As hostile as a session's name may be.
NAME = "<img src=x onerror=alert(1)>&amp;\"'/../%2e%2f?#[0]"
HOSTILE = "printf '%s\\n' '<script>document.title=1</script>' '__proto__'; exit 7"
SERVES = "cd /tmp; echo '<h1>from the container</h1>' >index.html; httpd -p 127.0.0.1:8000"
COUNTS = (
    'n=$(cat reached 2>/dev/null || echo 0); while sleep 0.2; do n=$((n+1)); echo $n >reached; echo "step $n"; done'
)


@pytest.fixture(scope="module")
def machine(shared_sshd: Sshd) -> Iterator[Sshd]:
    require_chromium()
    yield shared_sshd
    shared_sshd.reset()


@pytest.fixture(scope="module")
def cluster(shared_slurm: Cluster) -> Iterator[Cluster]:
    require_chromium()
    yield shared_slurm
    shared_slurm.reset()


@pytest.fixture(scope="module")
def shown(
    tmp_path_factory: pytest.TempPathFactory, machine: Sshd, cluster: Cluster, engine_place: Place
) -> Iterator[Dashboard]:
    queue = entry(cluster.login, name="hpc", slurm={"rate_s": 0.5, "time": "5"})
    engine = entry(engine_place.sshd, docker=list(engine_place.words))
    with dashboard(tmp_path_factory.mktemp("home"), entry(machine), queue, engine) as running:
        yield running


@pytest.fixture(scope="module")
async def browser(shown: Dashboard) -> AsyncIterator[Browser]:
    async with chromium() as running:
        yield running


@pytest.fixture(scope="module")
async def new_tab(browser: Browser) -> AsyncIterator[Opener]:
    async with tabs(browser, viewport={"width": 1280, "height": 800}) as opener:
        yield opener


@pytest.fixture(scope="module")
async def kept(new_tab: Opener, shown: Dashboard) -> Tab:
    opened = await new_tab()
    await opened.open(shown.address)
    return opened


@pytest.fixture
async def tab(kept: Tab) -> AsyncIterator[Tab]:
    async with fresh(kept) as found:
        yield found


@pytest.fixture
async def agent(shown: Dashboard) -> AsyncIterator[Caller]:
    async with connected(shown) as caller:  # type: ignore[arg-type]
        yield caller


async def agree(tab: Tab, question: str) -> None:
    await tab.shows("dialog h2", question)
    await tab.page.locator("dialog [value=yes]").click()
    await tab.gone("dialog")


async def test_a_cluster_shows_its_partitions_and_why_a_job_waits(tab: Tab, agent: Caller) -> None:
    for name in ("runs", "waits"):
        await agent.call(
            "exec_bash_background", command=f"echo {name} on $(hostname); sleep 600", session_name=name,
            sandbox_name="hpc", slurm=ALL_OF_N1, watch=False,
        )  # fmt: skip
    card = tab.find(".machine", "hpc")
    main = card.locator(".partitions tr", has_text="main")
    await main.filter(has_text="default").wait_for()
    await card.locator(".partitions tr", has_text="a100").first.wait_for()
    await card.get_by_text("1 running, 1 pending").wait_for()
    await tab.go("jobs")
    await tab.shows(".job[data-state=running] .job-name", re.compile("^runs$"))
    waits = await tab.shows(".row:has(.job[data-state=pending])", "waits")
    await waits.locator(".job-time", has_text=re.compile("Resources|Priority")).wait_for()
    await waits.locator(".row-link").click(position=LEFT)
    await tab.shows(".fact", re.compile("main.*(Resources|Priority)"))
    # The first one makes room for it.
    await tab.go("jobs/hpc%2Fruns")
    await tab.shows(".log-line", "runs on n1")
    await tab.page.get_by_role("button", name="Stop").click()
    await agree(tab, "Stop runs?")
    await tab.gone(".job-head[data-state=running]")
    await tab.go("jobs/hpc%2Fwaits")
    await tab.shows(".log-line", "waits on n1")


async def test_a_container_is_made_used_reached_and_deleted(tab: Tab, new_tab: Opener, engine_place: Place) -> None:
    await tab.go("sandboxes")
    await tab.page.get_by_role("button", name="New sandbox").click()
    await tab.page.get_by_label("Where").select_option(label="gpu1 · docker")
    await tab.page.get_by_label("Image").fill(WITH_PYTHON)
    await tab.page.get_by_label("Name").fill("no/name")
    await tab.page.get_by_role("button", name="Create").click()
    await tab.shows(".form .trouble", "name must have 1 to 60 characters without")
    await tab.page.get_by_label("Name").fill("trial <b>1")
    await tab.page.get_by_role("button", name="Create").click()
    card = tab.find(".sandbox[data-state=running]", "trial <b>1")
    await card.get_by_text(WITH_PYTHON).wait_for()
    await card.get_by_label("Command for").fill(SERVES)
    await tab.page.keyboard.press("Enter")
    await tab.shows(".output-head[data-state=ended]", "exit 0")
    await card.get_by_label("Open a port").fill("99999")
    await tab.page.keyboard.press("Enter")
    await tab.shows(".message.problem", "A port is a number from 1 to 65535.")
    await card.get_by_label("Open a port").fill("8000")
    await tab.page.keyboard.press("Enter")
    link = card.locator("a.port")
    await link.wait_for()
    served = await new_tab()
    await served.page.goto(await link.get_attribute("href") or "")
    await served.shows("h1", "from the container")
    await served.page.close()
    await tab.page.bring_to_front()
    await card.get_by_role("button", name="Delete").click()
    await agree(tab, "Delete trial <b>1?")
    await card.wait_for(state="detached")
    assert not engine_place.left()


async def test_an_interrupted_job_is_resumed_and_its_log_goes_on(tab: Tab, agent: Caller, machine: Sshd) -> None:
    await agent.call(
        "exec_bash_background", command=COUNTS, session_name="train", sandbox_name=machine.name, resume_command=COUNTS,
        auto_resume=False, ensure_watchdog=False, notify_local=False,
    )  # fmt: skip
    await tab.go(f"jobs/{machine.name}%2Ftrain")
    await tab.shows(".log-line", "step 2")
    await agent.run("tmux kill-session -t =train", sandbox_name=machine.name)
    await tab.shows(".job-head[data-state=gone]")
    await tab.shows(".fact", re.compile("interrupted", re.IGNORECASE))
    # How long it ran is not known either.
    assert await tab.find(".job-clock").inner_text() == ""
    await tab.page.get_by_role("button", name="Resume").click()
    await tab.shows("dialog .dialog-code", "echo $n >reached")
    reached = int(await agent.output("cat reached", sandbox_name=machine.name))
    await agree(tab, "Resume train?")
    await tab.shows(".job-head[data-state=running]")
    await tab.shows(".log-line", f"step {reached + 3}")
    await tab.page.get_by_role("button", name="Stop").click()
    await agree(tab, "Stop train?")
    await tab.shows(".job-head[data-state=stopped]")
    await tab.go("events")
    await tab.shows(".event", "asked for by the page")


async def test_a_hostile_job_is_text_wherever_it_is_named(tab: Tab, agent: Caller, machine: Sshd) -> None:
    started = await agent.call(
        "exec_bash_background", command=HOSTILE, session_name=NAME, sandbox_name=machine.name, watch=False
    )
    await tab.go("jobs")
    row = await tab.shows(".row", started["tmux_session"])
    await row.locator(".job-exit", has_text="exit 7").wait_for()
    await row.locator(".job-command[data-why][title*='<script>document.title=1</script>']").wait_for()
    await row.locator(".row-link").click(position=LEFT)
    await tab.shows("h1", started["tmux_session"])
    await tab.shows(".log-line", "<script>document.title=1</script>")
    await tab.shows(".log-line", "__proto__")
    await tab.shows(".fact", re.compile("exit.*7", re.IGNORECASE))
    assert not await tab.find("main img, main script").count()
    assert await tab.page.title() != "1"
