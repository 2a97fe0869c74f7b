"""The page's modules in a real browser, with rows and texts made up for them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.chromium import Opener, Tab, chromium, tabs

if TYPE_CHECKING:
    from playwright.async_api import Browser, Route

FILES = resources.files("remote_sandbox_mcp.fronts.page").joinpath("files")
TYPES = {"js": "text/javascript", "css": "text/css", "html": "text/html", "svg": "image/svg+xml"}
ORIGIN = "http://page.example.org"
CARD = {"index": 0, "mem_total_mb": 1000, "mem_used_mb": 5, "util_pct": 0, "processes": []}
HELD = CARD | {"state": "held", "mem_used_mb": 900, "processes": [{"user": "ann", "pid": 1, "name": "python"}]}


async def serve(route: Route) -> None:
    name = route.request.url.removeprefix(f"{ORIGIN}/").removeprefix("ui/") or "index.html"
    if name == "blank":
        await route.fulfill(body="<!doctype html><title>blank</title>", content_type="text/html")
    elif name.startswith("api/"):
        await route.fulfill(status=404, body="{}", content_type="application/json")
    else:
        body = FILES.joinpath(name).read_text(encoding="utf-8")
        await route.fulfill(body=body, content_type=TYPES[name.rpartition(".")[2]])


@asynccontextmanager
async def blank_tabs(browser: Browser) -> AsyncIterator[Opener]:
    """Opens pages with nothing on them that have our modules at hand."""
    async with tabs(browser) as open_tab:

        async def open_blank() -> Tab:
            opened = await open_tab()
            await opened.page.route(f"{ORIGIN}/**", serve)
            await opened.page.goto(f"{ORIGIN}/blank")
            return opened

        yield open_blank


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as running:
        yield running


@pytest.fixture
async def new_tab(browser: Browser) -> AsyncIterator[Opener]:
    """Opens tabs of one test: a clock that is set is that of all tabs of a person."""
    async with blank_tabs(browser) as opener:
        yield opener


@pytest.fixture(scope="module")
async def kept(browser: Browser) -> AsyncIterator[Tab]:
    async with blank_tabs(browser) as opener:
        yield await opener()


@pytest.fixture
async def tab(kept: Tab) -> Tab:
    # One behind another draws seldom.
    await kept.page.bring_to_front()
    return kept


async def ask(tab: Tab, module: str, script: str, given: Any = None) -> Any:
    """What a function of a module gives; it is called with the module `m` and the argument `given`."""
    whole = f"async (given) => {{ const m = await import('/{module}'); return ({script}); }}"
    return await tab.page.evaluate(whole, given)


# Lines

LINE = """
(async () => {
  const feed = new m.Feed(), said = [];
  let refusals = given;
  feed.fetch = async (path, { signal }) => {
    said.push("asks");
    await new Promise((done) => setTimeout(done, 20));
    if (refusals-- > 0) throw new m.Refused(401, "");
    return new Response(new ReadableStream({ start: (it) => signal.addEventListener("abort", () => it.close()) }));
  };
  const line = feed.stream("/x", () => {}, (phase) => said.push(phase));
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));
  line.nudge();
  while (said.at(-1) !== "live") await wait(5);
  line.nudge();
  feed._streams.forEach((stream) => stream.rest());
  await wait(100);
  line.close();
  return said;
})()
"""


@pytest.mark.parametrize(
    ("refusals", "said"),
    [
        pytest.param(0, ["asks", "live"], id="connected, then at rest"),
        pytest.param(1, ["asks", "refused", "asks", "live"], id="the key was given while it asked without"),
    ],
)
async def test_a_line_asks_again_after_news_and_is_silent_at_rest(tab: Tab, refusals: int, said: list[str]) -> None:
    assert await ask(tab, "feed.js", f"await {LINE}", refusals) == said


# A feed whose server is `world`: what was asked, how many streams are open, and the status of every answer.
FEED = """async (given) => {
    const { Feed, Refused } = await import("/feed.js");
    const feed = new Feed(), world = { feed, asked: 0, open: 0, status: 200, said: [], ...given };
    feed.fetch = async (path, { signal } = {}) => {
        world.asked++;
        await Promise.resolve();
        if (world.status !== 200) throw new Refused(world.status, "");
        if (!signal) return new Response("{}");
        world.open++;
        return new Response(new ReadableStream({ start: (stream) => signal.addEventListener("abort", () => {
            world.open--;
            stream.close();
        }) }));
    };
    window.world = world;
}"""
HIDE = """(isHidden) => {
    Object.defineProperty(document, "hidden", { value: isHidden, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
}"""
# What wakes a page that was asleep, offline or without a key; ends when nothing more can come of it.
WAKE = """async () => {
    dispatchEvent(new Event("online"));
    dispatchEvent(new Event("pageshow"));
    document.dispatchEvent(new Event("resume"));
    dispatchEvent(new StorageEvent("storage", { key: "remote-sandbox-token", newValue: "x" }));
    for (let turn = 0; turn < 100; turn++) await Promise.resolve();
    return world.open;
}"""


async def test_a_tab_that_was_opened_in_the_background_lets_its_line_go(new_tab: Opener) -> None:
    tab = await new_tab()
    await tab.page.clock.install()
    await tab.page.evaluate(FEED)
    await tab.page.evaluate(HIDE, True)
    await tab.page.evaluate("() => world.feed.start()")
    await tab.until("() => world.open === 1")
    await tab.page.clock.fast_forward(61_000)
    await tab.until("() => world.open === 0")
    # It stays so until it is looked at.
    assert await tab.page.evaluate(WAKE) == 0
    await tab.page.evaluate(HIDE, False)
    await tab.until("() => world.open === 1")


async def test_a_line_at_rest_does_not_try_again_after_a_failure(new_tab: Opener) -> None:
    tab = await new_tab()
    await tab.page.clock.install()
    await tab.page.evaluate(FEED, {"status": 503})
    await tab.page.evaluate("() => world.feed.start()")
    await tab.until("() => world.feed.phase === 'lost'")
    before = await tab.page.evaluate("() => (world.feed._streams.forEach((stream) => stream.rest()), world.asked)")
    await tab.page.clock.run_for(30_000)
    assert await tab.page.evaluate("world.asked") == before
    await tab.page.evaluate("() => ((world.status = 200), world.feed.retry())")
    await tab.until("() => world.feed.phase === 'live'")


# As the server sends them: first an hour, thinned to 240 points, and then one point every four seconds.
TREND = """(() => {
    const feed = new m.Feed(), tell = (row) => feed._hear("change", { topic: "trends", put: { gpu1: row } });
    const points = Array.from({ length: 240 }, (_, at) => [at * 15, 0.5]);
    tell({ points });
    for (let time = 3600; time <= given.until; time += given.every) tell({ add: [[time, 0.5]] });
    const kept = feed.rows("trends").get("gpu1").points;
    return [kept[0][0], kept.at(-1)[0], kept.length];
})()"""


@pytest.mark.parametrize(
    ("given", "first", "most"),
    [
        pytest.param({"every": 4, "until": 5400}, 1800, 300, id="half an hour later"),
        pytest.param({"every": 4, "until": 10_800}, 7200, 300, id="two hours later"),
        pytest.param({"every": 0.25, "until": 10_800}, 10_550, 1000, id="too many points"),
    ],
)
async def test_a_trend_is_of_the_last_hour(tab: Tab, given: dict[str, int], first: int, most: int) -> None:
    oldest, newest, count = await ask(tab, "feed.js", TREND, given)
    assert (first < oldest <= first + 16, newest) == (True, given["until"])
    assert most * 0.9 < count <= most


# Rows of which the server keeps only the newest ones at hand: `tell(from, to)` is a whole message of them, `older` a
# press of the button, and `known()` gives the first and the last number, how many there are, and the button.
OLDER = """
const { Feed } = await import("/feed.js");
const feed = new Feed(), older = new m.Older(feed, "calls", "/api/calls", () => {}), button = older.node.firstChild;
const some = (from, to) => Array.from({ length: to - from + 1 }, (_, at) => ({ id: from + at }));
const tell = (from, to) => {
    const put = Object.fromEntries(some(from, to).map((row) => [row.id, row]));
    feed._hear("change", { topic: "calls", whole: true, put });
    older.all();
};
feed.get = async (path, { before, limit }) => ({ calls: some(Math.max(1, before - limit), before - 1) });
const known = () => {
    const ids = older.all().map(([id]) => id);
    return [ids[0], ids.at(-1), ids.length, button.textContent, button.disabled];
};
"""


async def older(tab: Tab, script: str) -> Any:
    whole = f"async () => {{ const m = await import('/older.js'); {OLDER} {script}; return known(); }}"
    return await tab.page.evaluate(whole)


async def test_rows_after_an_absence_have_no_hole(tab: Tab) -> None:
    # Some are still known: all stay.
    assert await older(tab, "tell(1, 200); tell(150, 349)") == [349, 1, 349, "Older", False]
    # Those between are not known here: the button goes on before the ones that are shown.
    script = "tell(11, 210); await older.load(); tell(501, 700)"
    assert await older(tab, script) == [700, 501, 200, "Older", False]
    assert await older(tab, f"{script}; await older.load()") == [700, 401, 300, "Older", False]


async def test_rows_of_days_are_forgotten_and_can_be_asked_for_again(tab: Tab) -> None:
    days = "for (let last = 200; last <= 9000; last += 100) tell(last - 199, last)"
    assert await older(tab, days) == [9000, 7001, 2000, "Older", False]
    assert await older(tab, f"{days}; await older.load()") == [9000, 6901, 2100, "Older", False]
    # "Nothing older" holds only until the oldest ones leave.
    none = "tell(51, 250); await older.load()"
    assert await older(tab, none) == [250, 1, 250, "Nothing older", True]
    assert (await older(tab, f"{none}; {days}"))[-2:] == ["Older", False]


# Leaving and entering

# A server inside the page. It knows one token, and its streams stay open until the page lets them go.
SERVER = """
window.fetch = async (path, { headers, signal, body } = {}) => {
    const answer = (value, status = 200) => new Response(JSON.stringify(value), { status });
    if (path.endsWith("/enter")) return JSON.parse(body).key === "right" ? answer({ token: "known" }) : answer({}, 401);
    if (headers["X-Page-Token"] !== "known") return answer({ error: "no key" }, 401);
    if (!signal) return answer({});
    return new Response(new ReadableStream({ start(stream) {
        const beat = setInterval(() => stream.enqueue(new TextEncoder().encode(": alive\\n\\n")), 1000);
        signal.addEventListener("abort", () => (clearInterval(beat), stream.close()));
    } }));
};
"""
# As in a tab that was frozen while another one left.
DEAF = "addEventListener('storage', (event) => event.stopImmediatePropagation());"


@pytest.mark.parametrize("is_told", [True, False], ids=["it is told", "it finds out by a call"])
async def test_a_tab_is_entered_again_after_another_one_has_left(new_tab: Opener, is_told: bool) -> None:
    tab, other = await new_tab(), await new_tab()
    await tab.page.evaluate("() => localStorage.setItem('remote-sandbox-token', 'known')")
    for each in (tab, other):
        await each.page.add_init_script(SERVER + ("" if is_told or each is tab else DEAF))
        await each.open(f"{ORIGIN}/ui/", "calls")
        await each.shows("h1", "Calls")
    await tab.page.bring_to_front()
    await tab.page.get_by_role("button", name="Leave").click()
    await tab.shows(".door")
    await other.page.bring_to_front()
    if not is_told:
        await other.page.get_by_role("button", name="Only failed").click()
    await other.shows(".door")
    await other.page.fill(".door input", "right")
    await other.page.keyboard.press("Enter")
    for each in (other, tab):
        await each.page.bring_to_front()
        await each.live()
        await each.shows("h1", "Calls")


SCORES = {
    "idle, no GPU": {"idle_score": 0.4, "resources": {}},
    "partly free": {"idle_score": 0.2, "resources": {}},
    "busy": {"idle_score": 0.1, "resources": {}},
    "mostly free": {"idle_score": 0.6, "resources": {"cluster": {}}},
}


async def test_a_score_is_a_word(tab: Tab) -> None:
    assert await ask(tab, "cards.js", "given.map(m.scoreWord)", [*SCORES.values()]) == [*SCORES]


# Terminal output

LINES = {
    "plain": (["a\nb\n"], ["a", "b", ""]),
    "a progress bar writes over itself": (["10%\r20%\r100%\n"], ["100%", ""]),
    "what is longer stays": (["longer\rab\n"], ["abnger", ""]),
    "erased to the end": (["longer\r\x1b[Kab\n"], ["ab", ""]),
    "backspace": (["abc\b\bX\n"], ["aXc", ""]),
    "tab": (["a\tb"], ["a       b"]),
    "cut in a sequence": (["\x1b[3", "1mred\x1b", "[0m!\n"], ["red!", ""]),
    "titles and screens are dropped": (["\x1b]0;title\x07a\x1b[2J\x1b[Hb\x1b(Bc\x1b7\n"], ["abc", ""]),
    "an escape that is none": (["a\x1b\x01b\n"], ["a␁b", ""]),
    "invisible characters are shown": (["a\u202eb\u200bc\x00\x7f\n"], ["a\\u202eb\\u200bc␀␡", ""]),
    "letters of all scripts stay": (
        ["日本 \u0645\u0631 \U0001f468\u200d\U0001f469\n"],
        ["日本 \u0645\u0631 \U0001f468\u200d\U0001f469", ""],
    ),
}


@pytest.mark.parametrize(("pieces", "lines"), LINES.values(), ids=LINES)
async def test_a_terminal_shows_what_was_printed(tab: Tab, pieces: list[str], lines: list[str]) -> None:
    script = (
        "(() => { const t = new m.Terminal(); given.forEach((p) => t.write(p)); return t.lines.map((l) => l.text) })()"
    )
    assert await ask(tab, "ansi.js", script, pieces) == lines


STYLES = {
    "1;31": {"bold": True, "ink": 1},
    "92;44": {"ink": 10, "paper": 4},
    "38;5;208": {"ink": "rgb(255 135 0)"},
    "48;5;3": {"paper": 3},
    "38;5;244": {"ink": "rgb(128 128 128)"},
    "38;2;1;2;300": {"ink": "rgb(1 2 255)"},
    "38:2::10:20:30": {"ink": "rgb(10 20 30)"},
    "1;31;0": {},
    "4;9;24": {"strike": True},
    "999": {},
}


@pytest.mark.parametrize(("codes", "style"), STYLES.items(), ids=STYLES)
async def test_colours_are_read(tab: Tab, codes: str, style: dict[str, Any]) -> None:
    assert await ask(tab, "ansi.js", "m.styled({}, given)", codes) == style


async def test_a_log_of_any_size_stays_small(tab: Tab) -> None:
    many = """(() => { const t = new m.Terminal(); for (let i = 0; i < 60; i++) t.write("line\\n".repeat(1000));
        return [t.lines.length, t.dropped + t.lines.length, t.lines.at(-1).number] })()"""
    kept, all_lines, number = await ask(tab, "ansi.js", many)
    assert kept <= 22_001
    assert all_lines == number == 60_001
    long = """(() => { const t = new m.Terminal(); for (let i = 0; i < 100; i++) t.write("x".repeat(100000));
        t.write("\\nnext"); return t.lines.map((l) => [l.text.length, l.cut]) })()"""
    assert await ask(tab, "ansi.js", long) == [[8000, 9_992_000], [4, 0]]


# What is written, and the runs of the first line: where each begins and ends, and its ink.
RUNS = {
    "one style": ("\x1b[31ma\x1b[31mb\x1b[0;31mc", [[0, 3, 1]]),
    "a new one at the end": ("a\x1b[31mb\x1b[32mc\x1b[0md", [[1, 2, 1], [2, 3, 2]]),
    "over the middle of one": ("\x1b[31mabcde\b\b\b\x1b[32mX", [[0, 2, 1], [2, 3, 2], [3, 5, 1]]),
    "plain over the middle of one": ("\x1b[31mabcde\b\b\b\x1b[0mX", [[0, 2, 1], [3, 5, 1]]),
    "the same over a part of it": ("\x1b[31mabcde\b\b\bX", [[0, 5, 1]]),
    "over several": ("\x1b[31mab\x1b[32mcd\x1b[33mef\r.\x1b[34mXXXX", [[0, 1, 3], [1, 5, 4], [5, 6, 3]]),
    "between two": ("\x1b[31ma\x1b[0mbc\x1b[31md\rab\x1b[32mc", [[0, 2, 1], [2, 3, 2], [3, 4, 1]]),
    "erased": ("\x1b[31mabc\x1b[32mdef\b\b\x1b[K", [[0, 3, 1], [3, 4, 2]]),
}


@pytest.mark.parametrize(("text", "runs"), RUNS.values(), ids=RUNS)
async def test_a_style_is_laid_over_others(tab: Tab, text: str, runs: list[list[int]]) -> None:
    script = (
        "(() => { const t = new m.Terminal(); t.write(given); return t.last.runs.map(([a, b, s]) => [a, b, s.ink]) })()"
    )
    assert await ask(tab, "ansi.js", script, text) == runs


async def test_the_pieces_of_a_line_have_their_styles_and_marks(tab: Tab) -> None:
    script = """(() => {
        const t = new m.Terminal();
        t.write("ab\x1b[31mcd\x1b[0mef\x1b[32mgh");
        const found = m.pieces(t.last, 1, 7, [[0, 1], [3, 5]]);
        return found.map(([text, style, isMarked]) => [text, style?.ink ?? null, isMarked]);
    })()"""
    assert await ask(tab, "ansi.js", script) == [
        ["b", None, False], ["c", 1, False], ["d", 1, True], ["e", None, True], ["f", None, False], ["g", 2, False],
    ]  # fmt: skip


# As much as the server sends at once, of what costs most: every letter with a style of its own, written anew and again.
HOSTILE_STYLES = """(() => {
    const t = new m.Terminal(), begun = performance.now();
    let text = "";
    for (let n = 0; n < 8000; n++) text += `\\u001b[38;5;${16 + n % 200}mx`;
    for (let n = 0; text.length < 500000; n++) text += `\\b\\u001b[3${n % 8}mX`;
    t.write(text);
    t.write("\\r" + text);
    for (let at = 0; at < 8000; at += 80) m.pieces(t.last, at, at + 80);
    const took = performance.now() - begun, { runs } = t.last;
    // Many short lines of that kind: memory counts, too.
    const line = Array.from({ length: 400 }, (_, n) => `\\u001b[3${n % 8}mx`).join("") + "\\n";
    for (let n = 0; n < 20; n++) t.write(line.repeat(300));
    const all = t.lines.reduce((sum, { runs }) => sum + (runs?.length ?? 0), 0);
    return { took, most: runs.length, all, dropped: t.dropped };
})()"""


async def test_a_log_of_styles_without_end_neither_hangs_nor_grows(tab: Tab) -> None:
    found = await ask(tab, "ansi.js", HOSTILE_STYLES)
    assert found["took"] < 3000
    assert found["most"] <= 500
    assert 0 < found["all"] <= 1_000_000
    assert found["dropped"] > 0


# A job's view on a feed whose log is told by `world.hear` and `world.tell`; `log()` gives its words.
JOB_VIEW = """
const { Feed, Refused } = await import("/feed.js");
const feed = new Feed(), main = document.createElement("main"), world = {};
document.body.append(main);
feed.stream = (path, hear, tell) => (Object.assign(world, { hear, tell }), { close() {}, nudge() {} });
const end = m.mount(main, { feed, id: "gpu1/train", keys: () => {} });
const log = () => main.querySelector(".log-empty").textContent;
"""


async def job_view(tab: Tab, script: str, given: Any = None) -> Any:
    """What a script gives that puts its answer into `found`."""
    whole = f"const m = await import('/job.js'); {JOB_VIEW} let found; {script}; end(); main.remove(); return found;"
    return await tab.page.evaluate(f"async (given) => {{ {whole} }}", given)


@pytest.mark.parametrize(("phase", "status"), [("lost", 502), ("refused", 404)])
async def test_a_log_says_why_it_cannot_be_read(tab: Tab, phase: str, status: int) -> None:
    # A cut line has no reason to tell, and for the key the door asks.
    script = """
        world.tell("lost", new TypeError("network error"));
        world.tell("refused", new Refused(401, "no key"));
        found = [log()];
        world.tell(given[0], new Refused(given[1], "gpu1 does not answer"));
        found.push(log());
        world.tell("live");
        world.hear("state", { state: "running" });
        found.push(log());
    """
    assert await job_view(tab, script, [phase, status]) == [
        "Loading …",
        "The log cannot be read: gpu1 does not answer",
        "The job has printed nothing yet.",
    ]


async def test_a_job_that_is_known_by_its_log_alone_is_in_no_list(tab: Tab) -> None:
    script = """
        const { soon } = await import("/dom.js");
        const drawn = () => new Promise((done) => soon(done));
        const state = async () => (await drawn(), main.querySelector(".state").textContent);
        const list = (row) => feed._hear("change", { topic: "jobs", put: { "gpu1/train": row } });
        world.hear("state", { state: "running", command: "./train" });
        found = [[await state(), feed.rows("jobs").size]];
        // The newer one counts, be it of the log or of the list.
        list({ state: "pending", can_resume: true });
        found.push([await state(), feed.rows("jobs").size]);
        world.hear("end", { state: "ended", outcome: "failed", exit_code: 1, can_resume: false });
        found.push([await state(), feed.rows("jobs").get("gpu1/train").state]);
        // Whether it can be resumed is told by the list alone.
        found.push(main.querySelector(".button.primary").hidden);
        list({ state: "ended", outcome: "succeeded", exit_code: 0 });
        found.push(await state());
    """
    found = await job_view(tab, script)
    assert found == [["running", 0], ["pending", 1], ["failed", "pending"], False, "succeeded"]


async def test_jobs_that_are_left_out_are_counted(tab: Tab) -> None:
    script = """(async () => {
        const { Feed } = await import("/feed.js");
        const { soon } = await import("/dom.js");
        const feed = new Feed(), main = document.createElement("main");
        const end = m.mount(main, { feed });
        const said = [];
        for (const hub of given) {
            feed._hear("change", { topic: "about", put: { hub } });
            await new Promise((done) => soon(done));
            const line = main.querySelector(".left-out");
            said.push(line.hidden ? null : line.textContent);
        }
        end();
        return said;
    })()"""
    told = [{}, {"jobs_left_out": 12}, {"jobs_left_out": 1}, {"jobs_left_out": 0}, {"jobs_left_out": "x"}]
    assert await ask(tab, "jobs.js", f"await {script}", told) == [
        None,
        "12 older jobs that have ended are not shown.",
        "1 older job that has ended is not shown.",
        None,
        None,
    ]


# Cards

ROWS = """(async () => {
    const drawn = (row) => { if (row.isBad) throw new Error("a bad row"); return row.words };
    const make = (row) => {
        const node = m.h("p", {}, drawn(row));
        return { node, update: (row) => m.put(node, drawn(row)) };
    };
    const root = m.h("ul"), list = new m.LazyList(root, make), soon = [];
    document.body.append(root);
    list.show([["a", { isBad: true }], ["b", { words: "first" }], ["c", { words: "second" }]]);
    for (let n = 0; n < 200 && root.textContent !== "firstsecond"; n++) await new Promise(requestAnimationFrame);
    list.show([["b", { isBad: true }], ["c", { words: "changed" }]]);
    list.near((_, row) => soon.push(drawn(row)));
    m.soon(() => { throw new Error("bad work") });
    await new Promise((done) => m.soon(done));
    list.end();
    root.remove();
    return [root.textContent, soon];
})()"""


async def test_a_row_that_cannot_be_drawn_harms_no_other(tab: Tab) -> None:
    assert await ask(tab, "dom.js", f"await {ROWS}") == ["firstchanged", ["changed"]]
    told = [complaint.splitlines()[0] for complaint in tab.complaints]
    assert told == ["Error: a bad row"] * 3 + ["Error: bad work"]
    tab.complaints.clear()


LIMITS = {
    "2-00:00:00": "2d",
    "04:00:00": "4h",
    "1-06:30:00": "1d 6h 30m",
    "00:00:30": "00:00:30",
    "infinite": "infinite",
}


async def test_a_time_limit_is_short(tab: Tab) -> None:
    assert await ask(tab, "cards.js", "given.map(m.timeLimit)", [*LIMITS]) == [*LIMITS.values()]


GPU_STATES = {"free": "free", "held": "held", "busy": "busy", "unknown": "unknown", "<b>": "unknown", None: "unknown"}


async def test_a_gpu_is_free_held_busy_or_unknown(tab: Tab) -> None:
    gpus = [CARD | {"state": state} for state in GPU_STATES]
    assert await ask(tab, "cards.js", "given.map(m.gpuState)", gpus) == [*GPU_STATES.values()]


async def test_a_leased_gpu_says_by_whom_and_until_when(tab: Tab) -> None:
    lease = {"user": "ann", "job": "train-7", "until": "2026-11-18T20:00:00Z"}
    gpus = [CARD | {"state": "held", "lease": lease}, HELD | {"lease": {"user": "bob"}}]
    script = """(() => {
        const card = m.machineCard({name: "a", state: "up", resources: {gpu: given}}, {points: []});
        document.body.append(card.node);
        const gpus = [...card.node.querySelectorAll(".gpu")];
        return gpus.map((gpu) => [gpu.querySelector(".gpu-who").textContent, gpu.title]);
    })()"""
    (idle, title), (used, _) = await ask(tab, "cards.js", script, gpus)
    assert (idle, used) == ("ann · train-7", "leased by bob · ann · python")
    assert "leased by ann (train-7), by plan until " in title


JOBS = {
    "done": ({"state": "ended", "outcome": "succeeded"}, "ended"),
    "failed": ({"state": "ended", "outcome": "failed"}, "failed"),
    "asked to end": ({"state": "ended", "outcome": "stopped", "exit_code": 143}, "stopped"),
    "interrupted": ({"state": "gone", "outcome": "interrupted"}, "gone"),
}


@pytest.mark.parametrize(("job", "state"), JOBS.values(), ids=JOBS)
async def test_a_job_that_was_asked_to_end_has_not_failed(tab: Tab, job: dict[str, Any], state: str) -> None:
    assert await ask(tab, "cards.js", "m.jobState(given)", job) == state


async def test_hostile_names_are_text_in_cards(tab: Tab) -> None:
    evil = "<img src=x onerror=alert(1)>\u202egpj"
    machine = {
        "name": evil,
        "host": evil,
        "state": "down",
        "trouble": evil,
        "resources": {"gpu": [HELD | {"name": evil}]},
    }
    job = {"tmux_session": evil, "sandbox": evil, "state": evil, "command": evil, "checkpoint": {"text": f"{evil} 1/2"}}
    script = """(() => {
        const cards = [m.machineCard(given[0], {points: [[1, 0.5, 0.5, [0.1]]]}), m.jobCard(given[1], 5)];
        cards.forEach((card) => document.body.append(card.node));
        cards[0].update(given[0]);
        cards[1].update(given[1], 6);
        return [document.querySelectorAll("img").length, document.body.textContent];
    })()"""
    images, text = await ask(tab, "cards.js", script, [machine, job])
    assert images == 0
    assert text.count("<img src=x onerror=alert(1)>\\u202egpj") >= 6
    assert "\u202e" not in text


# Words


async def test_words_of_a_machine_are_no_entries_of_javascript(tab: Tab) -> None:
    words = ["constructor", "__proto__", "toString"]
    for language in ("zh", "en"):
        script = f"(m.speak('{language}'), given.map((word) => m.t(word, {{ n: 1 }})))"
        assert await ask(tab, "words.js", script, words) == words


def test_every_sentence_is_there_in_chinese() -> None:
    files = {found.name: found.read_text(encoding="utf-8") for found in FILES.iterdir() if found.name.endswith(".js")}
    words = files.pop("words.js")
    files.pop("sentences.js")
    known = set(re.findall(r'^  "(.+?)": "', words, re.MULTILINE))
    said = {found for text in files.values() for found in re.findall(r'\b(?:t|parts)\("([^"]+)"', text)}
    assert said <= known, said - known
    # Keys that are put together in the code are quoted there as well; all others are left over.
    everything = "\n".join(files.values())
    states = {
        "running",
        "pending",
        "ended",
        "failed",
        "gone",
        "unknown",
        "stopped",
        "completed",
        "cancelled",
        "linking",
        "active",
    }
    unused = {key for key in known if f'"{key}"' not in everything and f"{key}:" not in everything} - states
    assert not unused


def test_a_class_has_its_looks_from_one_view_alone() -> None:
    def classes(name: str) -> set[str]:
        return set(re.findall(r"^\.([\w-]+)", FILES.joinpath(name).read_text(encoding="utf-8"), re.MULTILINE))

    assert classes("job_views.css") & classes("fleet_views.css") == set()


def test_nothing_is_made_of_markup_and_nothing_is_loaded_from_elsewhere() -> None:
    for found in FILES.joinpath("vendor").iterdir():
        # Its addresses are those of its authors, in comments.
        assert not re.search(r"innerHTML|document\.write|\beval\(|new Function", found.read_text(encoding="utf-8")), (
            found
        )
    for found in (each for each in FILES.iterdir() if each.is_file()):
        text = found.read_text(encoding="utf-8")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text), found
        foreign = set(re.findall(r"https?://[^\s\"'`)]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not foreign, found
