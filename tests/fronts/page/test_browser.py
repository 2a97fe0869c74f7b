"""The page in a real browser, on a real dashboard of real machines."""

from __future__ import annotations

import asyncio
import http.server
import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from remote_sandbox_mcp.config.allowances import Allowance, allow
from tests.fronts.http.conftest import connected
from tests.support.chromium import LEFT, Opener, Tab, chromium, fresh, require_chromium, tabs
from tests.support.dashboards import Dashboard, dashboard
from tests.support.hubs import kill_hub
from tests.support.server import Caller, entry
from tests.support.sshd import Fleet, Sshd

if TYPE_CHECKING:
    from playwright.async_api import Browser

DATA = Path(__file__).parents[2] / "services/probe/data"
VIEWS = ("fleet", "jobs", "sandboxes", "workspaces", "transfers", "events", "calls", "usage", "files", "machines/gpu1")
BUSY = (DATA / "h200-busy.csv").read_text().rstrip()
FREE = "1, GPU-0f, NVIDIA H200, 580.159.04, 0, 0, 143771, 4, 143153, 31, 76.1, 700.00, Default, Disabled"
# Two cards, of which the second one is free.
GPUS = f"""\
mkdir -p ~/bin
printf '%s\\n' '{BUSY}' '{FREE}' >~/bin/gpus.csv
printf '%s\\n' '{(DATA / "h200-apps.csv").read_text().rstrip()}' >~/bin/apps.csv
cat >~/bin/nvidia-smi <<'EOF'
#!/bin/sh
case $* in --query-gpu=*) cat ~/bin/gpus.csv ;; --query-compute-apps=*) cat ~/bin/apps.csv ;; esac
EOF
chmod +x ~/bin/nvidia-smi
PATH=~/bin:$PATH
"""
# 10,000 lines in each of four seconds, then two in each.
FAST = """\
python3 -c '
import time
for second in range(4):
    print("".join("line %d of many\\n" % (second * 10000 + n) for n in range(10000)), end="", flush=True)
    time.sleep(1)
'
while sleep 0.5; do echo later; done
"""
# Waits, so that its log is followed from the beginning.
HOSTILE = r"""
: '<script>alert(2)</script>'
echo "<script>document.title='hacked'</script><img src=x onerror=alert(1)>"
printf '\033]0;title\007\033[2J\033[31mred\033[0m \342\200\256reversed \007bell\n'
until [ -e go-on ]; do sleep 0.1; done
head -c 10000000 /dev/zero | tr '\0' x
printf '\nlast\n'
"""


class Empty(http.server.BaseHTTPRequestHandler):
    """A page with nothing on it."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>another</title>")

    def log_message(self, format: str, *given: object) -> None:
        pass


@contextmanager
def other_server() -> Iterator[str]:
    """At another port of this computer: the same site for cookies, and another origin."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Empty) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/ui/"
        server.shutdown()


@pytest.fixture(scope="module")
def machine(fleet: Fleet) -> Sshd:
    require_chromium()
    return fleet.machine("gpu1", bashrc=GPUS)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory, machine: Sshd) -> Iterator[Dashboard]:
    dead = entry(machine, name="dead", port=1)
    with dashboard(tmp_path_factory.mktemp("home"), entry(machine), dead) as running:
        yield running


@pytest.fixture(scope="module")
async def browser(shown: Dashboard) -> AsyncIterator[Browser]:
    async with chromium() as running:
        yield running


@pytest.fixture
async def agent(shown: Dashboard) -> AsyncIterator[Caller]:
    """An agent at work while the page is looked at."""
    async with connected(shown) as caller:  # type: ignore[arg-type]
        yield caller


@pytest.fixture
async def new_tab(browser: Browser) -> AsyncIterator[Opener]:
    async with tabs(browser, viewport={"width": 1280, "height": 800}) as opener:
        yield opener


@pytest.fixture(scope="module")
async def person(browser: Browser) -> AsyncIterator[Opener]:
    """Opens tabs of one person for all tests; `new_tab` those of a stranger."""
    async with tabs(browser, viewport={"width": 1280, "height": 800}) as opener:
        yield opener


@pytest.fixture(scope="module")
async def kept(person: Opener, shown: Dashboard) -> Tab:
    opened = await person()
    await opened.open(shown.address)
    return opened


