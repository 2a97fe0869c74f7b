"""What agents may use of this computer, on the page: seen, allowed and taken back there."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from remote_sandbox_mcp.app import App
from remote_sandbox_mcp.config.allowances import Allowance, allow, allowances
from remote_sandbox_mcp.core.sandboxes.secret import Secret
from remote_sandbox_mcp.fronts.mcp.server import build
from remote_sandbox_mcp.fronts.page.allowing import Allowing
from remote_sandbox_mcp.fronts.page.app import PageApp
from remote_sandbox_mcp.fronts.page.http import PageRefusal
from remote_sandbox_mcp.services.fleet import Fleet
from remote_sandbox_mcp.views.live.service import Live
from tests.fronts.http.conftest import Service, service
from tests.support.chromium import Opener, chromium, require_chromium, tabs
from tests.support.dashboards import CONFIG, Dashboard, dashboard
from tests.support.page import Browser
from tests.support.server import serve

if TYPE_CHECKING:
    from playwright.async_api import Browser as Chromium

ALLOWED, ALLOW, DISALLOW = "/ui/api/allowed", "/ui/api/allow", "/ui/api/disallow"
ROOTS = '[server]\nallowed_roots = ["/srv/projects"]\nallowed_roots_read = ["/data/sets"]\n'
# Not those of all tests.
NO_OTHERS = {"REMOTE_SANDBOX_ALLOWED_ROOTS": ""}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("home"), local=False, config=ROOTS, env=NO_OTHERS) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def known(served: Service) -> list[Allowance]:
    """As every server of this user reads them."""
    return allowances({"REMOTE_SANDBOX_MCP_HOME": str(served.home / "state")})


def order(path: object, **changes: Any) -> dict[str, Any]:
    return {"path": str(path), "writing": True, "for_s": 3600} | changes


def test_a_place_is_allowed_seen_and_taken_back(browser: Browser, served: Service, folder: Path) -> None:
    answer = browser.ask("POST", ALLOW, order(folder))
    assert (answer.status, answer.json["warnings"]) == (200, [])
    (given,) = known(served)
    assert (given.path, given.writing, given.session, given.by) == (str(folder), True, "", "page")
    assert given.until is not None
    assert abs(given.until - time.time() - 3600) < 60
    assert browser.ask("GET", ALLOWED).json == {
        "projects": [],
        "configured": [
            {"path": path, "writing": writing, "until": None, "by": key, "session": "", "key": key}
            for path, writing, key in (
                ("/srv/projects", True, "allowed_roots"),
                ("/data/sets", False, "allowed_roots_read"),
            )
        ],
        "allowed": [answer.json["allowed"]],
    }
    gone = browser.ask("POST", DISALLOW, {"path": str(folder)})
    assert (gone.status, gone.json["still"]) == (200, "")
    assert known(served) == []
    again = browser.ask("POST", DISALLOW, {"path": str(folder)})
    assert (again.status, again.json["error"]) == (400, f"nothing was taken back: {folder} was not allowed")


def test_always_is_said_and_a_wide_place_warns(browser: Browser, served: Service) -> None:
    answer = browser.ask("POST", ALLOW, order("~", writing=False, for_s=None))
    assert (answer.json["allowed"]["path"], answer.json["allowed"]["until"]) == (str(served.home), None)
    assert "so this allows much more than a project" in answer.json["warnings"][0]
    assert browser.ask("POST", DISALLOW, {"path": "~"}).status == 200


@pytest.mark.parametrize(
    ("given", "said"),
    [
        pytest.param(order("~/.ssh"), "nothing was allowed: ", id="closed"),
        pytest.param(order("~/state"), "part of remote-sandbox-mcp itself", id="our state"),
        pytest.param(order("data"), "the whole path", id="relative"),
        pytest.param(order("~nobody-of-this-name/x"), "the whole path", id="no user"),
        pytest.param(order(""), "the whole path", id="empty"),
        pytest.param(order("/a\0b"), "NUL", id="NUL"),
        pytest.param({"path": "/data", "writing": True}, "send {", id="no time"),
        pytest.param({"path": "/data", "for_s": 60}, "send {", id="no use"),
        pytest.param(order("/data", writing="yes"), "send {", id="no yes or no"),
        pytest.param(order("/data", for_s=True), "send {", id="no number"),
        pytest.param(order("/data", for_s=1e12), "send {", id="too long"),
        pytest.param(order("/data", for_s=10**400), "send {", id="a huge number"),
        pytest.param(order("/data", for_s=float("nan")), "send {", id="not a number"),
        pytest.param(order("/data", for_s=-5), "send {", id="over already"),
        pytest.param({"path": 7, "writing": True, "for_s": 60}, "send {", id="no path"),
    ],
)
def test_what_cannot_be_allowed_is_told(browser: Browser, served: Service, given: dict[str, Any], said: str) -> None:
    answer = browser.ask("POST", ALLOW, given)
    assert answer.status == 400
    assert said in answer.json["error"]
    assert known(served) == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({"Cookie": ""}, 401, id="no cookie"),
        pytest.param({"X_Page_Token": "x" * 43}, 401, id="no token"),
        pytest.param({"Sec_Fetch_Site": "cross-site"}, 403, id="another site"),
        pytest.param({"Sec_Fetch_Site": "same-site"}, 403, id="another port"),
        pytest.param({"Origin": "http://evil.example.org"}, 403, id="another origin"),
        pytest.param({"Host": "evil.example.org"}, 421, id="another name"),
        pytest.param({"Content_Type": "text/plain"}, 415, id="a form of another page"),
    ],
)
@pytest.mark.parametrize("address", [ALLOW, DISALLOW])
def test_only_the_page_itself_may_allow(
    browser: Browser, served: Service, address: str, headers: dict[str, str], status: int
) -> None:
    answer = browser.ask("POST", address, order("/data"), **headers)
    assert answer.status == status
    assert known(served) == []


def test_a_link_to_it_allows_nothing(browser: Browser, served: Service) -> None:
    assert browser.ask("GET", f"{ALLOW}?path=/data&writing=true&for_s=60").status == 404
    assert known(served) == []


async def ask_from(peer: str, page: PageApp, path: str, body: Any, **headers: str) -> tuple[int, dict[str, str], Any]:
    """A request by ASGI, from any address: status, headers and answer."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(body).encode()}

    async def send(message: Any) -> None:
        sent.append(message)

    given = {"content-type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    raw = [(name.encode(), value.encode()) for name, value in given.items()]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": raw, "client": (peer, 5)}
    await page(scope, receive, send)
    answered = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], answered, json.loads(sent[1]["body"])


