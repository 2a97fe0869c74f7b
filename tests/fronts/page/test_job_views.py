"""Curves, failures, lines of logs, files and terminals in a real browser, on a real machine."""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from wsproto.events import BytesMessage

from remote_sandbox_mcp.fronts.page.terminals import MOST_AHEAD
from tests.fronts.http.conftest import connected
from tests.support.chromium import Opener, Tab, chromium, fresh, require_chromium, tabs
from tests.support.dashboards import Dashboard, dashboard
from tests.support.page import HOST, SOON_S
from tests.support.page import Browser as Asker
from tests.support.server import Caller, entry
from tests.support.sshd import Fleet, Sshd, wait_until

if TYPE_CHECKING:
    from playwright.async_api import Browser

# 200 steps with a loss that falls, and the time of each line.
TRAIN = r"""
awk 'BEGIN { for (i = 1; i <= 200; i++)
  printf "2026-11-18 12:%02d:%02d step %d/4000 loss=%.4f lr=1e-4\n", i / 60, i % 60, i, 4 / (1 + i / 50) }'
until [ -e go-on ]; do sleep 0.1; done
"""
FAILS = r"""
echo "line one"; echo "File not found: 3 errors"
printf 'Traceback (most recent call last):\n  File "x.py", line 1\nValueError: <b>bad</b> shape\nafter\n'; exit 3
"""
FILES = r"""
mkdir -p ~/data && cd ~/data && printf 'name,score\n"a, b",1\n' >table.csv && printf '\000\001' >odd.bin
printf '%s%s' 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk' \
  '+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==' | base64 -d >dot.png
echo '<script>document.title="hacked"</script>' >'<img src=x onerror=alert(1)>.txt'
"""


@pytest.fixture(scope="module")
def machine(fleet: Fleet) -> Sshd:
    require_chromium()
    return fleet.machine("gpu1")


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory, machine: Sshd) -> Iterator[Dashboard]:
    with dashboard(tmp_path_factory.mktemp("home"), entry(machine)) as running:
        yield running


@pytest.fixture(scope="module")
async def agent(shown: Dashboard, machine: Sshd) -> AsyncIterator[Caller]:
    async with connected(shown) as caller:  # type: ignore[arg-type]
        await caller.run(FILES, sandbox_name=machine.name)
        yield caller


@pytest.fixture(scope="module")
async def browser(shown: Dashboard) -> AsyncIterator[Browser]:
    async with chromium() as running:
        yield running


@pytest.fixture(scope="module")
async def person(browser: Browser) -> AsyncIterator[Opener]:
    async with tabs(browser, viewport={"width": 1280, "height": 800}) as opener:
        yield opener


@pytest.fixture(scope="module")
async def kept(person: Opener, shown: Dashboard) -> Tab:
    opened = await person()
    await opened.open(shown.address)
    return opened


@pytest.fixture
async def tab(kept: Tab) -> AsyncIterator[Tab]:
    async with fresh(kept) as found:
        yield found


async def start(agent: Caller, machine: Sshd, name: str, command: str) -> str:
    await agent.call("exec_bash_background", command=command, session_name=name, sandbox_name=machine.name, watch=False)
    return f"jobs/{machine.name}%2F{name}"


async def picture(tab: Tab, name: str) -> None:
    """Keep what is seen, for a person who wants to look at it."""
    if folder := os.environ.get("SHOTS"):
        await tab.page.screenshot(path=Path(folder) / f"{name}.png")


async def test_a_job_shows_its_curves_and_an_agent_reads_no_log(tab: Tab, agent: Caller, machine: Sshd) -> None:
    view = await start(agent, machine, "train", TRAIN)
    await agent.run("until grep -q 'step 200' .codex_logs/train.log; do sleep 0.1; done", sandbox_name=machine.name)
    seen = await agent.call("check_background_task", tmux_session="train", sandbox_name=machine.name, last_n_lines=3)
    assert seen["metrics"]["loss"] == {"last": 0.8, "min": 0.8, "trend": "falling"}
    assert seen["metrics"]["lr"]["trend"] == "flat"
    assert seen["eta_s"] > 0
    await tab.go(view)
    await tab.until("() => document.querySelector('.curve-one')?.getAttribute('d')?.length > 500")
    assert "falling" in (await tab.page.locator(".job-curves svg").get_attribute("aria-label") or "")
    await tab.page.get_by_role("button", name="time", exact=True).click()
    await tab.shows(".curve-right", "3m 19s")
    await tab.shows(".job-head", "left")
    await picture(tab, "curves")
    await tab.go("jobs")
    await tab.shows(".job-left", "left")