@pytest.fixture
async def tab(kept: Tab) -> AsyncIterator[Tab]:
    """One that has entered."""
    async with fresh(kept) as found:
        yield found


async def start(agent: Caller, machine: Sshd, name: str, command: str) -> str:
    """A job; gives the address of its view."""
    await agent.call("exec_bash_background", command=command, session_name=name, sandbox_name=machine.name, watch=False)
    return f"jobs/{machine.name}%2F{name}"


async def stop(agent: Caller, machine: Sshd, name: str) -> None:
    await agent.call("stop_background_task", tmux_session=name, sandbox_name=machine.name, grace_s=1)


async def lines(tab: Tab) -> list[str]:
    found: list[str] = await tab.page.locator(".log-line").all_text_contents()
    return found


# Entering


async def test_a_wrong_key_is_told_and_the_right_one_leaves_the_address(shown: Dashboard, new_tab: Opener) -> None:
    tab = await new_tab()
    await tab.page.goto(f"{shown.page}#key=wrong")
    await tab.page.fill(".door input", "wrong again")
    await tab.page.keyboard.press("Enter")
    await tab.shows(".door .trouble", "not the key")
    await tab.page.fill(".door input", shown.key)
    await tab.page.keyboard.press("Enter")
    await tab.shows(".machine-name", "gpu1")
    # What it was given in its place is kept for the next visit, and for other tabs.
    other = await new_tab()
    await other.open(shown.page)
    await other.open(shown.address)
    for entered in (tab, other):
        assert "key" not in entered.page.url
        assert shown.key not in await entered.page.evaluate("JSON.stringify([localStorage, history.state])")


# All that a page can try on another one; gives what it got, by the way it tried.
ATTACK = """async (page) => {
    const got = {};
    const attempt = async (name, way) => {
        try { got[name] = await way(); } catch { got[name] = "refused"; }
    };
    const loads = (name, tag, given) => attempt(name, () => new Promise((told) => {
        const node = Object.assign(document.createElement(tag), given);
        node.onload = () => told(tag === "iframe" && !node.contentDocument ? "refused" : "loaded");
        node.onerror = () => told("refused");
        document.body.append(node);
    }));
    const body = JSON.stringify({ tool: "exec_bash", arguments: { command: "touch stolen", sandbox_name: "gpu1" } });
    for (const path of ["", "api/stream", "api/choices", "main.js"]) {
        await attempt(`fetch ${path}`, async () => (await fetch(page + path, { credentials: "include" })).text());
        await attempt(`blind ${path}`, async () => (await fetch(page + path, { mode: "no-cors" })).type);
    }
    for (const path of ["api/call", "leave"]) {
        const given = { method: "POST", mode: "no-cors", credentials: "include", body };
        await attempt(path, async () => (await (await fetch(page + path, given)).text()) || "refused");
    }
    await attempt("module", () => import(`${page}words.js`));
    await attempt("window", async () => {
        const opened = window.open(page);
        // Until it has loaded, it is an empty page of our own.
        while (!opened.closed && opened.document.URL === "about:blank") await new Promise(requestAnimationFrame);
        return opened.closed ? "refused" : opened.document.title;
    });
    await loads("script", "script", { src: `${page}words.js` });
    await loads("picture", "img", { src: `${page}icon.svg` });
    await loads("frame", "iframe", { src: page });
    return { ...got, cookie: document.cookie || "refused" };
}"""


async def test_another_page_of_the_same_browser_gets_nothing(tab: Tab, person: Opener, shown: Dashboard) -> None:
    other = await person()
    with other_server() as address:
        await other.page.goto(address)
        got = await other.page.evaluate(ATTACK, shown.page)
    assert {way: found for way, found in got.items() if found != "refused"} == {}
    # It could not even end the session.
    await tab.page.reload()
    await tab.shows(".live[data-phase=live]")
    other.complaints.clear()
    for page in other.page.context.pages:
        if page is not tab.page:
            await page.close()


# Views


