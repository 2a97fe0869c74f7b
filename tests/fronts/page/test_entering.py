"""Who is let into the page: another user of this computer, another web page and an old cookie are not."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from pathlib import Path

import pytest

from remote_sandbox_mcp.core.sandboxes.secret import Secret
from remote_sandbox_mcp.fronts.page import entering
from remote_sandbox_mcp.fronts.page.entering import Door
from tests.fronts.http.conftest import Service, service
from tests.support.hubs import hub_pid, kill_hub
from tests.support.page import Browser
from tests.support.sshd import Sshd

API = ("stream", "log", "calls", "events", "choices")


def test_the_key_gives_a_cookie_and_a_token(served: Service) -> None:
    browser = Browser(served.port)
    answer = browser.enter(f" {served.key}\n")
    assert answer.status == 200
    cookie = answer.headers["Set-Cookie"]
    assert all(part in cookie for part in ("; HttpOnly", "; SameSite=Strict", "; Path=/ui;", "; Max-Age=2592000"))
    assert served.key not in cookie + browser.token
    assert browser.token not in cookie
    assert browser.ask("GET", "/ui/api/choices").status == 200


@pytest.mark.parametrize("key", ["", "wrong", None, 5, ["a"], "ключ"], ids=str)
def test_a_wrong_key_is_refused_with_a_sentence(served: Service, key: object, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Browser(served.port).ask("POST", "/ui/enter", {"key": key})
    assert answer.status == 401
    assert "dashboard" in answer.json["error"]
    assert "Set-Cookie" not in answer.headers


@pytest.mark.parametrize("name", API)
def test_neither_cookie_nor_token_is_enough_alone(served: Service, browser: Browser, name: str) -> None:
    other = Browser(served.port)
    other.enter(served.key)
    pairs = [("", ""), (browser.cookie, ""), ("", browser.token), (browser.cookie, other.token)]
    pairs += [(f"{browser.cookie}x", browser.token), (browser.cookie, served.key), (served.key, served.key)]
    for cookie, token in pairs:
        stranger = Browser(served.port)
        stranger.cookie, stranger.token = cookie, token
        answer = stranger.ask("GET", f"/ui/api/{name}")
        assert answer.status == 401, (cookie, token)
        assert answer.headers["Connection"] == "close"
        assert set(answer.json) == {"error"}
    assert browser.ask("GET", "/ui/api/choices", Authorization=f"Bearer {served.key}").status == 200


def test_a_cookie_of_another_server_on_this_host_does_not_lock_the_page(browser: Browser) -> None:
    """Such as that of an app in a container, whose port was opened: it can set cookies of any name and path."""
    name = browser.cookie.partition("=")[0]
    for cookies in (
        f"{name}=other; {browser.cookie}",
        f"{browser.cookie}; {name}=",
        f"{name}=1; {name}=2; {browser.cookie}",
    ):
        assert browser.ask("GET", "/ui/api/choices", Cookie=cookies).status == 200
    assert browser.ask("GET", "/ui/api/choices", Cookie=f"{name}=other").status == 401


def test_a_cookie_does_not_open_mcp(served: Service, browser: Browser) -> None:
    assert browser.ask("POST", "/mcp", {}).status == 401
    assert browser.ask("POST", "/mcp", {}, Authorization=f"Bearer {browser.token}").status == 401


def test_leaving_ends_the_pass(served: Service) -> None:
    browser = Browser(served.port)
    browser.enter(served.key)
    answer = browser.ask("POST", "/ui/leave", {})
    assert answer.status == 200
    assert "Max-Age=0" in answer.headers["Set-Cookie"]
    assert browser.ask("GET", "/ui/api/choices").status == 401


def test_leaving_ends_all_streams_of_the_pass_and_no_other(served: Service, browser: Browser) -> None:
    leaving = Browser(served.port)
    leaving.enter(served.key)
    with leaving.stream() as first, leaving.stream() as second, browser.stream() as other:
        for stream in (first, second, other):
            stream.until(lambda topics: "calls" in topics, "calls")
        assert leaving.ask("POST", "/ui/leave", {}).status == 200
        for stream in (first, second):
            with pytest.raises(AssertionError, match="the stream ended"):
                stream.until(lambda topics: False, "its end")
        now = other.topics["about"]["hub"]["now"]
        browser.call("check_background_task", tmux_session="none")
        other.until(lambda topics: any(row["began"] >= now for row in topics["calls"].values()), "another call")


def test_a_pass_that_was_given_back_stays_so_under_a_new_hub(tmp_path: Path) -> None:
    with service(tmp_path / "home", local=False) as served:
        browser, other = Browser(served.port), Browser(served.port)
        for each in (browser, other):
            each.enter(served.key)
        assert browser.ask("POST", "/ui/leave", {}).status == 200
        kill_hub(served.home)
        assert other.ask("GET", "/ui/api/choices").status == 200
        assert browser.ask("GET", "/ui/api/choices").status == 401
        assert (served.home / "state" / "page.left").stat().st_mode & 0o777 == 0o600


def test_another_user_of_this_computer_finds_no_way_in(served: Service, browser: Browser, machine: Sshd) -> None:
    """The machine is this computer, and its user is another one."""
    pids = f"{served.process.pid} {hub_pid(served.home)}"
    script = f"""
        cat {served.home}/state/http.key {served.home}/state/dashboard.json 2>&1
        for pid in {pids}; do tr '\\0' ' ' </proc/$pid/cmdline; cat /proc/$pid/environ 2>&1; done
        python3 - <<'END'