async def test_a_failure_says_why_and_leads_to_its_line(tab: Tab, agent: Caller, machine: Sshd) -> None:
    view = await start(agent, machine, "fails", FAILS)
    await agent.call("wait_background_task", tmux_session="fails", sandbox_name=machine.name)
    await tab.go("jobs")
    await tab.shows(".job[data-state=failed] .job-command[data-why]", "ValueError: <b>bad</b> shape")
    await tab.shows(".job[data-state=failed] .job-time", "ago")
    await picture(tab, "jobs")
    await tab.go(view)
    await tab.shows(".log-line", "after")
    await tab.page.get_by_role("button", name="Errors only").click()
    await tab.gone(".log-line", "line one")
    assert [*await tab.page.locator(".log-line").all_text_contents()][-1] == "ValueError: <b>bad</b> shape"
    assert await tab.page.locator(".log-number").last.get_attribute("data-n") == "5"
    await tab.page.get_by_role("button", name="Errors only").click()
    await tab.page.get_by_role("button", name="First error").click()
    await tab.shows(".log-line.current", "Traceback")
    await tab.page.locator(".log").focus()
    await tab.page.keyboard.press("l")
    assert tab.page.url.endswith("?line=3")
    await tab.page.locator(".log-number[data-n='5']").click()
    assert tab.page.url.endswith("?line=5")
    await tab.page.reload()
    await tab.shows(".log-line.current", "ValueError")
    await picture(tab, "log-line")


async def test_a_job_is_cloned_with_changes(tab: Tab, agent: Caller, machine: Sshd) -> None:
    view = await start(agent, machine, "first", "echo one; exit 1")
    await agent.call("wait_background_task", tmux_session="first", sandbox_name=machine.name)
    await tab.go(view)
    await tab.page.get_by_role("button", name="Clone").click()
    await tab.page.locator("dialog textarea").fill("echo two; exit 0")
    await picture(tab, "clone")
    await tab.page.get_by_role("button", name="Start").click()
    await tab.shows("h1", "first-2")
    await tab.shows(".log-line", "two")


async def test_jobs_are_ordered_grouped_and_stopped_together(tab: Tab, agent: Caller, machine: Sshd) -> None:
    for number in (1, 2, 10):
        await start(agent, machine, f"sweep-{number}", "sleep 600")
    await tab.go("jobs")
    await tab.shows(".job-name", "sweep-10")
    await tab.page.fill("[data-search]", "sweep")
    await tab.page.get_by_role("button", name="Job", exact=True).click()
    names = tab.page.locator(".rows .job-name")
    await tab.until("() => document.querySelectorAll('.rows .job-name').length === 3")
    assert await names.all_text_contents() == ["sweep-1", "sweep-2", "sweep-10"]
    await tab.page.get_by_role("button", name="Job", exact=True).click()
    await tab.until("() => document.querySelector('.rows .job-name').textContent === 'sweep-10'")
    await tab.page.get_by_label("Group by").select_option("by name")
    await tab.shows(".job-group-name", re.compile("sweep.*3 jobs"))
    await picture(tab, "grouped")
    await tab.page.get_by_role("button", name="Stop these 3").click()
    await tab.shows("dialog", "sweep-10")
    await tab.page.locator("dialog .danger").click()
    await tab.shows(".message", "3 of 3 jobs were stopped")
    await tab.page.get_by_label("Group by").select_option("")
    await tab.page.get_by_role("button", name="State", exact=True).click()