async def test_the_fleet_shows_which_gpu_is_free_and_why_a_machine_is_down(tab: Tab) -> None:
    await tab.shows(".machine[data-state=up] .machine-name", "gpu1")
    await tab.shows(".figure[data-state=free]", re.compile("1.*of 2 GPUs free"))
    await tab.shows(".free-chip", "gpu1 GPU 1")
    await tab.shows(".gpu[data-state=busy] .gpu-power", "692 W")
    await tab.shows(".gpu[data-state=busy] .gpu-who", "python3")
    await tab.shows(".gpu[data-state=free] .gpu-who", "free")
    await tab.page.get_by_text("1 process").click()
    await tab.shows(".processes td", "python3")
    await tab.shows(".machine[data-state=down] .trouble", "nothing listens")
    await tab.until("() => document.querySelector('.machine[data-state=up] .spark-line')?.getAttribute('d')")
    await tab.page.fill("[data-search]", "no such machine")
    await tab.shows(".empty", "Nothing fits the filter")
    await tab.page.fill("[data-search]", "H200")
    await tab.shows(".machine-name", "gpu1")
    await tab.gone(".machine-name", "dead")


async def test_a_machine_has_a_page_on_which_a_command_is_run(tab: Tab, machine: Sshd) -> None:
    await (await tab.shows(".machine-name a", "gpu1")).click()
    await tab.shows(".copy-line code", f"ssh -p {machine.port} {machine.user}@")
    await tab.shows(".gpu-row[data-state=busy] .gpu-owner")
    await tab.shows(".gpu-row[data-state=free] .gpu-owner", "free")
    await tab.until("() => document.querySelector('.curve .spark-line').getAttribute('d')")
    await tab.page.locator(".run-box input").fill("echo $((6*7)) on $HOME")
    await tab.page.keyboard.press("Enter")
    await tab.shows("dialog pre", "echo $((6*7)) on $HOME")
    await tab.page.get_by_role("button", name="Cancel").click()
    # It is removed a moment after it was closed; only then there is one dialog, and the box has the keyboard again.
    await tab.gone("dialog")
    await tab.page.keyboard.press("Enter")
    await tab.page.locator("dialog .primary").click()
    await tab.shows(".output pre", f"42 on {machine.home}")
    # It is a call as those of agents are.
    await tab.shows(".call-lines li", "echo $((6*7))")
    await (await tab.shows(".machine-section a", "All calls")).click()
    await tab.shows("summary.call", "page")
    await tab.go("machines/nobody")
    await tab.shows(".trouble", "No machine has this name")


async def test_the_fleet_fits_into_lines_and_a_table_and_addresses_say_so(tab: Tab) -> None:
    await tab.shows(".machine-name", "gpu1")
    await tab.page.get_by_role("button", name="Lines", exact=True).click()
    line = await tab.shows(".fleet-line", "gpu1")
    assert (await tab.page.locator(".lines .cell").first.bounding_box())["height"] == 28
    await tab.page.get_by_role("button", name="Table", exact=True).click()
    await tab.page.get_by_role("button", name="GPUs free").click()
    assert await tab.page.evaluate("location.hash") == "#/fleet?as=table&column=GPUs+free"
    # The same view, for whoever gets the address; and as it was, for who comes back.
    await tab.go("calls?tool=exec_bash&failed=1")
    await tab.shows("[aria-pressed=true]", "Only failed")
    await tab.go("calls")
    await tab.shows("[aria-pressed=true]", "Only failed")
    await tab.go("calls?client=nobody")
    await tab.shows(".empty", re.compile("Nothing fits|No calls"))
    await tab.page.go_back()
    await tab.go("fleet")
    await tab.shows("[aria-sort=descending]", "GPUs free")
    await tab.page.reload()
    await tab.shows("[aria-sort=descending]", "GPUs free")
    await tab.page.get_by_role("button", name="Cards", exact=True).click()
    await line.wait_for(state="detached")


async def test_anything_is_found_by_ctrl_k(tab: Tab, agent: Caller, machine: Sshd) -> None:
    await start(agent, machine, "to-find", "true")
    await tab.until("() => document.querySelector('.machine[data-state=up]')")
    await tab.page.keyboard.press("Control+k")
    await tab.page.keyboard.type("run a command on gpu1")
    await tab.shows("[role=option]", "Run a command on gpu1")
    await tab.page.keyboard.press("Enter")
    await tab.until("() => document.activeElement.closest('.run-box')")
    await tab.page.locator("h1").focus()
    await tab.page.keyboard.press("Control+k")
    await tab.page.keyboard.type("to-find")
    await tab.shows("[role=option]", "to-find")
    # Also what begins while the box is open.
    await tab.page.keyboard.press("Control+a")
    await tab.page.keyboard.type("later")
    await start(agent, machine, "later", "true")
    await tab.shows("[role=option] .palette-kind", "Job")
    await tab.page.keyboard.press("ArrowDown")
    await tab.page.keyboard.press("ArrowUp")
    await tab.page.keyboard.press("Enter")
    await tab.shows(".job-title h1", "later")
    await tab.page.keyboard.press("Control+k")
    await tab.shows("dialog.palette")
    await tab.page.keyboard.press("Escape")
    await tab.gone("dialog.palette")