import urllib.request, urllib.error
sent = {{"/ui/api/stream": None, "/ui/enter": b'{{"key": ""}}', "/ui/api/call": b"{{}}", "/ui/": None}}
for path, body in sent.items():
    wanted = urllib.request.Request("http://127.0.0.1:{served.port}" + path, body)
    wanted.add_header("Content-Type", "application/json")
    wanted.add_header("Cookie", "{browser.cookie}")
    try:
        print(path, urllib.request.urlopen(wanted, timeout=10).status)
    except urllib.error.HTTPError as error:
        print(path, error.code)
END
        """
    answer = browser.call("exec_bash", command=script, sandbox_name=machine.name)["structured"]
    said = answer["stdout"] + answer.get("stderr", "")
    assert served.key not in said
    assert browser.token not in said
    assert [line for line in said.splitlines() if line.startswith("/ui")] == [
        "/ui/api/stream 401", "/ui/enter 401", "/ui/api/call 401", "/ui/ 200",
    ]  # fmt: skip
    assert "Permission denied" in said


# Passes as values


def door(key: str = "a key", seal: str = "a seal", file: Path | None = None) -> Door:
    return Door(Secret(key), seal, file)


def test_a_hub_that_takes_over_knows_the_passes_of_the_one_before() -> None:
    made = door().new_pass()
    assert door().knows(made.cookie, made.token)


@pytest.mark.parametrize("other", [door("another key"), door(seal="of another process")], ids=["key", "seal"])
def test_another_key_or_another_listening_process_knows_no_pass(other: Door) -> None:
    made = door().new_pass()
    assert not other.knows(made.cookie, made.token)


def test_servers_with_other_keys_do_not_overwrite_the_cookie() -> None:
    assert door().cookie_name != door("another key").cookie_name


def test_a_pass_is_over_after_its_time() -> None:
    old = door().new_pass(time.time() - entering.LASTS_S - 1)
    assert not door().knows(old.cookie, old.token)
    until, nonce, signature = old.cookie.split(".")
    later = str(int(until) + 1_000_000)
    assert not door().knows(f"{later}.{nonce}.{signature}", old.token)


async def test_waiting_for_the_end_of_a_pass_ends_when_it_is_left_or_too_old() -> None:
    guarded = door()
    old, left, other = guarded.new_pass(time.time() - entering.LASTS_S - 1), guarded.new_pass(), guarded.new_pass()
    waiting = {each: asyncio.ensure_future(guarded.until_over(each.cookie)) for each in (old, left, other)}
    await waiting[old]
    guarded.leave(left.cookie)
    await waiting[left]
    await guarded.until_over(left.cookie)
    assert not waiting[other].done()
    waiting[other].cancel()


def test_passes_that_were_given_back_are_kept_and_the_oldest_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entering, "MOST_LEFT", 2)
    file = tmp_path / "left"
    made = [door().new_pass() for _ in range(3)]
    first = door(file=file)
    for each in made:
        first.leave(each.cookie)
    for each in (first, door(file=file)):
        assert [each.knows(one.cookie, one.token) for one in made] == [True, False, False]


@pytest.mark.parametrize(
    "forged",
    [
        "", ".", "..", "9999999999..", "9999999999.00", "x.y.z", "9" * 5000, "-1.0.0", "9999999999.a.b\0", "\udcff.x.y",
        f"9999999999.00.{hmac.new(b'', b'9999999999.00', hashlib.sha256).hexdigest()}",
    ],
    ids=range(11),
)  # fmt: skip
def test_forged_cookies_are_refused(forged: str) -> None:
    made = door().new_pass()
    for token in ("", made.token, forged):
        assert not door().knows(forged, token)


async def test_many_wrong_keys_are_slowed_down_and_the_right_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entering, "WAIT_S", 0.2)
    monkeypatch.setattr(entering, "MOST_WAITING", 1)
    guarded = door()
    begun = time.monotonic()
    for _ in range(entering.FREE_TRIES):
        assert await guarded.slow_down()
    # Had each of them waited, it were longer.
    assert time.monotonic() - begun < 0.2 * entering.FREE_TRIES
    assert await guarded.slow_down()
    assert time.monotonic() - begun >= 0.2
    assert guarded.is_key("a key")
    assert not guarded.is_key("a ke")


# As another web page


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({"Origin": "http://evil.example.org"}, 403, id="another origin"),
        pytest.param({"Origin": "null"}, 403, id="a page without an origin"),
        pytest.param({"Origin": "http://127.0.0.1:1"}, 403, id="another port of this computer"),
        pytest.param({"Sec_Fetch_Site": "cross-site"}, 403, id="another site"),
        pytest.param({"Sec_Fetch_Site": "same-site"}, 403, id="another port, as the browser says it"),
        pytest.param({"Sec_Fetch_Site": "none"}, 403, id="an address that was typed"),
        pytest.param({"Host": "evil.example.org"}, 421, id="a name that leads here"),
        pytest.param({"Sec_Fetch_Site": "same-origin"}, 200, id="the page itself"),
    ],
)
def test_another_web_page_gets_nothing_even_with_cookie_and_token(
    browser: Browser, headers: dict[str, str], status: int
) -> None:
    answer = browser.ask("GET", "/ui/api/choices", **headers)
    assert answer.status == status
    assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize("type", ["text/plain", "application/x-www-form-urlencoded", "", "application/json-x"])
def test_a_form_of_another_page_can_neither_enter_nor_call(browser: Browser, served: Service, type: str) -> None:
    for path, body in (("/ui/enter", {"key": served.key}), ("/ui/api/call", {"tool": "exec_bash"})):
        assert browser.ask("POST", path, body, Content_Type=type).status == 415


def test_an_origin_that_may_use_mcp_may_not_use_the_page(tmp_path: Path) -> None:
    config = '[http]\nallowed_origins = ["http://app.example.org"]\n'
    with service(tmp_path / "home", "--port", "0", "--no-hub", local=False, config=config) as served:
        browser = Browser(served.port)
        for path in ("/ui/", "/ui/enter", "/ui/api/choices"):
            for method in ("OPTIONS", "GET", "POST"):
                answer = browser.ask(method, path, Origin="http://app.example.org")
                assert answer.status == 403
                assert "Access-Control-Allow-Origin" not in answer.headers


def test_without_a_key_there_is_no_page(tmp_path: Path) -> None:
    with service(tmp_path / "home", "--port", "0", "--no-hub", "--no-auth", local=False) as served:
        browser = Browser(served.port)
        for path in ("/ui", "/ui/", "/ui/enter", "/ui/api/stream"):
            answer = browser.ask("GET", path)
            assert answer.status == 404
            assert b"there is no page without a key" in answer.body