async def test_files_are_seen_and_downloaded(tab: Tab, agent: Caller, machine: Sshd) -> None:
    await tab.go(f"files/{machine.name}%2Fdata")
    await tab.shows(".file-name", "<img src=x onerror=alert(1)>.txt")
    await tab.page.get_by_role("button", name="table.csv").click()
    await tab.shows(".file-table td", "a, b")
    await picture(tab, "files")
    async with tab.page.expect_download() as download:
        await tab.page.get_by_role("button", name="Download").click()
    assert Path(await (await download.value).path()).read_text() == 'name,score\n"a, b",1\n'
    await tab.page.get_by_role("button", name="dot.png").click()
    await tab.until("() => document.querySelector('.file-picture')?.naturalWidth === 1")
    await tab.page.get_by_role("button", name="odd.bin").click()
    await tab.shows(".file-shown", "not text")
    await tab.page.get_by_role("button", name="<img").click()
    await tab.shows(".file-text", "<script>")
    assert "hacked" not in await tab.page.title()
    await tab.go(f"files/{machine.name}%2Fnowhere")
    await tab.shows(".trouble", "nowhere")


async def test_a_shell_in_the_browser_ends_with_its_view(tab: Tab, agent: Caller, machine: Sshd) -> None:
    await tab.go(f"terminal/{machine.name}")
    await tab.shows("[role=status]", "connected")
    await tab.page.keyboard.type("echo $((6*7))-$PPID $(tput cols); printf '\\033[38;2;1;200;3mgreen\\033[0m'\n")
    await tab.until("() => /42-\\d+/.test(document.querySelector('.xterm-rows')?.textContent)")
    text = await tab.page.locator(".xterm-rows").inner_text()
    columns = int(re.search(r"42-\d+ (\d+)", text)[1])  # type: ignore[index]
    assert columns > 90
    # What a program says is drawn, and does nothing else.
    await tab.page.keyboard.type(
        "printf '\\033]0;hacked\\007\\033]52;c;aGFja2Vk\\007<img src=x onerror=alert(1)>'; echo do''ne\n"
    )
    await tab.until("() => document.querySelector('.xterm-rows').textContent.includes('done')")
    assert "hacked" not in await tab.page.title()
    assert not await tab.find("main img").count()
    await picture(tab, "terminal")
    await tab.page.set_viewport_size({"width": 700, "height": 500})
    await tab.page.keyboard.type(f"clear; until [ $(tput cols) -lt {columns} ]; do sleep 0.1; done; echo smal''ler\n")
    await tab.until("() => document.querySelector('.xterm-rows').textContent.includes('smaller')")
    await tab.page.set_viewport_size({"width": 1280, "height": 800})
    # Programs in it have the keys of the page, too.
    await tab.page.keyboard.press("Escape")
    assert await tab.page.evaluate("document.activeElement.tagName") == "TEXTAREA"
    await tab.page.keyboard.press("Control+u")
    await tab.page.keyboard.type("exec env MARK=of-the-page sleep 1000\n")
    await agent.run("until pgrep -f '^sleep 1000$'; do sleep 0.1; done", sandbox_name=machine.name)
    await tab.go("jobs")
    await agent.run("while pgrep -f '^sleep 1000$'; do sleep 0.1; done", sandbox_name=machine.name)


async def test_a_running_job_is_entered(tab: Tab, agent: Caller, machine: Sshd) -> None:
    view = await start(agent, machine, "asks", "read -p 'name? ' name; echo hello $name; sleep 600")
    await tab.go(view)
    await tab.page.get_by_role("link", name="Terminal").click()
    await tab.shows("[role=status]", "connected")
    await tab.until("() => document.querySelector('.xterm-rows')?.textContent.includes('name?')")
    await tab.page.keyboard.type("world\n")
    await tab.until("() => document.querySelector('.xterm-rows').textContent.includes('hello world')")
    await tab.go("fleet")
    seen = await agent.call("check_background_task", tmux_session="asks", sandbox_name=machine.name)
    assert seen["running"]
    await agent.call("stop_background_task", tmux_session="asks", sandbox_name=machine.name, grace_s=1)


# Attacks on files and terminals

NEW = [
    ("GET", "curves"), ("GET", "log/line"), ("POST", "folder"), ("POST", "download"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), NEW)