@pytest.mark.parametrize(
    ("peer", "status"),
    [("127.0.0.1", 200), ("::1", 200), ("::ffff:127.0.0.1", 200), ("192.0.2.7", 403), ("::ffff:192.0.2.7", 403)],
)
async def test_from_another_computer_nothing_is_allowed(folder: Path, peer: str, status: int) -> None:
    server = build(App(Fleet([])))
    page = PageApp(server, Live(server.app), Secret("the key of many clients"), "seal")
    _, headers, entered = await ask_from(peer, page, "/ui/enter", {"key": "the key of many clients"})
    own = {"cookie": headers["set-cookie"].partition(";")[0], "x_page_token": entered["token"]}
    answered, _, said = await ask_from(peer, page, ALLOW, order(folder), **own)
    assert answered == status, said
    assert len(allowances()) == (status == 200)


def test_folders_of_clients_are_projects_unless_they_hold_a_home(clean_environment: Path, folder: Path) -> None:
    clients = [{"client": "agent", "folder": str(path)} for path in (folder, "/", clean_environment)]
    found = Allowing(App(Fleet([]))).listed(clients)["projects"]
    assert [(it["client"], it["path"], it["is_project"]) for it in found] == [
        ("agent", str(folder), True),
        ("agent", "/", False),
        ("agent", str(clean_environment), False),
    ]


def test_taking_back_without_a_path_is_refused() -> None:
    with pytest.raises(PageRefusal, match="send"):
        Allowing(App(Fleet([]))).take_back({"path": None})


# In a browser


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    require_chromium()
    with dashboard(tmp_path_factory.mktemp("home"), env=NO_OTHERS) as running:
        yield running


@pytest.fixture(scope="module")
async def chrome(shown: Dashboard) -> AsyncIterator[Chromium]:
    async with chromium() as running:
        yield running


@pytest.fixture
async def new_tab(chrome: Chromium) -> AsyncIterator[Opener]:
    async with tabs(chrome, viewport={"width": 1280, "height": 800}) as opener:
        yield opener


async def test_a_person_allows_a_folder_and_takes_it_back(new_tab: Opener, shown: Dashboard, folder: Path) -> None:
    state = {"REMOTE_SANDBOX_MCP_HOME": str(shown.home / "state")}
    tab = await new_tab()
    await tab.open(shown.address, "workspaces")
    await tab.shows(".allowed .quiet", "None: no client is connected, and nothing was allowed.")
    await tab.page.get_by_role("button", name="Allow a folder").click()
    path = tab.page.get_by_label("Folder or file")
    await path.fill("~/.ssh")
    await tab.page.get_by_role("button", name="Allow", exact=True).click()
    await tab.shows(".allowed .trouble", 'allow_hidden = ["~/.ssh"]')
    assert allowances(state) == []
    await path.fill(str(folder))
    await tab.page.get_by_role("button", name="read", exact=True).click()
    await tab.page.get_by_role("button", name="1 h", exact=True).click()
    await tab.page.get_by_role("button", name="Allow", exact=True).click()
    row = await tab.shows(".allowance", str(folder))
    words = await row.inner_text()
    assert "allowed on this page" in words
    assert "59m" in words or "1h 00m" in words
    (given,) = allowances(state)
    assert (given.path, given.writing, given.by) == (str(folder), False, "page")
    await tab.page.get_by_role("button", name=f"Take back {folder}").click()
    await tab.gone(".allowance", str(folder))
    assert allowances(state) == []


async def test_what_others_allow_and_projects_of_clients_appear(
    new_tab: Opener, shown: Dashboard, folder: Path
) -> None:
    tab = await new_tab()
    await tab.open(shown.address, "workspaces")
    allow(Allowance("/data/\u202e<b>x</b>", True, None, "s-1", "form"), shown.home / "state")
    await tab.shows(".allowance", "/data/\\u202e<b>x</b>")
    await tab.shows(".allowance", "allowed in a form, for one session")
    assert await tab.page.locator(".allowance b").count() == 0
    async with serve(shown.home, cwd=folder, config=CONFIG) as server:
        await server.client.list_tools()
        await tab.shows(".allowance", str(folder))
        await tab.shows(".allowance .why", "project of")