async def test_the_end_of_a_job_is_told_and_a_call_is_shown_while_it_runs(
    tab: Tab, agent: Caller, machine: Sshd
) -> None:
    await tab.go(await start(agent, machine, "to-tell", "until [ -e told ]; do sleep 0.1; done; exit 3"))
    await (await tab.shows(".tell", "Tell me")).click()
    await tab.go("calls")
    # A call that runs until the job has ended.
    call = asyncio.ensure_future(
        agent.run("until [ -e tell ]; do sleep 0.1; done; touch told", sandbox_name=machine.name)
    )
    await tab.shows("summary.call[data-state=running]", "touch told")
    await agent.run("touch tell", sandbox_name=machine.name)
    await call
    await tab.gone("summary.call[data-state=running]")
    await tab.shows(".message", "to-tell on gpu1: failed")
    await tab.until("() => document.title.startsWith('● to-tell on gpu1: failed')")


async def test_a_job_is_followed_and_stopped_after_a_question(tab: Tab, agent: Caller, machine: Sshd) -> None:
    printed = r"printf '\033[1;32mgreen\033[0m\nstep 1\rstep 2\n'"
    await start(agent, machine, "to-stop", f"{printed}; while sleep 0.2; do echo tick; done")
    await tab.go("jobs")
    await (await tab.shows(".row", "to-stop")).locator(".row-link").click(position=LEFT)
    assert await (await tab.shows(".log-line .ink-2")).inner_text() == "green"
    await tab.shows(".log-line", re.compile("^step 2$"))
    await tab.shows(".log-line", "tick")
    await tab.page.get_by_role("button", name="Stop").click()
    await tab.shows("dialog", "Stop to-stop?")
    await tab.page.get_by_role("button", name="Cancel").click()
    await tab.gone("dialog")
    await tab.shows(".job-head[data-state=running]")
    await tab.page.get_by_role("button", name="Stop").click()
    await tab.page.locator("dialog .danger").click()
    await tab.gone(".job-head[data-state=running]")
    await tab.gone(".job-head .danger")


async def test_a_job_that_waits_says_why_and_is_put_first(tab: Tab, agent: Caller, machine: Sshd) -> None:
    await start(agent, machine, "before", "sleep 600")
    for name in ("wait-a", "wait-b"):
        given = {"session_name": name, "sandbox_name": machine.name, "after": ["before"], "notify_local": False}
        await agent.call("exec_bash_background", command="true", **given)
    await tab.go(f"jobs/{machine.name}%2Fwait-b")
    await tab.shows(".fact", "it starts after before has ended")
    await tab.page.get_by_role("button", name="Start first").click()
    await tab.shows(".message", "wait-b starts before all others that wait")
    passed = await agent.call("check_background_task", tmux_session="wait-a")
    assert passed["queue"]["reason"].startswith("1 job ahead of it. ")
    # In the list, too, and whole.
    await tab.go("jobs")
    await tab.shows(".job-command", passed["queue"]["reason"])
    for name in ("wait-a", "wait-b", "before"):
        await stop(agent, machine, name)


async def test_a_fast_log_stays_small_and_can_be_searched_and_paused(tab: Tab, agent: Caller, machine: Sshd) -> None:
    await tab.go(await start(agent, machine, "fast", FAST))
    await tab.shows(".log-line", "later")
    assert await tab.find(".log-line").count() < 120
    await tab.page.fill(".log-tools [data-search]", "line 39990 of")
    await tab.shows(".log-line.current mark", "line 39990 of")
    await tab.shows(".log-count", "1 of 1")
    await tab.shows(".toggle", "Paused")
    await (await tab.shows(".log-new", "new lines")).click()
    await tab.shows(".toggle", "Follow")
    await tab.gone(".log-new")
    await stop(agent, machine, "fast")