def test_nobody_else_gets_in(shown: Dashboard, method: str, path: str) -> None:
    asker, stranger = Asker(shown.port), Asker(shown.port)
    asker.enter(shown.key)
    body = {"sandbox": "gpu1", "rows": 24, "columns": 80} if method == "POST" else None
    at = f"/ui/api/{path}"
    assert stranger.ask(method, at, body).status == 401
    assert asker.ask(method, at, body, X_Page_Token="").status == 401
    assert asker.ask(method, at, body, Cookie="").status == 401
    assert asker.ask(method, at, body, Origin="http://evil.example.org").status == 403
    assert asker.ask(method, at, body, Origin="null").status == 403
    assert asker.ask(method, at, body, Sec_Fetch_Site="cross-site").status == 403
    # A form of another page can send only this; and no address alone opens anything.
    if body:
        assert asker.ask(method, at, b"{}", Content_Type="text/plain").status == 415
        assert asker.ask("GET", at).status == 404


# Attacks on the WebSocket: a browser lets any page ask for one, and sends its cookies along.

EVIL = "http://evil.example.org"


def test_no_other_page_gets_a_terminal(shown: Dashboard, machine: Sshd) -> None:
    asker, stranger = Asker(shown.port), Asker(shown.port)
    asker.enter(shown.key)
    own = f"http://{HOST}:{shown.port}"
    refused: list[tuple[int, dict[str, str]]] = [
        # A page elsewhere, a frame without an origin, a program that says none, another server of this computer.
        (403, {"Origin": EVIL}),
        (403, {"Origin": "null"}),
        (404, {"Origin": ""}),
        (403, {"Origin": f"http://{HOST}:{shown.port + 1}"}),
        (403, {"Origin": f"{own}.evil.example.org"}),
        (403, {"Sec_Fetch_Site": "cross-site"}),
        # A name that a page elsewhere has lead here.
        (421, {"Host": f"evil.example.org:{shown.port}", "Origin": f"{EVIL}:{shown.port}"}),
        # One half of the pass.
        (401, {"Cookie": ""}),
        (401, {"Sec_WebSocket_Protocol": "terminal"}),
        (401, {"Sec_WebSocket_Protocol": f"terminal, token.{'0' * 64}"}),
        (401, {"Cookie": asker.cookie.partition("=")[0] + "=1.2.3"}),
    ]
    for status, changes in refused:
        with asker.terminal(**changes) as socket:
            assert (socket.status, changes) == (status, changes)
    with stranger.terminal() as socket:
        assert socket.status == 401
    for path in ("/ui/api/stream", "/ui/", "/ui/api/terminal/x", "/", "/mcp"):
        with asker.terminal(path) as socket:
            assert socket.status != 101
    with asker.terminal() as socket:
        assert socket.status == 101
        # One that has begun ends with its pass.
        socket.say(sandbox=machine.name, rows=24, columns=80)
        heard = socket.heard()
        assert next(heard) == {"opened": True}
        asker.ask("POST", "/ui/leave", {})
        assert {"end": ""} not in list(heard)
    with asker.terminal() as socket:
        assert socket.status == 401


def test_a_terminal_shows_what_is_typed_and_keeps_none_of_it(shown: Dashboard, machine: Sshd) -> None:
    asker = Asker(shown.port)
    asker.enter(shown.key)
    with asker.terminal() as socket:
        socket.say(sandbox=machine.name, rows=24, columns=80)
        heard = socket.heard()
        assert next(heard) == {"opened": True}
        # The prompt: it has its first size.
        assert isinstance(next(heard), bytes)
        socket.say(rows=30, columns=90)
        typed = b"echo $((6*7))-here $(stty size); exit\n"
        socket.send(typed)
        parts = list(heard)
    assert b"42-here 30 90" in b"".join(part for part in parts if isinstance(part, bytes))
    assert {"took": len(typed)} in parts
    assert parts[-1] == {"end": ""}
    kept = lambda: asker.ask("GET", "/ui/api/calls?tool=terminal&limit=1").json["calls"]  # noqa: E731
    wait_until(kept, what="the call")
    (call,) = kept()
    assert (call["client"], call["arguments"]["sandbox_name"]) == ("page", machine.name)
    assert "echo" not in json.dumps(call)