async def test_a_long_log_begins_with_a_line_and_is_read_searched_and_downloaded_as_a_whole(
    tab: Tab, agent: Caller, machine: Sshd
) -> None:
    long = "seq -f 'line %.0f of the log, which is long' 20000; while sleep 0.5; do echo a needle; done"
    view = await start(agent, machine, "long-log", long)
    await agent.run("until grep -q needle .codex_logs/long-log.log; do sleep 0.1; done", sandbox_name=machine.name)
    await tab.go(view)
    await tab.shows(".log-edge", re.compile(r"^6\d\d kB earlier"))
    await tab.page.locator(".search-input").fill("needle")
    await tab.shows(".log-line mark", "needle")
    # The newest line matches, too, and marks stay.
    await tab.until(
        "() => [...document.querySelectorAll('.log-line')].filter((line) => /needle/.test(line.textContent))"
        ".every((line) => line.querySelector('mark'))"
    )
    await tab.page.locator(".search-input").fill("line 77 of")
    await tab.shows(".log-count", "1 elsewhere")
    await tab.page.get_by_role("button", name="Next match").click()
    await tab.shows(".log-line.current", "line 77 of the log")
    await tab.shows(".log-edge", "later")
    await tab.page.get_by_role("button", name="To the end").click()
    await tab.shows(".log-line", "a needle")
    await tab.page.get_by_role("button", name="From the beginning").click()
    await tab.shows(".log-line", re.compile("^line 1 of"))
    async with tab.page.expect_download() as download:
        await tab.page.get_by_role("button", name="Download").click()
    text = Path(await (await download.value).path()).read_text()
    assert text.startswith("line 1 of")
    assert "line 20000 of the log, which is long\na needle\n" in text
    await stop(agent, machine, "long-log")


async def test_an_end_is_told_once_and_a_good_one_asks_for_nothing(tab: Tab, agent: Caller, machine: Sshd) -> None:
    given = {"sandbox_name": machine.name, "resume_command": "true", "notify_local": False}
    await agent.call("exec_bash_background", command="echo fine", session_name="good", **given)
    await agent.call("exec_bash_background", command="kill -9 $$", session_name="bad", **given)
    await tab.go(f"jobs/{machine.name}%2Fgood")
    await tab.shows(".fact", "succeeded (exit 0)")
    await tab.shows(".log-line", "fine")
    assert "primary" not in (await tab.page.get_by_role("button", name="Resume").get_attribute("class") or "")
    shown = await tab.page.locator("main").inner_text()
    assert not re.search("EXIT_CODE|codex_logs|Last word|completed", shown)
    await tab.go(f"jobs/{machine.name}%2Fbad")
    await tab.shows(".fact", "failed (exit 137, SIGKILL)")
    assert "primary" in (await tab.page.get_by_role("button", name="Resume").get_attribute("class") or "")


async def test_hostile_output_is_text_and_a_long_line_is_cut(tab: Tab, agent: Caller, machine: Sshd) -> None:
    view = await start(agent, machine, "hostile", HOSTILE)
    await tab.go("jobs")
    await tab.shows(".job-command", "<script>alert(2)</script>")
    await tab.go(view)
    await tab.shows(".log-line", "<script>document.title='hacked'</script>")
    await tab.shows(".log-line", "\\u202ereversed ␇bell")
    assert await (await tab.shows(".log-line .ink-1")).inner_text() == "red"
    await agent.run("touch go-on", sandbox_name=machine.name)
    await tab.shows(".log-line", re.compile("^last$"))
    # The server leaves out what the line cannot carry in time, the page what nobody could read.
    await tab.shows(".log-line .note", re.compile("not shown|skipped"))
    assert await tab.page.evaluate("document.querySelector('.log-space').offsetHeight") < 100_000
    assert "hacked" not in await tab.page.title()
    assert not await tab.find("main img, main script").count()


async def test_a_sandbox_is_made_used_and_deleted(tab: Tab) -> None:
    await tab.go("sandboxes")
    await tab.page.get_by_role("button", name="New sandbox").click()
    await tab.page.get_by_label("Name").fill("from-the-page")
    await tab.page.get_by_role("button", name="Create").click()
    card = tab.find(".sandbox", "from-the-page")
    await card.wait_for()
    await tab.shows(".sandbox .left", "ends in")
    await card.get_by_label("Command for from-the-page").fill("echo out; echo err >&2; exit 3")
    await tab.page.keyboard.press("Enter")
    await tab.shows(".output pre", "out")
    await tab.shows(".output .stderr", "err")
    await tab.shows(".output-head[data-state=failed]", "exit 3")
    await card.get_by_role("button", name="Delete").click()
    await tab.page.locator("dialog .danger").click()
    await card.wait_for(state="detached")


async def test_a_conflict_is_read_and_decided(tab: Tab, shown: Dashboard, agent: Caller, machine: Sshd) -> None:
    project = shown.home / "project"
    project.mkdir()
    (project / "a.txt").write_text("both\nfirst\n")
    allow(Allowance(str(project)), shown.home / "state")
    await agent.call("link_workspace", remote_path=f"{machine.name}:project", local_path=str(project))
    (project / "a.txt").write_text("both\nmine\n")
    await agent.run("printf 'both\\ntheirs\\n' >project/a.txt", sandbox_name=machine.name)
    await tab.go("workspaces")
    await tab.shows(".conflict", "a.txt")
    await tab.page.get_by_role("button", name="Compare").click()
    await tab.shows(".diff-line[data-mark='-']", "mine")
    await tab.shows(".diff-line[data-mark='+']", "theirs")
    assert not await tab.find(".diff-line[data-mark]", "both").count()
    # Below each other, and each side says when it was written.
    tops = "() => new Set([...document.querySelectorAll('.diff-line')].map((line) => line.offsetTop)).size"
    assert await tab.page.evaluate(tops) == await tab.find(".diff-line").count()
    assert await tab.find(".side-head", "ago").count() == 2
    await tab.page.get_by_role("button", name="Keep theirs").click()
    await tab.page.locator("dialog .danger").click()
    await tab.gone(".conflict")
    assert (project / "a.txt").read_text() == "both\ntheirs\n"


async def test_calls_are_listed_filtered_and_opened(tab: Tab, agent: Caller, machine: Sshd) -> None:
    await agent.run("echo '<b>a call</b>'; exit 4", sandbox_name=machine.name)
    await tab.go("calls")
    await (await tab.shows("summary.call[data-state=failed]", "<b>a call</b>")).click()
    await tab.shows(".call-details dd", "echo '<b>a call</b>'; exit 4")
    await tab.page.get_by_role("button", name="Only failed").click()
    await tab.gone("summary.call[data-state=ended]")
    await tab.page.get_by_label("Tool").select_option("exec_bash")
    await tab.shows("summary.call", "exit 4")


async def test_the_end_of_a_watched_job_and_a_transfer_are_shown(
    tab: Tab, shown: Dashboard, agent: Caller, machine: Sshd
) -> None:
    await agent.call(
        "exec_bash_background", command='echo \'{"step": 3, "total": 4}\' >far; sleep 3', session_name="watched",
        sandbox_name=machine.name, interval_s=1, checkpoint_path="far", notify_local=False,
    )  # fmt: skip
    data = shown.home / "data"
    data.mkdir()
    (data / "file").write_bytes(bytes(1000))
    allow(Allowance(str(data), writing=False), shown.home / "state")
    await agent.call("sync_local_to_remote_background", local_path=str(data), remote_path=f"{machine.name}:data")
    await tab.go("jobs")
    row = await tab.shows(".row", "watched")
    await row.locator(".bar-text", has_text="step 3 / 4").wait_for()
    # A machine's name is a link of its own, beside that of the row, and not within it.
    await row.locator(".name-link", has_text=machine.name).click()
    await tab.shows("h1", machine.name)
    assert not await tab.find("a a").count()
    await tab.go("jobs")
    await (await tab.shows(".row", "watched")).locator("[title]").first.click()
    await tab.shows("h1", "watched")
    await tab.go("transfers")
    await tab.shows(".transfer[data-state=ended] h2", f"{data} → {machine.name}:data")
    await tab.go("events")
    await tab.shows(".event[data-state=ended] .event-job", "watched")
    await tab.shows(f".event .name-link[href='#/machines/{machine.name}']", machine.name)
    await (await tab.shows(".event-job", "watched")).click()
    await tab.shows("h1", "watched")