def test_a_browser_that_does_not_draw_holds_the_program_up(shown: Dashboard, machine: Sshd) -> None:
    asker = Asker(shown.port)
    asker.enter(shown.key)
    with asker.terminal() as socket:
        socket.say(sandbox=machine.name, rows=24, columns=80)
        heard = socket.heard()
        assert next(heard) == {"opened": True}
        # What is shown is taken when the next part is asked for: of this much, the half is not sent without.
        socket.send(b"stty -echo; head -c 600000 /dev/zero | tr '\\0' x; echo 'all of'' it'; exit\n")
        socket.line.settimeout(2.0)
        size = 0
        with suppress(TimeoutError):
            for event in socket.events():
                size += len(event.data) if isinstance(event, BytesMessage) else 0
        assert 100_000 < size <= MOST_AHEAD
        socket.line.settimeout(SOON_S)
        socket.say(took=size)
        assert b"all of it" in b"".join(part for part in socket.heard() if isinstance(part, bytes))


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"sandbox": "nowhere", "rows": 24, "columns": 80}, "nowhere"),
        ({"sandbox": "gpu1", "job": "no-such-job", "rows": 24, "columns": 80}, "no-such-job"),
        ({"sandbox": "gpu1", "rows": "24", "columns": None}, "whole numbers"),
    ],
)
def test_a_terminal_that_cannot_be_opened_says_why(shown: Dashboard, wanted: dict[str, Any], said: str) -> None:
    asker = Asker(shown.port)
    asker.enter(shown.key)
    with asker.terminal() as socket:
        socket.say(**wanted)
        (told,) = socket.heard()
    assert isinstance(told, dict)
    assert said in told["end"]


@pytest.mark.parametrize(
    ("first", "then", "said"),
    [
        (b"typed", None, "JSON object"),
        ([1], None, "JSON object"),
        ({}, {"took": 1}, "more was taken"),
        ({}, {"took": -1}, "more was taken"),
        ({}, {"rows": 1}, "whole numbers"),
        # More than it may, and more than one message has: both are cut.
        ({}, b"x" * 60_000, "does not read"),
        ({}, b"x" * 70_000, ""),
    ],
)
def test_what_is_no_terminal_s_is_refused(shown: Dashboard, first: Any, then: Any, said: str) -> None:
    asker = Asker(shown.port)
    asker.enter(shown.key)
    with asker.terminal() as socket:
        socket.send({"sandbox": "gpu1", "rows": 24, "columns": 80} if first == {} else first)
        heard = socket.heard()
        if then is not None:
            assert next(heard) == {"opened": True}
            # Nothing reads what is typed.
            socket.send(b"stty -icanon -echo; exec sleep 1000\n")
            with suppress(ConnectionError):
                for _ in range(100 if isinstance(then, bytes) else 1):
                    socket.send(then)
        ends = []
        with suppress(ConnectionError):
            ends += [part["end"] for part in heard if isinstance(part, dict) and "end" in part]
    if isinstance(then, bytes):
        return
    assert [said in end for end in ends] == [True]


@pytest.mark.parametrize(
    ("wanted", "status"),
    [
        ({"path": "/etc/passwd"}, 400),
        ({"sandbox": "", "path": "/etc/passwd"}, 400),
        ({"sandbox": "..", "path": "/etc/passwd"}, 404),
        ({"sandbox": ["gpu1"], "path": "/"}, 400),
        ({"sandbox": "gpu1", "path": "a\0b"}, 404),
        ({"sandbox": "gpu1", "path": "\ud800"}, 404),
        ({"sandbox": "gpu1", "path": "data", "most": 1 << 60}, 400),
        ({"sandbox": "gpu1", "path": "data", "most": True}, 400),
        ({"sandbox": "gpu1", "path": "/dev/zero"}, 502),
    ],
)
def test_only_files_of_sandboxes_are_given(
    shown: Dashboard, agent: Caller, wanted: dict[str, Any], status: int
) -> None:
    asker = Asker(shown.port)
    asker.enter(shown.key)
    assert asker.ask("POST", "/ui/api/download", wanted).status == status