async def test_no_view_is_wider_than_a_phone_and_each_speaks_chinese(browser: Browser, shown: Dashboard) -> None:
    async with tabs(browser, viewport={"width": 360, "height": 740}, locale="zh-CN", color_scheme="dark") as new_tab:
        tab = await new_tab()
        await tab.open(shown.address)
        await tab.shows(".machine-name", "gpu1")
        for view in VIEWS:
            await tab.go(view)
            await tab.shows("main :is(h1, h2)", re.compile("[\u4e00-\u9fff]"))
            assert await tab.page.evaluate("document.documentElement.scrollWidth") <= 360, view


async def test_the_keyboard_reaches_everything(tab: Tab) -> None:
    press = tab.page.keyboard.press
    await tab.shows(".machine-name", "gpu1")
    await asyncio.gather(press("g"), press("j"))
    await tab.shows("h1", "Jobs")
    await press("/")
    await tab.until("() => document.activeElement.matches('[data-search]')")
    await tab.page.keyboard.type("g f")
    await press("Escape")
    assert await tab.page.locator("[data-search]").input_value() == ""
    await press("Escape")
    await tab.shows(".row .job")
    await press("j")
    await tab.until("() => document.activeElement.matches('.row-link')")
    await press("Enter")
    await tab.shows(".log")
    await press("f")
    await tab.shows(".toggle", "Paused")
    await press("Escape")
    await tab.shows("h1", "Jobs")
    await press("?")
    await tab.shows("dialog", "Go to Fleet")
    await press("Escape")
    await tab.gone("dialog")


# Connection


async def show(tab: Tab, *, is_hidden: bool) -> None:
    """As a browser tells a page that another tab is in front of it, which Chromium without a window does not."""
    script = """(is_hidden) => {
        Object.defineProperty(document, "hidden", { value: is_hidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    await tab.page.evaluate(script, is_hidden)


async def test_two_tabs_live_and_a_theme_is_for_both(
    new_tab: Opener, shown: Dashboard, agent: Caller, machine: Sshd
) -> None:
    await agent.run("echo seen by both", sandbox_name=machine.name)
    tab, other = await new_tab(), await new_tab()
    await tab.open(shown.address)
    await other.open(shown.page)
    for each in (tab, other):
        await each.shows(".machine-name", "gpu1")
    for _ in range(2):
        await other.page.get_by_role("button", name="Theme").click()
    await tab.until("() => document.documentElement.dataset.theme === 'dark'")
    await tab.page.close()
    await other.go("calls")
    await other.shows("summary.call", "echo seen by both")


async def test_a_page_without_frames_is_drawn(new_tab: Opener, shown: Dashboard) -> None:
    tab = await new_tab()
    await tab.page.add_init_script("window.requestAnimationFrame = () => 1")
    await tab.open(shown.address)
    await tab.until("() => document.querySelector('.machine-name')")


async def test_an_hour_asleep_changes_nothing(new_tab: Opener, shown: Dashboard, agent: Caller, machine: Sshd) -> None:
    tab = await new_tab()
    await tab.page.clock.install()
    await tab.open(shown.address, "calls")
    await tab.shows("h1", "Calls")
    # Timers that would have fired meanwhile fire once, as after a sleep.
    await tab.page.clock.fast_forward("01:00:00")
    await agent.run("echo after the sleep", sandbox_name=machine.name)
    await tab.shows("summary.call", "echo after the sleep")
    # Behind another tab for an hour, it lets go of its line, and is back when it is looked at.
    await show(tab, is_hidden=True)
    await tab.page.clock.fast_forward("01:00:00")
    await agent.run("echo unseen", sandbox_name=machine.name)
    await show(tab, is_hidden=False)
    await tab.shows("summary.call", "echo unseen")
    await tab.shows(".live[data-phase=live]")


async def test_the_page_goes_on_after_the_hub_was_killed(
    tab: Tab, shown: Dashboard, agent: Caller, machine: Sshd
) -> None:
    view = await start(agent, machine, "outlives", "n=0; while sleep 0.3; do n=$((n+1)); echo count $n; done")
    await tab.go(view)
    await tab.shows(".log-line", "count 3")
    kill_hub(shown.home)
    last = int((await lines(tab))[-1].split()[1])
    await tab.shows(".log-line", f"count {last + 5}")
    await tab.shows(".live[data-phase=live]")
    # Nothing is missing, and nothing is there twice.
    numbers = [int(line.split()[1]) for line in await lines(tab)]
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    await tab.page.get_by_role("button", name="Stop").click()
    await tab.page.locator("dialog .danger").click()
    await tab.gone(".job-head[data-state=running]")
